#include "dist/elastic/round_quorum.h"

#include <stdio.h>
#include <string.h>

/* A waiting node that has left the latest round has lost its connection to `id`. */
static bool is_named_lost(const round_view *view, const char *id)
{
    for (int i = 0; i < view->n; i++) {
        const round_node *node = &view->nodes[i];
        for (int k = 0; k < node->n_lost; k++)
            if (node->waits && node->round == view->state.round && strcmp(node->lost[k], id) == 0)
                return true;
    }
    return false;
}

/* Marks who has not come to the round. Node 0 waits for all others: its word counts. Else it is who
 * has not reached node 0, or node 0 if that has had no part in the round. */
static void mark_absent(const round_view *view)
{
    const round_state *state = &view->state;
    const round_node *node_0 =
        state->over && state->n > 0 ? round_node_of(view, state->members[0].id) : NULL;
    bool takes_part = node_0 != NULL && node_0->round == state->round, names = false;
    for (int i = 0; i < view->n && takes_part; i++)
        for (int k = 0; k < node_0->n_lost && node_0->unmet && node_0->waits; k++)
            if (strcmp(view->nodes[i].id, node_0->lost[k]) == 0)
                names = view->nodes[i].left_out = true;
    for (int i = 1; i < state->n && node_0 != NULL && !names; i++)
        for (int k = 0; k < view->n; k++) {
            round_node *node = &view->nodes[k];
            if (strcmp(node->id, state->members[i].id) != 0 || !node->waits || !node->unmet ||
                node->round != state->round || node->n_lost == 0)
                continue;
            if (takes_part)
                node->left_out = true;
            else
                view->nodes[node_0 - view->nodes].left_out = true;
        }
}

/* What the state says of it, and one more if it has just been marked. Who came has none. */
static int absences_of(const round_state *state, const round_node *node)
{
    int times = node->left_out;
    if (!node->left_out && state->over && round_rank_of(state, node->id) >= 0)
        return 0;
    for (int i = 0; i < state->n_absences; i++)
        if (strcmp(state->absences[i].id, node->id) == 0)
            return times + state->absences[i].times;
    return times;
}

static int count_left(const round_view *view)
{
    int n = 0;
    for (int i = 0; i < view->n; i++)
        n += view->nodes[i].waits && !view->nodes[i].left_out;
    return n;
}

/* If node 0 has waited in vain for so many that too few are left, it may be the one that nobody
 * reaches. */
static void leave_out_fewer(const round_rules *rules, const round_view *view)
{
    const char *node_0 = view->state.n > 0 ? view->state.members[0].id : "";
    for (int i = 0; i < view->n; i++)
        view->nodes[i].left_out = view->nodes[i].waits && view->nodes[i].unmet &&
                                  view->nodes[i].n_lost > 0 &&
                                  strcmp(view->nodes[i].id, node_0) == 0;
    for (int i = 0; i < view->n && count_left(view) < rules->min; i++)
        view->nodes[i].left_out = false;
}

int64_t round_quorum_leave_out(const round_rules *rules, const round_view *view, int64_t since_ms)
{
    enum { MOST_DOUBLINGS = 10 };
    int64_t first_ms = INT64_MAX;
    round_node *next = NULL;
    for (int i = 0; i < view->n; i++)
        view->nodes[i].left_out = false;
    mark_absent(view);
    for (int i = 0; i < view->n; i++) {
        round_node *node = &view->nodes[i];
        node->absences = absences_of(&view->state, node);
        if (node->left_out || node->absences == 0)
            continue;
        int doublings = node->absences - 1 < MOST_DOUBLINGS ? node->absences - 1 : MOST_DOUBLINGS;
        int64_t until_ms = (int64_t)ROUND_ABSENCE_MS << doublings;
        node->left_out = node->waits;
        if (node->waits && since_ms >= until_ms && (!next || node->absences < next->absences))
            next = node;
        else if (node->waits && since_ms < until_ms && until_ms < first_ms)
            first_ms = until_ms;
    }
    if (next != NULL)
        next->left_out = false;
    if (count_left(view) < rules->min && view->state.over)
        leave_out_fewer(rules, view);
    return first_ms;
}

