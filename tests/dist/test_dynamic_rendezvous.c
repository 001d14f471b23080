/* Nodes of an elastic job, each a thread, at a service in this process's memory, by a clock that
 * stands while one of them computes. */
#include "dist/elastic/rdzv.h"
#include "tests/support/facts.h"
#include "tests/support/no_memory.h"
#include "tests/support/suite.h"
#include "tests/support/virtual_clock.h"

#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <string.h>

enum { NODES = 4, KEEP_ALIVE_MS = 1000, MISSES = 3, SOON_MS = 8000 };

/* The service. A record lives until its lease's end. */
typedef struct entry {
    char id[ROUND_ID_BYTES];
    char *value; /* NULL: it is free */
    int64_t order, end_ns;
} entry;

static struct service {
    pthread_mutex_t lock;
    int64_t revision, state_revision;
    char *state;
    entry entries[NODES];
    char cut[ROUND_ID_BYTES]; /* the node that does not reach it; "": all do */
    bool refuses;
    int64_t delay_ms;   /* of each call */
    int64_t renewal_ms; /* of a renewal, beside that */
    int64_t timeout_ms; /* that the latest node gives a call */
} service = {.lock = PTHREAD_MUTEX_INITIALIZER, .revision = 1};

typedef struct session {
    rdzv_service_options options;
    char id[ROUND_ID_BYTES];
} session;

static status fake_open(const rdzv_service_options *options, void **out)
{
    session *s = calloc(1, sizeof *s);
    ck_assert_ptr_nonnull(s);
    s->options = *options;
    snprintf(s->id, sizeof s->id, "%s", options->node_id);
    pthread_mutex_lock(&service.lock);
    service.timeout_ms = options->timeout_ms;
    pthread_mutex_unlock(&service.lock);
    *out = s;
    return STATUS_OK;
}

/* With it a node's thread ends. */
static void fake_close(void *self)
{
    free(self);
    virtual_clock_leave();
}

/* Locked: what the looks of all nodes wait for. */
static void note_change(void)
{
    service.revision++;
    virtual_clock_change();
}

static void wait_ms(int wake_fd, int64_t ms)
{
    virtual_clock_wait(wake_fd, virtual_clock_deadline_ns(ms), INT64_MAX);
}

/* Takes the lock if the node reaches the service. */
static status enter(const session *s)
{
    wait_ms(-1, service.delay_ms);
    pthread_mutex_lock(&service.lock);
    bool cut = strcmp(service.cut, s->id) == 0, refuses = service.refuses;
    for (int i = 0; i < NODES; i++) {
        entry *e = &service.entries[i];
        if (e->value != NULL && virtual_clock_passed(e->end_ns)) {
            free(e->value);
            e->value = NULL;
            note_change();
        }
    }
    if (!cut && !refuses)
        return STATUS_OK;
    pthread_mutex_unlock(&service.lock);
    return refuses ? FAIL(STATUS_REFUSED, "nobody listens at 127.0.0.1:29400")
                   : FAIL(STATUS_TIMEOUT, "127.0.0.1:29400 has not answered");
}

static entry *entry_of(const char *id, bool create)
{
    entry *e = NULL;
    for (int i = 0; i < NODES; i++)
        if (service.entries[i].value != NULL && strcmp(service.entries[i].id, id) == 0)
            return &service.entries[i];
    for (int i = 0; i < NODES && create && e == NULL; i++)
        if (service.entries[i].value == NULL)
            e = &service.entries[i];
    if (e != NULL)
        snprintf(e->id, sizeof e->id, "%s", id);
    return e;
}

static void copy_out(rdzv_scope scope, rdzv_view *out)
{
    *out = (rdzv_view){.revision = service.revision,
                       .state = service.state != NULL ? strdup(service.state) : NULL,
                       .state_bytes = service.state != NULL ? strlen(service.state) : 0,
                       .state_revision = service.state_revision,
                       .nodes = calloc(NODES, sizeof *out->nodes)};
    for (int i = 0; i < NODES && scope == RDZV_ALL; i++) {
        const entry *e = &service.entries[i];
        if (e->value != NULL)
            out->nodes[out->n++] = (rdzv_record){strdup(e->id), strdup(e->value), e->order};
    }
}

