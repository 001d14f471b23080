/* The rounds of an elastic job: every order in which three nodes, their leases and the service can
 * act, without a socket (tests/support/round_world.h). */
#include "base/digest.h"
#include "base/random.h"
#include "tests/support/facts.h"
#include "tests/support/round_world.h"
#include "tests/support/suite.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SLOTS = 1 << 22 };

/* All worlds that were seen, in the order in which they were; `slots` finds them. */
typedef struct visits {
    struct visit {
        world w;
        int from;
        uint8_t event, node;
    } * worlds;
    int n, capacity;
    int *slots; /* index + 1; 0: free */
} visits;

static void add(visits *all, const world *w, int from, world_event event, int node)
{
    uint64_t hash = fnv1a(FNV1A_START, w, sizeof *w), slot = (hash ^ hash >> 29) % SLOTS;
    for (; all->slots[slot] != 0; slot = (slot + 1) % SLOTS)
        if (memcmp(&all->worlds[all->slots[slot] - 1].w, w, sizeof *w) == 0)
            return;
    ck_assert_int_lt(all->n, SLOTS / 4 * 3);
    if (all->n == all->capacity) {
        all->capacity = all->capacity > 0 ? 2 * all->capacity : 1024;
        all->worlds = realloc(all->worlds, (size_t)all->capacity * sizeof *all->worlds);
        ck_assert_ptr_nonnull(all->worlds);
    }
    all->worlds[all->n] = (struct visit){*w, from, (uint8_t)event, (uint8_t)node};
    all->slots[slot] = ++all->n;
}

/* How the world came about. */
static void print_path(const visits *all, int at)
{
    if (all->worlds[at].from < 0)
        return;
    print_path(all, all->worlds[at].from);
    printf("  node %c %s\n", 'a' + all->worlds[at].node, world_event_names[all->worlds[at].event]);
}

static void fail_at(const visits *all, int at, world_event event, int node, const char *broken)
{
    print_path(all, at);
    if (event < WORLD_EVENTS)
        printf("  node %c %s\n", 'a' + node, world_event_names[event]);
    fflush(stdout);
    ck_abort_msg("%s", broken);
}

/* All that can follow on a world. */
static void expand(visits *all, int at, const round_rules *rules)
{
    for (int node = 0; node < WORLD_NODES; node++)
        for (world_event event = 0; event < WORLD_EVENTS; event++) {
            world before = all->worlds[at].w, after;
            const char *broken = NULL;
            if (!world_move(&before, event, node, rules, &after, &broken))
                continue;
            if (broken == NULL)
                broken = world_check(&after);
            if (broken != NULL)
                fail_at(all, at, event, node, broken);
            add(all, &after, at, event, node);
        }
}

/* How much is walked through. */
typedef struct extent {
    int nodes, faults;
    int unreachable; /* of the nodes, the last ones */
    int apart; /* n: the ranks of the nth node and of the one after it do not meet; 0: all do */
    int runs;  /* it begins with a round of so many nodes */
    int limit; /* worlds, the nearest first; 0: all */
    int every; /* from one of so many it is seen whether all goes on by itself */
    round_rules rules;
} extent;

static world first_world(const extent *e)
{
    world first = {.faults = (uint8_t)e->faults};
    const char *broken = NULL;
    for (int i = e->nodes; i < WORLD_NODES; i++)
        first.nodes[i].life = WORLD_DEAD;
    for (int i = e->nodes - e->unreachable; i < e->nodes; i++)
        first.nodes[i].unreachable = 1;
    if (e->apart > 0) {
        first.nodes[e->apart - 1].apart = (uint8_t)(1 << e->apart);
        first.nodes[e->apart].apart = (uint8_t)(1 << (e->apart - 1));
    }
    for (int i = 0; i < e->runs && broken == NULL; i++) {
        world next;
        ck_assert(world_move(&first, WORLD_START, i, &e->rules, &next, &broken));
        first = next;
        broken = world_settle(&first, &e->rules);
    }
    ck_assert_msg(broken == NULL, "%s", broken);
    return first;
}

