#include "dist/elastic/round_state.h"

#include <stdlib.h>
#include <string.h>

void round_node_free(round_node *node)
{
    free(node->lost);
    node->lost = NULL;
    node->n_lost = 0;
}

void round_state_free(round_state *state)
{
    free(state->members);
    free(state->absences);
    state->members = NULL;
    state->absences = NULL;
    state->n = state->n_absences = 0;
}

void round_view_free(round_view *view)
{
    for (int i = 0; i < view->n; i++)
        round_node_free(&view->nodes[i]);
    free(view->nodes);
    round_state_free(&view->state);
    *view = (round_view){0};
}

status round_state_copy(const round_state *from, round_state *out)
{
    round_node *members = calloc((size_t)from->n + 1, sizeof *members);
    round_absence *absences = calloc((size_t)from->n_absences + 1, sizeof *absences);
    if (members == NULL || absences == NULL) {
        free(members);
        free(absences);
        return FAIL(STATUS_NO_MEMORY, "a round of %d nodes", from->n);
    }
    *out = *from;
    out->members = members;
    out->absences = absences;
    for (int i = 0; i < from->n; i++)
        members[i] = from->members[i];
    for (int i = 0; i < from->n_absences; i++)
        absences[i] = from->absences[i];
    return STATUS_OK;
}

int round_rank_of(const round_state *state, const char *id)
{
    for (int i = 0; i < state->n; i++)
        if (strcmp(state->members[i].id, id) == 0)
            return i;
    return -1;
}

const round_node *round_node_of(const round_view *view, const char *id)
{
    for (int i = 0; i < view->n; i++)
        if (strcmp(view->nodes[i].id, id) == 0)
            return &view->nodes[i];
    return NULL;
}

round_host round_host_of(const char *id)
{
    round_host host = {{0}};
    strncpy(host.text, id, sizeof host.text - 1);
    for (int parts = 0; parts < 2; parts++) {
        char *end = strrchr(host.text, '_');
        if (end != NULL && end > host.text)
            *end = '\0';
    }
    return host;
}
