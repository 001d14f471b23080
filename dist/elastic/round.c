#include "dist/elastic/round.h"

#include "base/digest.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* State and records. */

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

/* NULL: the node's lease has ended, or it has taken its record back. */
static const round_node *node_of(const round_view *view, const char *id)
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

/* The quorum of the next round. */

typedef enum blocker_kind {
    BLOCKER_NONE,     /* it can begin; if there is no survivor, after the last call */
    BLOCKER_RUNS,     /* the latest round is not over */
    BLOCKER_ALL_LOST, /* the same, but none of its nodes is left to say that it is over */
    BLOCKER_OLDER,    /* a node knows of a later round than the service does */
    BLOCKER_MEMBER,   /* `member` of the last round has not left it */
    BLOCKER_FEW,      /* fewer than `min` wait */
} blocker_kind;

typedef struct quorum_facts {
    blocker_kind blocker;
    int waiting, survivors; /* nodes that are not left out; survivors of the last round of them */
    int member;             /* its node rank in the last round */
} quorum_facts;

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
        state->over && state->n > 0 ? node_of(view, state->members[0].id) : NULL;
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

/* Marks in the view who is left out of the next round: who has just not come to its round, and who
 * did not come to an earlier one, for ROUND_ABSENCE_MS after that, twice as long each time. They
 * are let in one at a time, so that it is known who does not come. But not so many are left out
 * that fewer than `min` are left. since_ms: since when the state's absences are known, now_ms
 * included. Returns when the first of them is let in again, in the same time; INT64_MAX. */
static int64_t find_left_out(const round_rules *rules, const round_view *view, int64_t since_ms)
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
static blocker_kind blocker_of_last_round(const round_view *view, quorum_facts *quorum)
{
    const round_state *state = &view->state;
    int there = 0;
    bool all_left = true;
    for (int i = 0; i < state->n; i++) {
        const round_node *node = node_of(view, state->members[i].id);
        there += node != NULL;
        quorum->survivors += node != NULL && node->waits && !node->left_out;
        if (all_left && node != NULL && !node->waits && !is_named_lost(view, node->id)) {
            quorum->member = i;
            all_left = false;
        }
    }
    if (!state->over)
        return there == 0 ? BLOCKER_ALL_LOST : BLOCKER_RUNS;
    return all_left ? BLOCKER_NONE : BLOCKER_MEMBER;
}

static quorum_facts quorum_of(const round_rules *rules, const round_view *view)
{
    quorum_facts quorum = {.member = -1};
    for (int i = 0; i < view->n; i++) {
        const round_node *node = &view->nodes[i];
        quorum.waiting += node->waits && !node->left_out;
        if (node->waits && node->round > view->state.round)
            quorum.blocker = BLOCKER_OLDER;
    }
    if (quorum.blocker != BLOCKER_NONE)
        return quorum;
    if (view->state.round > 0)
        quorum.blocker = blocker_of_last_round(view, &quorum);
    if (quorum.blocker == BLOCKER_NONE && quorum.waiting < rules->min)
        quorum.blocker = BLOCKER_FEW;
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
    quorum_facts quorum = quorum_of(rules, view);
    const round_state *state = &view->state;
    long long round = (long long)state->round;
    char who[200];
    list_waiting(view, who, sizeof who);
    switch (quorum.blocker) {
    case BLOCKER_NONE:
        snprintf(out, size_bytes, "%d of %d %s come: %s", quorum.waiting, rules->max,
                 have(quorum.waiting), who);
        break;
    case BLOCKER_FEW:
        snprintf(out, size_bytes, "%d of %d %s come: %s", quorum.waiting, rules->min,
                 have(quorum.waiting), who);
        break;
    case BLOCKER_RUNS:
        snprintf(out, size_bytes, "round %lld runs with %d node%s, %s%s", round, state->n,
                 state->n == 1 ? "" : "s",
                 state->n >= rules->max ? "and has no room for another"
                 : quorum.waiting > 0   ? "which are to make room"
                                        : "and others wait: ",
                 state->n < rules->max && quorum.waiting == 0 ? who : "");
        break;
    case BLOCKER_ALL_LOST:
        snprintf(out, size_bytes, "all nodes of round %lld are lost", round);
        break;
    case BLOCKER_OLDER:
        snprintf(out, size_bytes, "the rendezvous knows of no round after %lld, but a node does",
                 round);
        break;
    case BLOCKER_MEMBER:
        snprintf(out, size_bytes, "node %d (%s) has not left round %lld yet", quorum.member,
                 round_host_of(state->members[quorum.member].id).text, round);
        break;
    }
}