/* Locked: the first end of a lease, if it is before `end_ns`. */
static int64_t first_end_ns(int64_t end_ns)
{
    for (int i = 0; i < NODES; i++)
        if (service.entries[i].value != NULL && service.entries[i].end_ns < end_ns)
            end_ns = service.entries[i].end_ns;
    return end_ns;
}

static status fake_look(void *self, rdzv_scope scope, int64_t after, int64_t wait_ms,
                        rdzv_view *out)
{
    session *s = self;
    int64_t end_ns = virtual_clock_deadline_ns(wait_ms);
    for (;;) {
        struct pollfd wake = {.fd = s->options.wake_fd, .events = POLLIN};
        int64_t seen = virtual_clock_changes();
        bool last = virtual_clock_passed(end_ns) || poll(&wake, 1, 0) > 0;
        status st = enter(s);
        if (st != STATUS_OK)
            return st;
        if (service.revision > after || last) {
            copy_out(scope, out);
            pthread_mutex_unlock(&service.lock);
            return STATUS_OK;
        }
        int64_t until_ns = first_end_ns(end_ns);
        pthread_mutex_unlock(&service.lock);
        virtual_clock_wait(s->options.wake_fd, until_ns, seen);
    }
}

static status fake_set_state(void *self, int64_t state_revision, const char *state, bool *set)
{
    status st = enter(self);
    if (st != STATUS_OK)
        return st;
    *set = state_revision == service.state_revision;
    if (*set) {
        free(service.state);
        service.state = strdup(state);
        note_change();
        service.state_revision = service.revision;
    }
    pthread_mutex_unlock(&service.lock);
    return STATUS_OK;
}

static status fake_put_node(void *self, const char *value, bool runs_nothing)
{
    session *s = self;
    status st = enter(s);
    (void)runs_nothing;
    if (st != STATUS_OK)
        return st;
    bool isnew = entry_of(s->id, false) == NULL;
    entry *e = entry_of(s->id, true);
    note_change();
    if (isnew)
        e->order = service.revision;
    else
        free(e->value);
    e->value = strdup(value);
    e->end_ns = virtual_clock_deadline_ns(s->options.ttl_ms);
    pthread_mutex_unlock(&service.lock);
    return STATUS_OK;
}

static status fake_keep_alive(void *self)
{
    session *s = self;
    wait_ms(-1, service.renewal_ms);
    status st = enter(s);
    if (st != STATUS_OK)
        return st;
    entry *e = entry_of(s->id, false);
    if (e != NULL)
        e->end_ns = virtual_clock_deadline_ns(s->options.ttl_ms);
    else
        st = FAIL(STATUS_INVALID, "the lease has ended");
    pthread_mutex_unlock(&service.lock);
    return st;
}

static status fake_remove_node(void *self)
{
    session *s = self;
    status st = enter(s);
    if (st != STATUS_OK)
        return st;
    entry *e = entry_of(s->id, false);
    if (e != NULL) {
        free(e->value);
        e->value = NULL;
        note_change();
    }
    pthread_mutex_unlock(&service.lock);
    return STATUS_OK;
}

static const rdzv_ops fake = {
    .name = "c10d",
    .ends_with_its_host = true,
    .open = fake_open,
    .close = fake_close,
    .look = fake_look,
    .set_state = fake_set_state,
    .put_node = fake_put_node,
    .keep_alive = fake_keep_alive,
    .remove_node = fake_remove_node,
};

/* Of node `letter`, "hostA_1_1". */
static rdzv_handle *start(char letter, rdzv_options options)
{
    static const rdzv_clock clock = {virtual_clock_ns, wait_ms};
    rdzv_handle *rdzv = NULL;
    options.backend = &fake;
    options.clock = &clock;
    options.endpoints = "127.0.0.1:29400";
    options.run_id = "job";
    options.self.nproc = 2;
    options.self.port = 1000 + letter;
    snprintf(options.self.address, sizeof options.self.address, "127.0.0.1");
    snprintf(options.self.id, sizeof options.self.id, "host%c_1_1", letter);
    if (options.keep_alive_ms == 0)
        options.keep_alive_ms = KEEP_ALIVE_MS;
    options.keep_alive_misses = MISSES;
    if (options.join_ms == 0)
        options.join_ms = SOON_MS;
    virtual_clock_enter();
    ck_assert_int_eq(rdzv_open(&options, &rdzv), STATUS_OK);
    return rdzv;
}