static void explore(const extent *e)
{
    visits all = {.slots = calloc(SLOTS, sizeof(int))};
    world first = first_world(e);
    ck_assert_ptr_nonnull(all.slots);
    add(&all, &first, -1, WORLD_EVENTS, 0);
    int i = 0;
    for (; i < all.n && (e->limit == 0 || i < e->limit); i++) {
        expand(&all, i, &e->rules);
        if (i % e->every != 0)
            continue;
        world settled = all.worlds[i].w;
        const char *broken = world_settle(&settled, &e->rules);
        if (broken != NULL)
            fail_at(&all, i, WORLD_EVENTS, 0, broken);
    }
    printf("%d nodes, %d unreachable, %d apart, rounds of %d to %d, %d faults: %d worlds, %s\n",
           e->nodes, e->unreachable, 2 * (e->apart > 0), e->rules.min, e->rules.max, e->faults, i,
           i == all.n ? "all" : "the nearest");
    free(all.worlds);
    free(all.slots);
}

/* Far from the first world: one path of many events, over and over. */
static void walk(const extent *e, int paths)
{
    enum { MOVES = 150 };
    mt19937 random;
    mt19937_init(&random, 1);
    for (int path = 0; path < paths; path++) {
        visits all = {.slots = NULL};
        struct visit worlds[MOVES + 1] = {{.w = first_world(e), .from = -1}};
        all.worlds = worlds;
        for (int moves = 0; all.n < MOVES && moves < 20 * MOVES; moves++) {
            world_event event = (world_event)(mt19937_u32(&random) % WORLD_EVENTS);
            int node = (int)(mt19937_u32(&random) % WORLD_NODES);
            const char *broken = NULL;
            struct visit *next = &worlds[all.n + 1];
            if (!world_move(&worlds[all.n].w, event, node, &e->rules, &next->w, &broken))
                continue;
            next->from = all.n++;
            next->event = (uint8_t)event;
            next->node = (uint8_t)node;
            broken = broken != NULL ? broken : world_check(&next->w);
            if (broken != NULL)
                fail_at(&all, all.n, WORLD_EVENTS, 0, broken);
        }
        const char *broken = world_settle(&worlds[all.n].w, &e->rules);
        if (broken != NULL)
            fail_at(&all, all.n, WORLD_EVENTS, 0, broken);
    }
}

static const round_rules any = {.min = 1, .max = 3, .last_call_ms = 1000},
                         at_least_two = {.min = 2, .max = 3, .last_call_ms = 1000},
                         no_spare = {.min = 1, .max = 2, .last_call_ms = 1000},
                         four = {.min = 2, .max = 4, .last_call_ms = 1000};

START_TEST(every_order_of_events_keeps_the_rules)
{
    explore(&(extent){.nodes = 3, .faults = 0, .every = 1, .rules = any});
    explore(&(extent){.nodes = 2, .faults = 1, .every = 1, .rules = any});
    explore(&(extent){.nodes = 3, .faults = 1, .limit = 60000, .every = 8, .rules = any});
    explore(&(extent){.nodes = 3, .faults = 0, .every = 8, .rules = no_spare});
    explore(&(extent){.nodes = 3, .faults = 0, .every = 8, .rules = at_least_two});
    explore(
        &(extent){.nodes = 3, .faults = 1, .runs = 3, .limit = 60000, .every = 8, .rules = any});
    explore(&(extent){
        .nodes = 3, .faults = 1, .unreachable = 1, .limit = 60000, .every = 8, .rules = any});
    explore(&(extent){.nodes = 3,
                      .faults = 1,
                      .unreachable = 1,
                      .runs = 2,
                      .limit = 30000,
                      .every = 8,
                      .rules = at_least_two});
    explore(
        &(extent){.nodes = 3, .faults = 1, .apart = 1, .limit = 30000, .every = 8, .rules = any});
    explore(&(extent){
        .nodes = 3, .faults = 1, .apart = 2, .limit = 30000, .every = 8, .rules = at_least_two});
    explore(
        &(extent){.nodes = 4, .apart = 2, .runs = 2, .limit = 30000, .every = 8, .rules = four});
}
END_TEST

