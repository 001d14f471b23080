#include "tests/support/round_world.h"

#include "tests/support/round_meeting.h"
#include "tests/support/round_pack.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *const world_event_names[WORLD_EVENTS] = {
    "starts",
    "looks",
    "looks at the state",
    "acts",
    "leaves",
    "has not met",
    "expires",
    "acts unheard",
    "quits",
    "quits, one lost",
    "quits, other lost",
    "lease ends",
    "dies",
    "stops",
    "closes",
    "has waited",
};

static int rank_of(const world_state *state, int node)
{
    for (int i = 0; i < state->n; i++)
        if (state->members[i] == node)
            return i;
    return -1;
}

/* One step of a node's machine; what it is to do is noted. */
static void step(world *w, int i, round_event *event, const round_rules *rules)
{
    int64_t now_ms = w->late ? INT32_MAX : 0;
    world_node *node = &w->nodes[i];
    round_node nodes[WORLD_NODES], members[WORLD_NODES];
    round_absence absences[WORLD_NODES];
    round_view view = {.nodes = nodes, .state = {.members = members, .absences = absences}};
    round_machine machine;
    round_action action;
    round_pack_fill_machine(node, i, rules, &machine);
    if (event->kind == ROUND_EVENT_VIEW) {
        round_pack_fill_view(w, event->view == NULL, i, &view);
        event->view = &view;
    }
    machine.absences = round_absences_hash(&view.state); /* it has known them since 0 */
    if (round_step(&machine, event, now_ms, &action) != STATUS_OK)
        abort();
    if (action.kind == ROUND_DO_WAIT && action.until_ms - now_ms < ROUND_ABSENCE_MS &&
        round_step(&machine, event, action.until_ms, &action) != STATUS_OK)
        abort();
    round_pack_machine(&machine, node);
    if (action.kind == ROUND_DO_WRITE)
        round_pack_state(&action.state, &node->write);
    if (action.kind == ROUND_DO_WRITE || action.kind == ROUND_DO_PUT ||
        action.kind == ROUND_DO_BEGIN)
        node->pending = (uint8_t)action.kind;
    node->current = node->pending == ROUND_DO_WRITE;
    if (action.kind == ROUND_DO_END)
        node->ranks = 0;
    round_action_free(&action);
    round_machine_free(&machine);
}

/* Orders are 1, 2, 3 among the records that are there. */
static void number_orders(world *w)
{
    uint8_t old[WORLD_NODES], next = 1;
    for (int i = 0; i < WORLD_NODES; i++)
        old[i] = w->nodes[i].record.there ? w->nodes[i].record.order : 0;
    for (uint8_t order = 1; order < 8; order++)
        for (int i = 0; i < WORLD_NODES; i++)
            if (old[i] == order)
                w->nodes[i].record.order = next++;
}

/* The node's own clock has ended the lease before. */
static void remove_record(world *w, int i)
{
    world_node *node = &w->nodes[i];
    node->record = (world_record){0};
    number_orders(w);
    node->valid = node->ranks = 0;
}

static void put_record(world *w, int i, const world_record *what)
{
    world_record *record = &w->nodes[i].record;
    uint8_t order = record->there ? record->order : 6;
    *record = *what;
    record->there = 1;
    record->order = order;
    number_orders(w);
}

static void note_put(world_node *node)
{
    node->put = node->self;
    node->put.there = 1;
    node->valid = 1;
}

/* NULL: the next state may follow on the one before. */
static const char *check_write(const world_state *before, const world_state *next,
                               const round_rules *rules)
{
    if (before->closed)
        return "a closed job has another state";
    if (next->round < before->round)
        return "rounds go back";
    if (next->round == before->round)
        return before->over && !next->over ? "a round that is over goes on" : NULL;
    if (next->round > before->round + 1)
        return "a round is left out";
    if (!before->over && before->round > 0)
        return "a round follows on one that is not over";
    if (next->n < rules->min || next->n > rules->max)
        return "a round has too few or too many nodes";
    int latest = -1;
    bool newcomers = false;
    for (int i = 0; i < next->n; i++) {
        int rank = rank_of(before, next->members[i]);
        if (rank >= 0 && (newcomers || rank < latest))
            return "survivors do not keep their order";
        if (rank_of(next, next->members[i]) != i)
            return "a node is in a round twice";
        newcomers = newcomers || rank < 0;
        latest = rank;
    }
    return NULL;
}