/* Of a later round than the first. */
static round_blocker blocker_of_last_round(const round_view *view, round_quorum *quorum)
{
    const round_state *state = &view->state;
    int there = 0;
    bool all_left = true;
    for (int i = 0; i < state->n; i++) {
        const round_node *node = round_node_of(view, state->members[i].id);
        there += node != NULL;
        quorum->survivors += node != NULL && node->waits && !node->left_out;
        if (all_left && node != NULL && !node->waits && !is_named_lost(view, node->id)) {
            quorum->member = i;
            all_left = false;
        }
    }
    if (!state->over)
        return there == 0 ? ROUND_BLOCKER_ALL_LOST : ROUND_BLOCKER_RUNS;
    return all_left ? ROUND_BLOCKER_NONE : ROUND_BLOCKER_MEMBER;
}

round_quorum round_quorum_of(const round_rules *rules, const round_view *view)
{
    round_quorum quorum = {.member = -1};
    for (int i = 0; i < view->n; i++) {
        const round_node *node = &view->nodes[i];
        quorum.waiting += node->waits && !node->left_out;
        if (node->waits && node->round > view->state.round)
            quorum.blocker = ROUND_BLOCKER_OLDER;
    }
    if (quorum.blocker != ROUND_BLOCKER_NONE)
        return quorum;
    if (view->state.round > 0)
        quorum.blocker = blocker_of_last_round(view, &quorum);
    if (quorum.blocker == ROUND_BLOCKER_NONE && quorum.waiting < rules->min)
        quorum.blocker = ROUND_BLOCKER_FEW;
    return quorum;
}

/* "hostA (8 ranks), hostB (8 ranks)" */
static void list_waiting(const round_view *view, char *out, size_t size_bytes)
{
    size_t used = 0;
    out[0] = '\0';
    for (int i = 0; i < view->n && used < size_bytes; i++) {
        const round_node *node = &view->nodes[i];
        if (!node->waits)
            continue;
        int length =
            snprintf(out + used, size_bytes - used, "%s%s (%d rank%s%s)", used > 0 ? ", " : "",
                     round_host_of(node->id).text, node->nproc, node->nproc == 1 ? "" : "s",
                     node->left_out ? "; left out for now, as a round with it did not begin" : "");
        used += length > 0 ? (size_t)length : 0;
    }
}

static const char *have(int n)
{
    return n == 1 ? "has" : "have";
}

void round_quorum_text(const round_rules *rules, const round_view *view, char *out,
                       size_t size_bytes)
{
    round_quorum quorum = round_quorum_of(rules, view);
    const round_state *state = &view->state;
    long long round = (long long)state->round;
    char who[200];
    list_waiting(view, who, sizeof who);
    switch (quorum.blocker) {
    case ROUND_BLOCKER_NONE:
        snprintf(out, size_bytes, "%d of %d %s come: %s", quorum.waiting, rules->max,
                 have(quorum.waiting), who);
        break;
    case ROUND_BLOCKER_FEW:
        snprintf(out, size_bytes, "%d of %d %s come: %s", quorum.waiting, rules->min,
                 have(quorum.waiting), who);
        break;
    case ROUND_BLOCKER_RUNS:
        snprintf(out, size_bytes, "round %lld runs with %d node%s, %s%s", round, state->n,
                 state->n == 1 ? "" : "s",
                 state->n >= rules->max ? "and has no room for another"
                 : quorum.waiting > 0   ? "which are to make room"
                                        : "and others wait: ",
                 state->n < rules->max && quorum.waiting == 0 ? who : "");
        break;
    case ROUND_BLOCKER_ALL_LOST:
        snprintf(out, size_bytes, "all nodes of round %lld are lost", round);
        break;
    case ROUND_BLOCKER_OLDER:
        snprintf(out, size_bytes, "the rendezvous knows of no round after %lld, but a node does",
                 round);
        break;
    case ROUND_BLOCKER_MEMBER:
        snprintf(out, size_bytes, "node %d (%s) has not left round %lld yet", quorum.member,
                 round_host_of(state->members[quorum.member].id).text, round);
        break;
    }
}