/* Its thread may wait for time. */
static void stop(rdzv_handle *rdzv)
{
    virtual_clock_leave();
    rdzv_close(rdzv);
    virtual_clock_enter();
}

/* The news, as soon as they are of that phase. */
static rdzv_news await_phase(rdzv_handle *rdzv, rdzv_phase phase, int64_t timeout_ms)
{
    int64_t end_ns = virtual_clock_deadline_ns(timeout_ms);
    for (;;) {
        rdzv_news news = rdzv_take_news(rdzv);
        if (news.phase == phase)
            return news;
        ck_assert_msg(!virtual_clock_passed(end_ns), "phase %d in place of %d: %s", news.phase,
                      phase, news.reason);
        virtual_clock_wait(rdzv_fd(rdzv), end_ns, INT64_MAX);
    }
}

static void assert_round(rdzv_handle *rdzv, int64_t round, int n, int node_rank)
{
    rdzv_news news = await_phase(rdzv, RDZV_RUNS, SOON_MS);
    ck_assert_int_eq(news.now->round, round);
    ck_assert_int_eq(news.now->n, n);
    ck_assert_int_eq(news.node_rank, node_rank);
    ck_assert(!virtual_clock_passed(news.valid_until_ns));
}

static const rdzv_options two = {.min_nodes = 2, .max_nodes = 2},
                          one_or_two = {.min_nodes = 1, .max_nodes = 2};

START_TEST(nodes_form_a_round_and_close_the_job)
{
    rdzv_handle *a = start('A', two), *b = start('B', two);
    rdzv_news news = await_phase(a, RDZV_RUNS, SOON_MS);
    const char *host = news.node_rank == 0 ? "hostA_1_1" : "hostB_1_1";
    ck_assert_str_eq(news.now->members[0].id, host);
    ck_assert_int_eq(news.now->members[1].nproc, 2);
    assert_round(b, 1, 2, 1 - news.node_rank);
    rdzv_end_job(a, ROUND_WELL, "all ranks have ended well");
    ck_assert_str_eq(await_phase(b, RDZV_CLOSED, SOON_MS).reason, "all ranks have ended well");
    await_phase(a, RDZV_CLOSED, SOON_MS);
    stop(a);
    stop(b);
    rdzv_handle *late = start('C', one_or_two);
    ck_assert_str_eq(await_phase(late, RDZV_CLOSED, SOON_MS).reason, "all ranks have ended well");
    stop(late);
}
END_TEST

START_TEST(a_newcomer_is_taken_in)
{
    rdzv_handle *a = start('A', one_or_two);
    assert_round(a, 1, 1, 0);
    rdzv_handle *b = start('B', one_or_two);
    ASSERT_FACTS(await_phase(a, RDZV_LEAVES, SOON_MS).reason, "hostB", "joins");
    ck_assert_int_eq(rdzv_take_news(a).ending, ROUND_WELL);
    rdzv_leave(a, &(round_departure){.restarts = 3});
    assert_round(a, 2, 2, 0);
    assert_round(b, 2, 2, 1);
    ck_assert_int_eq(rdzv_take_news(b).now->restarts, 3);
    stop(b);
    ASSERT_FACTS(await_phase(a, RDZV_LEAVES, SOON_MS).reason, "node 1", "hostB", "is lost");
    ck_assert_int_eq(rdzv_take_news(a).ending, ROUND_BADLY);
    stop(a);
}
END_TEST