/* If the state at the service is still that of the writer's view. */
static const char *write_state(world *w, const world_state *next, const round_rules *rules)
{
    const char *broken = check_write(&w->state, next, rules);
    for (int i = 0; i < WORLD_NODES; i++) {
        bool tries = rank_of(&w->state, i) < 0 && rank_of(next, i) >= 0 && next->absences[i] > 0;
        if (tries || w->state.absences[i] != next->absences[i])
            w->late = 0;
    }
    w->state = *next;
    for (int k = 0; k < WORLD_NODES; k++)
        w->nodes[k].current = 0;
    return broken;
}

static const char *act(world *w, int i, bool heard, const round_rules *rules)
{
    world_node *node = &w->nodes[i];
    const char *broken = NULL;
    uint8_t kind = node->pending;
    node->pending = ROUND_DO_WAIT;
    if (kind == ROUND_DO_PUT) {
        put_record(w, i, &node->self);
        node->put = (world_record){0};
        if (heard && node->life == WORLD_LIVES)
            note_put(node);
    }
    if (kind == ROUND_DO_WRITE && node->current)
        broken = write_state(w, &node->write, rules);
    if (kind == ROUND_DO_BEGIN && node->life == WORLD_LIVES && node->valid)
        node->ranks = node->last.round;
    else if (kind == ROUND_DO_BEGIN && node->life == WORLD_LIVES)
        step(w, i, &(round_event){.kind = ROUND_EVENT_EXPIRED, .reason = ""}, rules);
    node->current = 0;
    node->write = (world_state){0};
    return broken;
}

static void leave(world *w, int i, int lost, const round_rules *rules)
{
    const char *names[] = {round_pack_ids[lost]};
    w->nodes[i].ranks = 0;
    step(w, i,
         &(round_event){.kind = ROUND_EVENT_LEFT, .left = {.lost = names, .n_lost = lost != i}},
         rules);
}

static void leave_unmet(world *w, int i, const round_rules *rules)
{
    const world_state *last = &w->nodes[i].last;
    const char *lost[WORLD_NODES];
    int n = 0, rank = rank_of(last, i);
    for (int k = 0; k < last->n; k++)
        if (k != rank && round_meeting_names(w, last, rank, k))
            lost[n++] = round_pack_ids[last->members[k]];
    w->nodes[i].ranks = 0;
    step(w, i,
         &(round_event){.kind = ROUND_EVENT_LEFT,
                        .left = {.lost = lost, .n_lost = n, .unmet = true}},
         rules);
}

/* The node's process ends; what it has sent may arrive later. */
static void die(world *w, int i)
{
    world_node *node = &w->nodes[i];
    bool sent = node->pending == ROUND_DO_PUT || node->pending == ROUND_DO_WRITE;
    world_node rest = {.life = WORLD_DEAD, .record = node->record};
    if (sent) {
        rest.pending = node->pending;
        rest.current = node->current;
        rest.write = node->write;
        rest.self = node->self;
    }
    *node = rest;
}

/* How many faults an event is: what must follow on a death is none. */
static uint8_t faults_of(const world *w, world_event event, int i)
{
    if (event < WORLD_ACT_UNHEARD)
        return 0;
    if (event == WORLD_LEASE_ENDS)
        return w->nodes[i].life != WORLD_DEAD;
    if (event == WORLD_QUIT_LOST || event == WORLD_QUIT_LOST_2) {
        int lost = (i + (event == WORLD_QUIT_LOST ? 1 : 2)) % WORLD_NODES;
        return w->nodes[lost].life != WORLD_DEAD || w->nodes[lost].record.waits ||
               rank_of(&w->nodes[i].last, lost) < 0;
    }
    return 1;
}

static bool is_in_round(const world_node *node)
{
    return node->phase == ROUND_RUNS || node->phase == ROUND_LEAVES;
}

static bool has_absences(const world_state *state)
{
    uint8_t any = 0;
    for (int i = 0; i < WORLD_NODES; i++)
        any |= state->absences[i];
    return any != 0;
}