/* The machine. */

void round_machine_init(round_machine *machine, const round_rules *rules, const round_node *self)
{
    *machine = (round_machine){.rules = *rules, .self = *self, .enough_ms = -1};
    machine->self.waits = true;
    machine->self.round = 0;
    machine->self.lost = NULL;
    machine->self.n_lost = 0;
}

void round_machine_free(round_machine *machine)
{
    round_node_free(&machine->self);
    round_state_free(&machine->last);
}

void round_action_free(round_action *action)
{
    round_state_free(&action->state);
}

static bool runs(const round_node *node, int64_t round)
{
    return node != NULL && !node->waits && node->round == round;
}

static bool has_left(const round_node *node, int64_t round)
{
    return node != NULL && node->waits && node->round == round;
}

static bool same_members(const round_state *a, const round_state *b)
{
    for (int i = 0; i < a->n && a->n == b->n; i++)
        if (strcmp(a->members[i].id, b->members[i].id) != 0)
            return false;
    return a->n == b->n;
}

/* Whether the record is what the node wants it to be. */
static bool same_record(const round_node *a, const round_node *b)
{
    for (int i = 0; i < a->n_lost && a->n_lost == b->n_lost; i++)
        if (strcmp(a->lost[i], b->lost[i]) != 0)
            return false;
    return a->n_lost == b->n_lost && a->waits == b->waits && a->round == b->round &&
           a->restarts == b->restarts && a->unmet == b->unmet;
}

/* Whether this node's record is there, as it is to be. */
static bool own_is_there(const round_machine *machine, const round_view *view)
{
    const round_node *own = node_of(view, machine->self.id);
    return view->only_state ? view->own_is_there : own != NULL && same_record(own, &machine->self);
}