START_TEST(long_paths_with_many_faults_keep_the_rules)
{
    walk(&(extent){.nodes = 3, .faults = 6, .rules = any}, 1000);
    walk(&(extent){.nodes = 3, .faults = 6, .rules = no_spare}, 500);
}
END_TEST

START_TEST(every_order_with_a_fault_keeps_the_rules)
{
    explore(&(extent){.nodes = 3, .faults = 1, .every = 16, .rules = any});
    explore(&(extent){.nodes = 2, .faults = 3, .every = 16, .rules = any});
    explore(&(extent){.nodes = 3, .faults = 1, .every = 16, .rules = no_spare});
    explore(
        &(extent){.nodes = 3, .faults = 2, .runs = 3, .limit = 300000, .every = 16, .rules = any});
    explore(&(extent){.nodes = 4,
                      .faults = 2,
                      .unreachable = 1,
                      .runs = 3,
                      .limit = 200000,
                      .every = 16,
                      .rules = four});
    explore(&(extent){
        .nodes = 4, .faults = 2, .unreachable = 1, .limit = 200000, .every = 16, .rules = four});
    for (int pair = 1; pair <= 3; pair++) {
        explore(&(extent){
            .nodes = 4, .faults = 1, .apart = pair, .limit = 60000, .every = 16, .rules = four});
        walk(&(extent){.nodes = 4, .faults = 4, .apart = pair, .rules = four}, 2000);
    }
    walk(&(extent){.nodes = 3, .faults = 6, .rules = any}, 20000);
    walk(&(extent){.nodes = 4, .faults = 6, .unreachable = 1, .rules = four}, 5000);
}
END_TEST

/* A service that was started anew has forgotten a round, which may live. */
START_TEST(a_lost_state_ends_who_knows_better)
{
    const round_rules rules = {.min = 1, .max = 3};
    round_node self = {.id = "a"}, nodes[1] = {{.id = "a", .waits = true, .round = 4}};
    round_view view = {.nodes = nodes, .n = 1};
    round_machine machine;
    round_action action;
    round_machine_init(&machine, &rules, &self);
    machine.self.round = 4;
    machine.last = (round_state){.round = 4, .members = calloc(1, sizeof self), .n = 1};
    const round_event event = {.kind = ROUND_EVENT_VIEW, .view = &view};
    ck_assert_int_eq(round_step(&machine, &event, 1000, &action), STATUS_OK);
    ck_assert_int_eq(action.kind, ROUND_DO_END);
    ck_assert_int_eq(action.ending, ROUND_BADLY);
    ASSERT_FACTS(action.reason, "lost the job's state");
    ck_assert_int_eq(machine.phase, ROUND_CLOSED);
    round_machine_free(&machine);
}
END_TEST