static bool can_happen(const world *w, world_event event, int i)
{
    const world_node *node = &w->nodes[i];
    bool lives = node->life == WORLD_LIVES, idle = lives && node->pending == ROUND_DO_WAIT;
    if (faults_of(w, event, i) > w->faults)
        return false;
    switch (event) {
    case WORLD_START: /* a, b, c: they differ by that alone */
        return node->life == WORLD_UNBORN && (i == 0 || w->nodes[i - 1].life != WORLD_UNBORN);
    case WORLD_LOOK:
        return idle && node->phase != ROUND_CLOSED;
    case WORLD_LOOK_STATE: /* else it does no more than after a look at all nodes */
        return idle && node->phase != ROUND_CLOSED && node->put.there && !node->record.there;
    case WORLD_ACT:
        return node->pending != ROUND_DO_WAIT;
    case WORLD_ACT_UNHEARD:
        return lives && node->pending == ROUND_DO_PUT;
    case WORLD_LEAVE:
        return idle && node->phase == ROUND_LEAVES;
    case WORLD_UNMET:
        return idle && node->ranks > 0 && is_in_round(node) &&
               round_meeting_fails(w, &node->last) &&
               (!round_meeting_has_unreachable(w, &node->last) || node->unreachable ||
                rank_of(&node->last, i) == 0 || w->nodes[node->last.members[0]].unreachable);
    case WORLD_RETRY:
        return i == 0 && !w->late && has_absences(&w->state);
    case WORLD_EXPIRE:
        return idle && (!node->valid || !node->record.there) &&
               (node->phase == ROUND_RUNS || node->phase == ROUND_AGREES);
    case WORLD_QUIT:
    case WORLD_QUIT_LOST:
    case WORLD_QUIT_LOST_2:
        return idle && is_in_round(node);
    case WORLD_LEASE_ENDS:
        return node->record.there;
    case WORLD_DIES:
    case WORLD_STOPS:
        return lives;
    case WORLD_CLOSE:
        return idle && node->phase == ROUND_RUNS && !node->closing;
    case WORLD_EVENTS:
        break;
    }
    return false;
}

bool world_move(const world *from, world_event event, int node, const round_rules *rules, world *to,
                const char **broken)
{
    static const round_view all; /* not NULL: at all nodes */
    if (!can_happen(from, event, node))
        return false;
    *to = *from;
    *broken = NULL;
    to->faults = (uint8_t)(to->faults - faults_of(from, event, node));
    round_event look = {.kind = ROUND_EVENT_VIEW, .view = event == WORLD_LOOK_STATE ? NULL : &all};
    switch (event) {
    case WORLD_START:
        to->nodes[node].life = WORLD_LIVES;
        to->nodes[node].self.waits = 1;
        break;
    case WORLD_LOOK:
    case WORLD_LOOK_STATE:
        step(to, node, &look, rules);
        break;
    case WORLD_RETRY:
        to->late = 1;
        break;
    case WORLD_UNMET:
        leave_unmet(to, node, rules);
        break;
    case WORLD_ACT:
    case WORLD_ACT_UNHEARD:
        *broken = act(to, node, event == WORLD_ACT, rules);
        break;
    case WORLD_LEAVE:
    case WORLD_QUIT:
        leave(to, node, node, rules);
        break;
    case WORLD_QUIT_LOST:
        leave(to, node, (node + 1) % WORLD_NODES, rules);
        break;
    case WORLD_QUIT_LOST_2:
        leave(to, node, (node + 2) % WORLD_NODES, rules);
        break;
    case WORLD_EXPIRE:
        step(to, node, &(round_event){.kind = ROUND_EVENT_EXPIRED, .reason = ""}, rules);
        break;
    case WORLD_LEASE_ENDS:
        remove_record(to, node);
        break;
    case WORLD_STOPS:
        remove_record(to, node);
        die(to, node);
        to->nodes[node].pending = ROUND_DO_WAIT;
        break;
    case WORLD_DIES:
        die(to, node);
        break;
    case WORLD_CLOSE:
        step(to, node, &(round_event){.kind = ROUND_EVENT_CLOSE, .reason = ""}, rules);
        break;
    case WORLD_EVENTS:
        return false;
    }
    return true;
}