/* The action: the state there, but over. */
static status write_over(const round_view *view, round_action *out, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
static status write_over(const round_view *view, round_action *out, const char *fmt, ...)
{
    TRY(round_state_copy(&view->state, &out->state));
    out->kind = ROUND_DO_WRITE;
    out->state.over = true;
    va_list args;
    va_start(args, fmt);
    vsnprintf(out->state.reason, sizeof out->state.reason, fmt, args);
    va_end(args);
    return STATUS_OK;
}

static status write_closed(const round_machine *machine, const round_view *view, round_action *out)
{
    TRY(round_state_copy(&view->state, &out->state));
    out->kind = ROUND_DO_WRITE;
    out->state.closed = true;
    out->state.ending = machine->ending;
    memcpy(out->state.reason, machine->reason, sizeof out->state.reason);
    return STATUS_OK;
}

static void wait_until(round_action *out, int64_t until_ms)
{
    if (until_ms < out->until_ms)
        out->until_ms = until_ms;
}

static void order_leave(round_machine *machine, round_ending ending, const char *reason,
                        round_action *out)
{
    machine->phase = ROUND_LEAVES;
    out->kind = ROUND_DO_LEAVE;
    out->ending = ending;
    snprintf(out->reason, sizeof out->reason, "%s", reason);
}

/* It waits, and is not left out. */
static bool comes(const round_node *node)
{
    return node->waits && !node->left_out;
}

/* Of a node that waits and leads: the list of the next round. */
static status write_next(const round_view *view, const quorum_facts *quorum,
                         const round_rules *rules, round_action *out)
{
    const round_state *before = &view->state;
    int n = quorum->waiting < rules->max ? quorum->waiting : rules->max;
    round_node *members = calloc((size_t)n, sizeof *members);
    round_absence *absences = calloc((size_t)view->n, sizeof *absences);
    out->state = (round_state){.round = before->round + 1,
                               .restarts = before->restarts,
                               .members = members,
                               .absences = absences};
    if (members == NULL || absences == NULL) {
        round_state_free(&out->state);
        return FAIL(STATUS_NO_MEMORY, "a round of %d nodes", n);
    }
    out->kind = ROUND_DO_WRITE;
    for (int i = 0; i < before->n && out->state.n < n; i++) {
        const round_node *survivor = node_of(view, before->members[i].id);
        if (survivor != NULL && comes(survivor))
            members[out->state.n++] = *survivor;
    }
    for (int i = 0; i < view->n && out->state.n < n; i++)
        if (comes(&view->nodes[i]) && round_rank_of(before, view->nodes[i].id) < 0)
            members[out->state.n++] = view->nodes[i];
    for (int i = 0; i < n; i++) {
        members[i].lost = NULL;
        members[i].n_lost = 0;
    }
    for (int i = 0; i < view->n; i++)
        if (view->nodes[i].waits && view->nodes[i].restarts > out->state.restarts)
            out->state.restarts = view->nodes[i].restarts;
    for (int i = 0; i < view->n; i++)
        if (view->nodes[i].absences > 0) {
            round_absence *absence = &absences[out->state.n_absences++];
            memcpy(absence->id, view->nodes[i].id, sizeof absence->id);
            absence->times = view->nodes[i].absences;
        }
    return STATUS_OK;
}

/* Whether it is this waiting node's turn to write: the first survivor's, else the first one's. */
static bool leads(const round_machine *machine, const round_view *view)
{
    for (int i = 0; i < view->state.n; i++) {
        const round_node *member = node_of(view, view->state.members[i].id);
        if (member != NULL && comes(member))
            return strcmp(member->id, machine->self.id) == 0;
    }
    for (int i = 0; i < view->n; i++)
        if (comes(&view->nodes[i]))
            return strcmp(view->nodes[i].id, machine->self.id) == 0;
    return false;
}

static status form_next(const round_machine *machine, const round_view *view, int64_t now_ms,
                        round_action *out)
{
    quorum_facts quorum = quorum_of(&machine->rules, view);
    if (quorum.blocker == BLOCKER_ALL_LOST)
        return write_over(view, out, "all nodes of round %lld are lost",
                          (long long)view->state.round);
    if (quorum.blocker != BLOCKER_NONE)
        return STATUS_OK;
    int64_t called_ms = machine->enough_ms + machine->rules.last_call_ms;
    if (quorum.survivors == 0 && quorum.waiting < machine->rules.max && now_ms < called_ms) {
        wait_until(out, called_ms);
        return STATUS_OK;
    }
    return write_next(view, &quorum, &machine->rules, out);
}

static status agree_to(round_machine *machine, const round_state *state, round_action *out)
{
    round_state copy;
    TRY(round_state_copy(state, &copy));
    round_state_free(&machine->last);
    machine->last = copy;
    round_node_free(&machine->self);
    machine->self.waits = machine->self.unmet = false;
    machine->self.round = state->round;
    if (state->restarts > machine->self.restarts)
        machine->self.restarts = state->restarts;
    machine->phase = ROUND_AGREES;
    out->kind = ROUND_DO_PUT;
    return STATUS_OK;
}

static status wait_turn(round_machine *machine, const round_view *view, int64_t now_ms,
                        round_action *out)
{
    const round_state *state = &view->state;
    int rank = round_rank_of(state, machine->self.id), waiting = 0;
    if (!own_is_there(machine, view)) {
        out->kind = ROUND_DO_PUT;
        return STATUS_OK;
    }
    if (rank >= 0 && !state->over && state->round > machine->self.round)
        return agree_to(machine, state, out);
    if (rank >= 0 && !state->over) {
        const round_node *self = &machine->self;
        int lost = self->n_lost > 0 ? round_rank_of(state, self->lost[0]) : -1;
        if (lost >= 0 && self->unmet)
            return write_over(view, out, "not all have met: node %d (%s) names node %d (%s)", rank,
                              round_host_of(self->id).text, lost,
                              round_host_of(self->lost[0]).text);
        if (lost >= 0)
            return write_over(view, out, "node %d (%s) is lost", lost,
                              round_host_of(self->lost[0]).text);
        return write_over(view, out, "node %d (%s) has left", rank, round_host_of(self->id).text);
    }
    if (view->only_state)
        return STATUS_OK;
    for (int i = 0; i < view->n; i++)
        waiting += comes(&view->nodes[i]);
    if (waiting < machine->rules.min)
        machine->enough_ms = -1;
    else if (machine->enough_ms < 0)
        machine->enough_ms = now_ms;
    return leads(machine, view) ? form_next(machine, view, now_ms, out) : STATUS_OK;
}

/* The latest of the nodes that come and are no members of the round; NULL: there is none. */
static const round_node *newcomer_of(const round_view *view)
{
    for (int i = view->n - 1; i >= 0; i--)
        if (comes(&view->nodes[i]) && round_rank_of(&view->state, view->nodes[i].id) < 0)
            return &view->nodes[i];
    return NULL;
}

/* The round is over if a member is gone, or newcomers wait for whom there is room. The first member
 * that still runs it says so. */
static status watch_members(round_machine *machine, const round_view *view, int64_t now_ms,
                            round_action *out)
{
    const round_state *state = &view->state;
    const round_node *newcomer = NULL;
    int rank = round_rank_of(state, machine->self.id);
    bool first = true;
    for (int i = 0; i < rank && first; i++)
        first = !runs(node_of(view, state->members[i].id), state->round);
    for (int i = 0; i < state->n && first; i++) {
        const char *id = state->members[i].id;
        const round_node *member = node_of(view, id);
        if (member == NULL)
            return write_over(view, out, "node %d (%s) is lost", i, round_host_of(id).text);
        if (has_left(member, state->round))
            return write_over(view, out, "node %d (%s) has left", i, round_host_of(id).text);
    }
    if (first && state->n < machine->rules.max)
        newcomer = newcomer_of(view);
    int64_t order = newcomer != NULL ? newcomer->order : 0;
    if (order != machine->newest)
        machine->newest_ms = now_ms;
    machine->newest = order;
    if (newcomer == NULL)
        return STATUS_OK;
    if (now_ms >= machine->newest_ms + ROUND_SETTLE_MS) {
        TRY(write_over(view, out, "node %s (%s) joins", round_host_of(newcomer->id).text,
                       newcomer->address));
        out->state.ending = ROUND_WELL;
        return STATUS_OK;
    }
    wait_until(out, machine->newest_ms + ROUND_SETTLE_MS);
    return STATUS_OK;
}

/* Its record will say that it waits. It will not begin the round to which it had agreed. */
static void take_back(round_machine *machine)
{
    machine->self.waits = true;
    machine->phase = ROUND_WAITS;
    machine->enough_ms = -1;
}

static status begin_agreed(round_machine *machine, const round_view *view, round_action *out)
{
    const round_state *state = &view->state;
    if (state->over || state->round != machine->last.round ||
        !same_members(state, &machine->last)) {
        take_back(machine);
        out->kind = ROUND_DO_PUT;
        return STATUS_OK;
    }
    if (!own_is_there(machine, view)) {
        out->kind = ROUND_DO_PUT;
        return STATUS_OK;
    }
    machine->phase = ROUND_RUNS;
    machine->newest = 0;
    out->kind = ROUND_DO_BEGIN;
    out->node_rank = round_rank_of(state, machine->self.id);
    return STATUS_OK;
}

static status run_on(round_machine *machine, const round_view *view, int64_t now_ms,
                     round_action *out)
{
    const round_state *state = &view->state;
    if (!view->only_state && node_of(view, machine->self.id) == NULL)
        order_leave(machine, ROUND_BADLY, "this node's record at the rendezvous is gone", out);
    else if (state->round < machine->last.round)
        order_leave(machine, ROUND_BADLY, "the rendezvous has lost this round's state", out);
    else if (state->round != machine->last.round || !same_members(state, &machine->last))
        order_leave(machine, ROUND_BADLY, "the other nodes have begun another round", out);
    else if (state->over)
        order_leave(machine, state->ending, state->reason, out);
    else if (!view->only_state)
        return watch_members(machine, view, now_ms, out);
    return STATUS_OK;
}

static void end_job(round_machine *machine, round_ending ending, const char *reason,
                    round_action *out)
{
    machine->phase = ROUND_CLOSED;
    out->kind = ROUND_DO_END;
    out->ending = ending;
    snprintf(out->reason, sizeof out->reason, "%s", reason);
}

/* The service has an older state than this node has agreed to; or another one of that number. Where
 * a later round lives is not known then. */
static bool is_lost(const round_machine *machine, const round_state *there)
{
    return there->round < machine->last.round ||
           (there->round == machine->last.round && round_rank_of(there, machine->self.id) >= 0 &&
            !same_members(there, &machine->last));
}

uint64_t round_absences_hash(const round_state *state)
{
    uint64_t hash = FNV1A_START;
    for (int i = 0; i < state->n_absences; i++) {
        bool tries = round_rank_of(state, state->absences[i].id) >= 0;
        hash = fnv1a(hash, &state->absences[i], sizeof state->absences[i]);
        hash = fnv1a(hash, &tries, sizeof tries);
    }
    return hash;
}

/* Whoever has just not come. The times count from when this node sees the state's absences. */
static void leave_out(round_machine *machine, const round_view *view, int64_t now_ms,
                      round_action *out)
{
    const round_state *state = &view->state;
    uint64_t hash = round_absences_hash(state);
    if (hash != machine->absences)
        machine->absent_ms = now_ms;
    machine->absences = hash;
    int64_t first_ms = find_left_out(&machine->rules, view, now_ms - machine->absent_ms);
    if (first_ms != INT64_MAX)
        wait_until(out, machine->absent_ms + first_ms);
}

static status see(round_machine *machine, const round_view *view, int64_t now_ms, round_action *out)
{
    if (machine->phase == ROUND_CLOSED)
        return STATUS_OK;
    if (view->state.closed && view->state.round == 0 && view->state.ending == ROUND_WELL) {
        end_job(machine, ROUND_BADLY, "it was closed as done before any round", out);
        return STATUS_OK;
    }
    if (view->state.closed) {
        end_job(machine, view->state.ending, view->state.reason, out);
        return STATUS_OK;
    }
    if (machine->phase == ROUND_WAITS && is_lost(machine, &view->state)) {
        end_job(machine, ROUND_BADLY, "the rendezvous has lost the job's state", out);
        return STATUS_OK;
    }
    if (machine->closing)
        return write_closed(machine, view, out);
    leave_out(machine, view, now_ms, out);
    switch (machine->phase) {
    case ROUND_WAITS:
        return wait_turn(machine, view, now_ms, out);
    case ROUND_AGREES:
        return begin_agreed(machine, view, out);
    case ROUND_RUNS:
        return run_on(machine, view, now_ms, out);
    case ROUND_LEAVES:
    case ROUND_CLOSED:
        break;
    }
    return STATUS_OK;
}

static status note_left(round_machine *machine, const round_departure *left)
{
    if (machine->phase != ROUND_RUNS && machine->phase != ROUND_LEAVES)
        return STATUS_OK;
    round_node self = machine->self;
    self.lost = calloc((size_t)left->n_lost + 1, sizeof *self.lost);
    if (self.lost == NULL)
        return FAIL(STATUS_NO_MEMORY, "%d lost nodes", left->n_lost);
    self.n_lost = 0;
    self.unmet = left->unmet;
    for (int i = 0; i < left->n_lost; i++)
        if (round_rank_of(&machine->last, left->lost[i]) >= 0 &&
            strcmp(left->lost[i], self.id) != 0)
            snprintf(self.lost[self.n_lost++], sizeof self.lost[0], "%s", left->lost[i]);
    if (left->restarts > self.restarts)
        self.restarts = left->restarts;
    round_node_free(&machine->self);
    machine->self = self;
    take_back(machine);
    return STATUS_OK;
}

status round_step(round_machine *machine, const round_event *event, int64_t now_ms,
                  round_action *out)
{
    *out = (round_action){.kind = ROUND_DO_WAIT, .until_ms = INT64_MAX};
    switch (event->kind) {
    case ROUND_EVENT_VIEW:
        return see(machine, event->view, now_ms, out);
    case ROUND_EVENT_LEFT:
        return note_left(machine, &event->left);
    case ROUND_EVENT_EXPIRED:
        if (machine->phase == ROUND_RUNS)
            order_leave(machine, ROUND_BADLY, event->reason, out);
        if (machine->phase == ROUND_AGREES)
            take_back(machine);
        break;
    case ROUND_EVENT_CLOSE:
        machine->closing = true;
        machine->ending = event->ending;
        snprintf(machine->reason, sizeof machine->reason, "%s", event->reason);
        break;
    }
    return STATUS_OK;
}
