#include "tests/support/round_meeting.h"

static bool are_apart(const world *w, int a, int b)
{
    return (w->nodes[a].apart >> b & 1) != 0;
}

bool round_meeting_has_unreachable(const world *w, const world_state *round)
{
    for (int i = 0; i < round->n; i++)
        if (w->nodes[round->members[i]].unreachable)
            return round->n > 1;
    return false;
}

bool round_meeting_fails(const world *w, const world_state *round)
{
    for (int i = 0; i < round->n; i++)
        for (int k = 0; k < i; k++)
            if (are_apart(w, round->members[i], round->members[k]))
                return true;
    return round_meeting_has_unreachable(w, round);
}

bool round_meeting_names(const world *w, const world_state *round, int rank, int other)
{
    if (round_meeting_has_unreachable(w, round))
        return (rank == 0 || other == 0) && (w->nodes[round->members[rank]].unreachable ||
                                             w->nodes[round->members[other]].unreachable);
    return rank == 0 && other == round->n - 1;
}

int round_meeting_most(const world *w)
{
    int most = 0, pairs = 0;
    for (int i = 0; i < WORLD_NODES; i++) {
        const world_node *node = &w->nodes[i];
        if (node->life != WORLD_LIVES || node->unreachable)
            continue;
        most++;
        for (int k = 0; k < i; k++)
            pairs += w->nodes[k].life == WORLD_LIVES && are_apart(w, i, k);
    }
    return most - pairs; /* no node is of two pairs */
}
