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

/* Of a later round than the first. */
static round_hurdle hurdle_of_last_round(const round_view *view, round_prospect *prospect)
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
    return all_left ? ROUND_HURDLE_NONE : ROUND_HURDLE_MEMBER;
}

round_prospect round_prospect_of(const round_rules *rules, const round_view *view)
{
    round_prospect prospect = {.member = -1};
    for (int i = 0; i < view->n; i++) {
        const round_node *node = &view->nodes[i];
        prospect.waiting += node->waits;
        if (node->waits && node->round > view->state.round)
            prospect.hurdle = ROUND_HURDLE_OLDER;
    }
    if (prospect.hurdle != ROUND_HURDLE_NONE)
        return prospect;
    if (view->state.round > 0)
        prospect.hurdle = hurdle_of_last_round(view, &prospect);
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
    }
}
