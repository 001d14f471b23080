#include "dist/elastic/round_prospect.h"

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

bool round_prospect_votes(const round_state *state, const round_node *node)
{
    int rank = round_rank_of(state, node->id);
    return state->begun_round > 0 &&
           (node->begun_round == state->begun_round || (rank >= 0 && state->members[rank].votes));
}

/* Whether more than half wait of the round, and, if it is not known to have begun, also of the one
 * before that has. */
static bool is_majority(const round_view *view, const round_prospect *prospect)
{
    const round_state *state = &view->state;
    int voters = 0;
    if (2 * prospect->survivors <= state->n)
        return false;
    if (prospect->begun || state->begun_n == 0)
        return true;
    for (int i = 0; i < view->n; i++) {
        const round_node *node = &view->nodes[i];
        voters += node->waits && round_prospect_votes(state, node);
    }
    return 2 * voters > state->begun_n;
}

/* Of a later round than the first. */
static round_hurdle hurdle_of_last_round(const round_rules *rules, const round_view *view,
                                         round_prospect *prospect)
{
    const round_state *state = &view->state;
    int there = 0;
    bool all_left = true;
    for (int i = 0; i < state->n; i++) {
        const round_node *node = round_node_of(view, state->members[i].id);
        there += node != NULL;
        prospect->survivors += node != NULL && node->waits;
        if (all_left && node != NULL && !node->waits && !is_named_lost(view, node->id)) {
            prospect->member = i;
            all_left = false;
        }
    }
    if (!state->over)
        return there == 0 ? ROUND_HURDLE_ALL_LOST : ROUND_HURDLE_RUNS;
    if (!all_left)
        return ROUND_HURDLE_MEMBER;
    if (rules->needs_majority && !is_majority(view, prospect))
        return ROUND_HURDLE_MINORITY;
    return ROUND_HURDLE_NONE;
}

round_prospect round_prospect_of(const round_rules *rules, const round_view *view)
{
    round_prospect prospect = {.member = -1};
    for (int i = 0; i < view->n; i++) {
        const round_node *node = &view->nodes[i];
        prospect.waiting += node->waits;
        if (node->waits && view->state.round > 0 && node->begun_round == view->state.round)
            prospect.begun = true;
        if (node->waits && node->round > view->state.round)
            prospect.hurdle = ROUND_HURDLE_OLDER;
    }
    if (prospect.hurdle != ROUND_HURDLE_NONE)
        return prospect;
    if (view->state.round > 0)
        prospect.hurdle = hurdle_of_last_round(rules, view, &prospect);
    else if (view->fallback)
        prospect.hurdle = ROUND_HURDLE_FALLBACK;
    else if (view->silent[0] != '\0')
        prospect.hurdle = ROUND_HURDLE_SILENT;
    if (prospect.hurdle == ROUND_HURDLE_NONE && prospect.waiting < rules->min)
        prospect.hurdle = ROUND_HURDLE_FEW;
    return prospect;
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
            snprintf(out + used, size_bytes - used, "%s%s (%d rank%s)", used > 0 ? ", " : "",
                     round_host_of(node->id).text, node->nproc, node->nproc == 1 ? "" : "s");
        used += length > 0 ? (size_t)length : 0;
    }
}

static const char *have(int n)
{
    return n == 1 ? "has" : "have";
}

void round_prospect_text(const round_rules *rules, const round_view *view, char *out,
                         size_t size_bytes)
{
    round_prospect prospect = round_prospect_of(rules, view);
    const round_state *state = &view->state;
    long long round = (long long)state->round;
    char who[200];
    list_waiting(view, who, sizeof who);
    switch (prospect.hurdle) {
    case ROUND_HURDLE_NONE:
        if (state->brought && prospect.survivors < state->n) {
            snprintf(out, size_bytes,
                     "the rendezvous had forgotten round %lld: a later one may run until its "
                     "leases have ended; %s wait%s",
                     round, who, prospect.waiting == 1 ? "s" : "");
            break;
        }
        snprintf(out, size_bytes, "%d of %d %s come: %s", prospect.waiting, rules->max,
                 have(prospect.waiting), who);
        break;
    case ROUND_HURDLE_FEW:
        snprintf(out, size_bytes, "%d of %d %s come: %s", prospect.waiting, rules->min,
                 have(prospect.waiting), who);
        break;
    case ROUND_HURDLE_RUNS:
        snprintf(out, size_bytes, "round %lld runs with %d nodes, %s", round, state->n,
                 state->n < rules->max ? "which are to make room" : "and has no room for another");
        break;
    case ROUND_HURDLE_ALL_LOST:
        snprintf(out, size_bytes, "all nodes of round %lld are lost", round);
        break;
    case ROUND_HURDLE_OLDER:
        snprintf(out, size_bytes, "the rendezvous knows of no round after %lld, but a node does",
                 round);
        break;
    case ROUND_HURDLE_MEMBER:
        snprintf(out, size_bytes, "node %d (%s) has not left round %lld yet", prospect.member,
                 round_host_of(state->members[prospect.member].id).text, round);
        break;
    case ROUND_HURDLE_MINORITY:
        snprintf(out, size_bytes, "%d of the %d nodes of round %lld %s come, more than half must",
                 prospect.survivors, state->n, round, have(prospect.survivors));
        break;
    case ROUND_HURDLE_FALLBACK:
        snprintf(out, size_bytes, "a job begins at the first endpoint of --rdzv-endpoint only");
        break;
    case ROUND_HURDLE_SILENT:
        snprintf(out, size_bytes,
                 "%s does not answer, and the job may be there: start that host, or leave it out "
                 "of --rdzv-endpoint on all nodes",
                 view->silent);
        break;
    }
}