START_TEST(a_node_that_is_cut_off_leaves_before_the_others_go_on)
{
    rdzv_handle *a = start('A', two), *b = start('B', two);
    await_phase(a, RDZV_RUNS, SOON_MS);
    await_phase(b, RDZV_RUNS, SOON_MS);
    stop(a);
    a = start('C', one_or_two);
    ASSERT_FACTS(await_phase(b, RDZV_LEAVES, SOON_MS).reason, "hostA", "is lost");
    rdzv_leave(b, &(round_departure){0});
    assert_round(b, 2, 2, 0);
    assert_round(a, 2, 2, 1);

    pthread_mutex_lock(&service.lock);
    snprintf(service.cut, sizeof service.cut, "hostB_1_1");
    note_change();
    pthread_mutex_unlock(&service.lock);
    ASSERT_FACTS(await_phase(a, RDZV_LEAVES, SOON_MS).reason, "node 0", "hostB", "is lost");
    ck_assert(virtual_clock_passed(rdzv_take_news(b).valid_until_ns));
    ASSERT_FACTS(await_phase(b, RDZV_LEAVES, SOON_MS).reason, "lease", "has not answered");
    rdzv_leave(a, &(round_departure){0});
    assert_round(a, 3, 1, 0);
    stop(a);
    stop(b);
}
END_TEST

/* The lost one lives, and keeps its lease. */
START_TEST(a_node_named_lost_is_not_waited_for)
{
    rdzv_handle *a = start('A', one_or_two);
    assert_round(a, 1, 1, 0);
    rdzv_handle *b = start('B', one_or_two);
    const char *lost[] = {"hostB_1_1"};
    await_phase(a, RDZV_LEAVES, SOON_MS);
    rdzv_leave(a, &(round_departure){0});
    assert_round(a, 2, 2, 0);
    assert_round(b, 2, 2, 1);
    rdzv_leave(a, &(round_departure){.lost = lost, .n_lost = 1});
    assert_round(a, 3, 1, 0);
    await_phase(b, RDZV_LEAVES, SOON_MS);
    rdzv_leave(b, &(round_departure){0});
    await_phase(a, RDZV_LEAVES, SOON_MS);
    rdzv_leave(a, &(round_departure){0});
    assert_round(b, 4, 2, 1);
    stop(a);
    stop(b);
}
END_TEST

START_TEST(who_waits_in_vain_says_for_what)
{
    rdzv_options options = two;
    options.join_ms = 200;
    rdzv_handle *a = start('A', options);
    ASSERT_FACTS(await_phase(a, RDZV_FAILED, SOON_MS).reason, "no round", "1 of 2",
                 "hostA (2 ranks)");
    stop(a);
}
END_TEST

/* As one that takes 3 s of a lease of 15 s. */
START_TEST(a_slow_service_forms_rounds_and_is_named)
{
    rdzv_options options = two;
    options.keep_alive_ms = 1000;
    options.join_ms = 20000;
    service.delay_ms = 600;
    rdzv_handle *a = start('A', options), *b = start('B', options);
    await_phase(a, RDZV_RUNS, 2 * SOON_MS);
    await_phase(b, RDZV_RUNS, 2 * SOON_MS);
    stop(a);
    stop(b);
    free(service.state);
    service.state = NULL;
    options.join_ms = 1500;
    rdzv_handle *c = start('C', options);
    ASSERT_FACTS(await_phase(c, RDZV_FAILED, 2 * SOON_MS).reason, "no round", "is slow", "takes 0.",
                 "lasts 3 s", "keep_alive_interval");
    stop(c);
}
END_TEST

START_TEST(a_renewal_that_takes_longer_than_the_lease_is_named)
{
    rdzv_handle *a = start('A', one_or_two);
    await_phase(a, RDZV_RUNS, SOON_MS);
    service.renewal_ms = 4000;
    ASSERT_FACTS(await_phase(a, RDZV_LEAVES, SOON_MS).reason, "lease", "has ended", "is slow",
                 "takes 4 s");
    service.renewal_ms = 0;
    stop(a);
}
END_TEST

/* A look lasts a second, if nothing changes. */
START_TEST(a_lease_that_is_shorter_than_a_look_is_kept)
{
    rdzv_options options = one_or_two;
    options.keep_alive_ms = 200;
    rdzv_handle *a = start('A', options);
    await_phase(a, RDZV_RUNS, SOON_MS);
    virtual_clock_wait(-1, virtual_clock_deadline_ns(3000), INT64_MAX);
    assert_round(a, 1, 1, 0);
    stop(a);
}
END_TEST