/* Both nodes' ranks are in one round, of the same members. */
static bool run_together(const world_node *a, const world_node *b)
{
    if (a->ranks != b->ranks || a->last.n != b->last.n)
        return false;
    for (int i = 0; i < a->last.n; i++)
        if (a->last.members[i] != b->last.members[i])
            return false;
    return true;
}

/* A round in which every member's ranks are: it can make a step. */
static bool is_live(const world *w, int node)
{
    const world_node *own = &w->nodes[node];
    if (round_meeting_fails(w, &own->last))
        return false;
    for (int i = 0; i < own->last.n; i++)
        if (!run_together(own, &w->nodes[own->last.members[i]]))
            return false;
    return own->ranks > 0;
}

const char *world_check(const world *w)
{
    const world_node *live = NULL;
    for (int i = 0; i < WORLD_NODES; i++) {
        const world_node *node = &w->nodes[i];
        if (node->ranks > 0 && rank_of(&node->last, i) < 0)
            return "a node runs a round that it is not in";
        if (node->ranks > w->state.round)
            return "a node runs a round that is not there";
        if (!is_live(w, i))
            continue;
        if (live != NULL && !run_together(live, node))
            return "two rounds live";
        live = node;
    }
    return NULL;
}

/* One turn of every node, as its thread does it, without faults. */
static const char *turn_all(world *w, const round_rules *rules)
{
    static const world_event order[] = {WORLD_EXPIRE, WORLD_LOOK, WORLD_ACT, WORLD_LEAVE,
                                        WORLD_UNMET};
    const char *broken = NULL;
    for (int i = 0; i < WORLD_NODES; i++) {
        const world_node *node = &w->nodes[i];
        if (node->life == WORLD_DEAD && node->pending == ROUND_DO_WAIT && node->record.there)
            remove_record(w, i);
        for (size_t k = 0; k < sizeof order / sizeof order[0]; k++) {
            world next;
            if (!world_move(w, order[k], i, rules, &next, &broken))
                continue;
            *w = next;
            if (broken != NULL || (broken = world_check(w)) != NULL)
                return broken;
        }
    }
    return NULL;
}

/* Until nothing changes. */
static const char *turn_on(world *w, const round_rules *rules)
{
    for (int i = 0; i < 48; i++) {
        world before = *w;
        const char *broken = turn_all(w, rules);
        if (broken != NULL)
            return broken;
        if (memcmp(&before, w, sizeof before) == 0)
            break;
    }
    return NULL;
}

/* Those that reach each other train without the others: enough of them at once, and all of them
 * after a few times for which somebody is left out. */
static const char *settle_apart(world *w, const round_rules *rules)
{
    enum { RETRIES = 8 };
    const char *broken = NULL;
    int most = round_meeting_most(w);
    if (most < rules->min)
        return NULL;
    for (int retries = 0; retries <= RETRIES && broken == NULL && !w->state.closed; retries++) {
        int running = 0;
        for (int i = 0; i < WORLD_NODES; i++)
            running += is_live(w, i);
        if (running < rules->min)
            return "one that nobody reaches keeps the others from going on";
        if (running >= (most < rules->max ? most : rules->max) ||
            w->nodes[w->state.members[0]].unreachable)
            return NULL;
        w->late = 1;
        broken = turn_on(w, rules);
    }
    return broken != NULL || w->state.closed ? broken : "who is left out stays out";
}

const char *world_settle(world *w, const round_rules *rules)
{
    int living = 0, running = 0, round = 0;
    const char *broken = turn_on(w, rules);
    if (broken != NULL)
        return broken;
    for (int i = 0; i < WORLD_NODES; i++) {
        const world_node *node = &w->nodes[i];
        if (node->life != WORLD_LIVES)
            continue;
        living++;
        if (w->state.closed && node->phase != ROUND_CLOSED)
            return "a node does not hear that the job is closed";
        running += node->ranks > 0 && (round == 0 || node->ranks == round);
        round = node->ranks > 0 ? node->ranks : round;
    }
    if (!w->state.closed && (round_meeting_most(w) < living || has_absences(&w->state)))
        return settle_apart(w, rules);
    if (w->state.closed || living < rules->min)
        return running == 0 ? NULL : "ranks go on without a job";
    if (running < (living < rules->max ? living : rules->max))
        return "nodes wait, and nothing comes";
    return NULL;
}