/* Nodes b and c are left out of a's round. Then b tries again. */
START_TEST(an_absent_node_tries_again_alone)
{
    const round_rules rules = {.min = 1, .max = 3};
    round_absence absences[] = {{.id = "b", .times = 1}, {.id = "c", .times = 1}};
    round_node self = {.id = "c"}, members[] = {{.id = "a"}, {.id = "b"}},
               nodes[] = {{.id = "a", .round = 1},
                          {.id = "b", .order = 1, .waits = true},
                          {.id = "c", .order = 2, .waits = true}};
    round_view view = {
        .state = {.round = 1, .members = members, .n = 1, .absences = absences, .n_absences = 2},
        .nodes = nodes,
        .n = 3};
    const round_event event = {.kind = ROUND_EVENT_VIEW, .view = &view};
    round_machine machine;
    round_action action;
    round_machine_init(&machine, &rules, &self);
    ck_assert_int_eq(round_step(&machine, &event, 1000, &action), STATUS_OK);
    ck_assert_int_eq(action.kind, ROUND_DO_WAIT);
    ck_assert_int_eq(action.until_ms, 1000 + ROUND_ABSENCE_MS);
    ck_assert_int_eq(round_step(&machine, &event, action.until_ms, &action), STATUS_OK);
    ck_assert(!nodes[1].left_out && nodes[2].left_out);
    view.state.round = nodes[1].round = 2;
    view.state.n = 2;
    nodes[1].waits = false;
    ck_assert_int_eq(round_step(&machine, &event, 10000, &action), STATUS_OK);
    ck_assert(nodes[2].left_out);
    ck_assert_int_eq(action.until_ms, 10000 + ROUND_ABSENCE_MS);
    round_machine_free(&machine);
}
END_TEST

/* Nodes that come later than the last call are not waited for. */
START_TEST(the_last_call_begins_when_enough_have_come)
{
    round_node self = {.id = "a"},
               nodes[] = {{.id = "a", .waits = true}, {.id = "b", .order = 1, .waits = true}};
    round_view view = {.nodes = nodes, .n = 1};
    const round_event event = {.kind = ROUND_EVENT_VIEW, .view = &view};
    round_machine machine;
    round_action action;
    round_machine_init(&machine, &at_least_two, &self);
    ck_assert_int_eq(round_step(&machine, &event, 4000, &action), STATUS_OK);
    ck_assert(action.kind == ROUND_DO_WAIT && action.until_ms == INT64_MAX);
    view.n = 2;
    ck_assert_int_eq(round_step(&machine, &event, 5000, &action), STATUS_OK);
    ck_assert(action.kind == ROUND_DO_WAIT && action.until_ms == 6000);
    ck_assert_int_eq(round_step(&machine, &event, 6000, &action), STATUS_OK);
    ck_assert(action.kind == ROUND_DO_WRITE && action.state.round == 1 && action.state.n == 2);
    round_action_free(&action);
    round_machine_free(&machine);
}
END_TEST

/* Somebody else has written it. */
START_TEST(a_closed_state_without_a_round_is_not_success)
{
    const round_rules rules = {.min = 1, .max = 3};
    round_node self = {.id = "a"};
    round_view view = {.state = {.closed = true, .ending = ROUND_WELL}};
    round_machine machine;
    round_action action;
    round_machine_init(&machine, &rules, &self);
    const round_event event = {.kind = ROUND_EVENT_VIEW, .view = &view};
    ck_assert_int_eq(round_step(&machine, &event, 1000, &action), STATUS_OK);
    ck_assert_int_eq(action.kind, ROUND_DO_END);
    ck_assert_int_eq(action.ending, ROUND_BADLY);
}
END_TEST

int main(int argc, char **argv)
{
    bool all = argc > 1 && strcmp(argv[1], "--all") == 0;
    Suite *suite = suite_create("round");
    TCase *core = suite_case(suite, "core", all ? 280 : 60);
    if (all) {
        tcase_add_test(core, every_order_with_a_fault_keeps_the_rules);
        return suite_run(suite);
    }
    tcase_add_test(core, a_lost_state_ends_who_knows_better);
    tcase_add_test(core, an_absent_node_tries_again_alone);
    tcase_add_test(core, the_last_call_begins_when_enough_have_come);
    tcase_add_test(core, a_closed_state_without_a_round_is_not_success);
    tcase_add_test(core, every_order_of_events_keeps_the_rules);
    tcase_add_test(core, long_paths_with_many_faults_keep_the_rules);
    return suite_run(suite);
}