/* So another endpoint can be asked before the lease ends. */
START_TEST(a_call_takes_a_third_of_a_lease_at_most)
{
    static const int64_t read_ms[] = {0, 60000, 100},
                         want_ms[] = {KEEP_ALIVE_MS, KEEP_ALIVE_MS, 100};
    static const char *const settings[] = {"=keep_alive_interval", "=keep_alive_interval",
                                           "=read_timeout"};
    rdzv_options options = two;
    options.read_ms = read_ms[_i];
    options.join_ms = 200;
    snprintf(service.cut, sizeof service.cut, "hostA_1_1");
    rdzv_handle *a = start('A', options);
    ASSERT_FACTS(await_phase(a, RDZV_FAILED, SOON_MS).reason, "has not answered", "slower",
                 settings[_i]);
    ck_assert_int_eq(service.timeout_ms, want_ms[_i]);
    stop(a);
}
END_TEST

START_TEST(a_job_without_its_store_ends)
{
    rdzv_handle *a = start('A', one_or_two);
    await_phase(a, RDZV_RUNS, SOON_MS);
    pthread_mutex_lock(&service.lock);
    service.refuses = true;
    note_change();
    pthread_mutex_unlock(&service.lock);
    ASSERT_FACTS(await_phase(a, RDZV_FAILED, SOON_MS).reason, "store is gone", "nobody listens");
    stop(a);
}
END_TEST

/* It may be this node that is cut off: it has left its round long before. */
START_TEST(a_store_that_answers_no_more_is_gone)
{
    rdzv_options options = one_or_two;
    options.join_ms = 60000;
    rdzv_handle *a = start('A', options);
    await_phase(a, RDZV_RUNS, SOON_MS);
    pthread_mutex_lock(&service.lock);
    snprintf(service.cut, sizeof service.cut, "hostA_1_1");
    note_change();
    pthread_mutex_unlock(&service.lock);
    await_phase(a, RDZV_LEAVES, SOON_MS);
    rdzv_leave(a, &(round_departure){0});
    int64_t start_ns = virtual_clock_ns();
    ASSERT_FACTS(await_phase(a, RDZV_FAILED, SOON_MS).reason, "store is gone", "cut off",
                 "has not answered");
    ck_assert_double_lt((double)(virtual_clock_ns() - start_ns) * 1e-9, 2.0);
    stop(a);
}
END_TEST

START_TEST(nonsense_at_the_service_is_named)
{
    service.state = strdup("{\"format\": 2, \"round\": -4}");
    rdzv_options options = two;
    options.join_ms = 60000; /* it is not waited for */
    rdzv_handle *a = start('A', options);
    ASSERT_FACTS(await_phase(a, RDZV_FAILED, SOON_MS).reason, "mnist_ddp/rdzv/job/state",
                 "127.0.0.1:29400", "26 bytes", "{\"format\": 2", "no number", "--rdzv-id");
    stop(a);
}
END_TEST

static void overwrite_state(const char *with)
{
    pthread_mutex_lock(&service.lock);
    free(service.state);
    service.state = with != NULL ? strdup(with) : NULL;
    note_change();
    service.state_revision = service.revision;
    pthread_mutex_unlock(&service.lock);
}

/* Those that are in a round go on; who wants another one ends, and says what lies there. */
START_TEST(a_round_goes_on_beside_nonsense)
{
    rdzv_handle *a = start('A', two), *b = start('B', two);
    await_phase(a, RDZV_RUNS, SOON_MS);
    await_phase(b, RDZV_RUNS, SOON_MS);
    overwrite_state("\x8f\xff random");
    rdzv_leave(a, &(round_departure){0});
    ASSERT_FACTS(await_phase(a, RDZV_FAILED, SOON_MS).reason, "mnist_ddp/rdzv/job/state", "9 bytes",
                 "--rdzv-id");
    ck_assert_int_eq(rdzv_take_news(b).phase, RDZV_RUNS);
    stop(a);
    stop(b);
}
END_TEST

