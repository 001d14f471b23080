#include "tests/support/round_pack.h"

#include <stdlib.h>
#include <string.h>

const char *const round_pack_ids[WORLD_NODES] = {"a_1_1", "b_1_1", "c_1_1", "d_1_1"};

static void fill_node(const world_record *record, int node, round_node *out)
{
    static char names[WORLD_NODES][1 << WORLD_NODES][WORLD_NODES]
                     [ROUND_ID_BYTES]; /* those that are lost, per mask */
    *out = (round_node){.order = record->order,
                        .waits = record->waits,
                        .round = record->round,
                        .unmet = record->unmet,
                        .lost = names[node][record->lost]};
    memcpy(out->id, round_pack_ids[node], strlen(round_pack_ids[node]) + 1);
    for (int i = 0; i < WORLD_NODES; i++)
        if (record->lost & (1 << i))
            memcpy(out->lost[out->n_lost++], round_pack_ids[i], strlen(round_pack_ids[i]) + 1);
}

static int node_of_id(const char *id)
{
    return id[0] - 'a';
}

static void pack_node(const round_node *node, world_record *out)
{
    out->waits = node->waits;
    out->round = (uint8_t)node->round;
    out->unmet = node->unmet;
    out->lost = 0;
    for (int i = 0; i < node->n_lost; i++)
        out->lost |= (uint8_t)(1 << node_of_id(node->lost[i]));
}

enum { MOST_ABSENCES = 2 };

static void fill_state(const world_state *state, round_node *members, round_absence *absences,
                       round_state *out)
{
    *out = (round_state){.round = state->round,
                         .over = state->over,
                         .closed = state->closed,
                         .members = members,
                         .n = state->n,
                         .absences = absences};
    for (int i = 0; i < WORLD_NODES; i++)
        if (state->absences[i] > 0) {
            round_absence *absence = &absences[out->n_absences++];
            *absence = (round_absence){.times = state->absences[i]};
            memcpy(absence->id, round_pack_ids[i], strlen(round_pack_ids[i]) + 1);
        }
    for (int i = 0; i < state->n; i++) {
        const char *id = round_pack_ids[state->members[i]];
        members[i] = (round_node){0};
        memcpy(members[i].id, id, strlen(id) + 1);
    }
}

void round_pack_state(const round_state *state, world_state *out)
{
    *out = (world_state){.round = (uint8_t)state->round,
                         .over = state->over,
                         .closed = state->closed,
                         .n = (uint8_t)state->n};
    for (int i = 0; i < state->n && i < WORLD_NODES; i++)
        out->members[i] = (uint8_t)node_of_id(state->members[i].id);
    for (int i = 0; i < state->n_absences; i++) {
        const round_absence *absence = &state->absences[i];
        out->absences[node_of_id(absence->id)] =
            (uint8_t)(absence->times < MOST_ABSENCES ? absence->times : MOST_ABSENCES);
    }
}

void round_pack_fill_machine(const world_node *node, int i, const round_rules *rules,
                             round_machine *out)
{
    round_node self, members[WORLD_NODES];
    round_absence absences[WORLD_NODES];
    round_state last;
    fill_node(&node->self, i, &self);
    round_machine_init(out, rules, &self);
    out->self = self;
    out->self.lost = calloc(WORLD_NODES, sizeof *out->self.lost);
    for (int k = 0; k < self.n_lost; k++)
        memcpy(out->self.lost[k], self.lost[k], sizeof self.lost[k]);
    fill_state(&node->last, members, absences, &last);
    if (round_state_copy(&last, &out->last) != STATUS_OK || out->self.lost == NULL)
        abort();
    out->phase = node->phase;
    out->closing = node->closing;
}

void round_pack_machine(const round_machine *machine, world_node *out)
{
    pack_node(&machine->self, &out->self);
    round_pack_state(&machine->last, &out->last);
    out->phase = (uint8_t)machine->phase;
    out->closing = machine->closing;
}

static bool same_record(const world_record *a, const world_record *b)
{
    return a->waits == b->waits && a->round == b->round && a->lost == b->lost &&
           a->unmet == b->unmet;
}

void round_pack_fill_view(const world *w, bool only_state, int self, round_view *out)
{
    const world_node *node = &w->nodes[self];
    fill_state(&w->state, out->state.members, out->state.absences, &out->state);
    out->only_state = only_state;
    out->own_is_there = node->put.there && same_record(&node->put, &node->self);
    out->n = 0;
    for (int order = 1; order <= WORLD_NODES && !only_state; order++)
        for (int i = 0; i < WORLD_NODES; i++) {
            const world_record *record = &w->nodes[i].record;
            if (record->there && record->order == order)
                fill_node(record, i, &out->nodes[out->n++]);
        }
}