START_TEST(a_job_ends_with_its_state)
{
    rdzv_handle *a = start('A', one_or_two);
    await_phase(a, RDZV_RUNS, SOON_MS);
    overwrite_state(NULL);
    ASSERT_FACTS(await_phase(a, RDZV_LEAVES, SOON_MS).reason, "lost", "state");
    rdzv_leave(a, &(round_departure){0});
    ASSERT_FACTS(await_phase(a, RDZV_CLOSED, SOON_MS).reason, "lost the job's");
    stop(a);
}
END_TEST

/* The thread ends after it: the owner cannot be told anything else. */
START_TEST(news_for_which_memory_is_short_end_the_job)
{
    rdzv_handle *rdzv = NULL;
    const round_state endless = {.round = 1, .n = INT_MIN}; /* no memory is enough to copy it */
    const rdzv_news lost = {
        .phase = RDZV_LEAVES, .reason = "node 1 (hostB) is lost", .now = &endless};
    ck_assert_int_eq(rdzv_open(&(rdzv_options){.backend = NULL}, &rdzv), STATUS_OK);
    rdzv_leave(rdzv, &(round_departure){0});
    no_memory_begin();
    ck_assert_int_eq(rdzv_post_news(rdzv, &lost), STATUS_NO_MEMORY);
    ck_assert_int_eq(rdzv_post_news(rdzv, &lost), STATUS_NO_MEMORY);
    no_memory_end();
    rdzv_news news = rdzv_take_news(rdzv);
    ck_assert_int_eq(news.phase, RDZV_FAILED);
    ck_assert_int_eq(news.failure, STATUS_NO_MEMORY);
    ASSERT_FACTS(news.reason, "round");
    rdzv_close(rdzv);
}
END_TEST

/* The thread may have looked before it knows that its owner has left. */
START_TEST(news_of_a_round_that_was_left_are_dropped)
{
    rdzv_handle *rdzv = NULL;
    const round_state round = {.round = 1};
    const rdzv_news runs = {.phase = RDZV_RUNS, .reason = "", .now = &round};
    ck_assert_int_eq(rdzv_open(&(rdzv_options){.backend = NULL}, &rdzv), STATUS_OK);
    ck_assert_int_eq(rdzv_post_news(rdzv, &runs), STATUS_OK);
    ck_assert_int_eq(rdzv_take_news(rdzv).phase, RDZV_RUNS);
    rdzv_leave(rdzv, &(round_departure){0});
    ck_assert_int_eq(rdzv_take_news(rdzv).phase, RDZV_WAITS);
    ck_assert_int_eq(rdzv_post_news(rdzv, &runs), STATUS_OK);
    ck_assert_int_eq(rdzv_take_news(rdzv).phase, RDZV_WAITS);
    rdzv_close(rdzv);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("dynamic_rendezvous");
    virtual_clock_enter(); /* a test's own thread */
    TCase *core = suite_case(suite, "core", 20);
    tcase_add_test(core, nodes_form_a_round_and_close_the_job);
    tcase_add_test(core, a_newcomer_is_taken_in);
    tcase_add_test(core, a_node_that_is_cut_off_leaves_before_the_others_go_on);
    tcase_add_test(core, a_node_named_lost_is_not_waited_for);
    tcase_add_test(core, who_waits_in_vain_says_for_what);
    tcase_add_test(core, a_slow_service_forms_rounds_and_is_named);
    tcase_add_test(core, a_renewal_that_takes_longer_than_the_lease_is_named);
    tcase_add_test(core, a_lease_that_is_shorter_than_a_look_is_kept);
    tcase_add_loop_test(core, a_call_takes_a_third_of_a_lease_at_most, 0, 3);
    tcase_add_test(core, a_job_without_its_store_ends);
    tcase_add_test(core, a_store_that_answers_no_more_is_gone);
    tcase_add_test(core, nonsense_at_the_service_is_named);
    tcase_add_test(core, a_round_goes_on_beside_nonsense);
    tcase_add_test(core, a_job_ends_with_its_state);
    tcase_add_test(core, news_for_which_memory_is_short_end_the_job);
    tcase_add_test(core, news_of_a_round_that_was_left_are_dropped);
    return suite_run(suite);
}
