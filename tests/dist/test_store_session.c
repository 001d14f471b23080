/* The store's protocol without sockets: requests cut anywhere, waits, cancellations, random bytes.
 */
#include "dist/store/store_session.h"
#include "tests/support/suite.h"

#include <stdio.h>
#include <string.h>

enum { MAX_SESSIONS = 4 };

/* A server in small: sessions over one table, woken as the real one does it. */
static store_table *table, *queues;
static store_session sessions[MAX_SESSIONS];
static bool to_run[MAX_SESSIONS];
static size_t budget_per_turn;

static void start(void)
{
    ck_assert_int_eq(store_table_create(1 << 20, &table), STATUS_OK);
    ck_assert_int_eq(store_table_create(1 << 20, &queues), STATUS_OK);
    budget_per_turn = 1 << 20;
}

static void stop(void)
{
    for (int i = 0; i < MAX_SESSIONS; i++)
        store_session_close(&sessions[i]);
    store_table_destroy(table);
    store_table_destroy(queues);
}

static void on_set(void *ctx, store_bytes key, store_wake who)
{
    (void)ctx;
    (void)who;
    for (int i = 0; i < MAX_SESSIONS; i++) {
        store_bytes awaited;
        if (store_session_awaits(&sessions[i], &awaited) && awaited.size == key.size &&
            memcmp(awaited.data, key.data, key.size) == 0)
            to_run[i] = true;
    }
}

static status run_all(int first)
{
    to_run[first] = true;
    status st = STATUS_OK;
    for (bool any = true; any;) {
        any = false;
        for (int i = 0; i < MAX_SESSIONS; i++) {
            if (!to_run[i])
                continue;
            to_run[i] = false;
            any = true;
            const store_service service = {table, queues, on_set, NULL, NULL};
            size_t budget_bytes = budget_per_turn;
            status ran = store_session_run(&sessions[i], &service, &budget_bytes);
            to_run[i] = to_run[i] || sessions[i].pending;
            if (i == first)
                st = ran;
        }
    }
    return st;
}

static status feed(int i, const void *data, size_t size)
{
    ck_assert_int_eq(byte_buffer_append(&sessions[i].in, data, size), STATUS_OK);
    return run_all(i);
}

/* A request under construction. */
typedef struct request {
    uint8_t bytes[4096];
    size_t size;
} request;

static void put_u64(request *r, uint64_t x)
{
    store_wire_put_u64(r->bytes + r->size, x);
    r->size += 8;
}

static void put_text(request *r, const char *text)
{
    put_u64(r, strlen(text));
    memcpy(r->bytes + r->size, text, strlen(text));
    r->size += strlen(text);
}

static void put_u8(request *r, int x)
{
    r->bytes[r->size++] = (uint8_t)x;
}

static void put_greeting(request *r)
{
    put_u8(r, STORE_VALIDATE);
    store_wire_put_u32(r->bytes + r->size, STORE_MAGIC);
    r->size += 4;
}

static void greet(int i)
{
    request r = {.size = 0};
    put_greeting(&r);
    ck_assert_int_eq(feed(i, r.bytes, r.size), STATUS_OK);
    ck_assert(sessions[i].greeted);
}

/* The session has answered exactly this; takes it. */
static void expect_answer(int i, const void *want, size_t size)
{
    ck_assert_uint_eq(sessions[i].out.size, size);
    if (size > 0)
        ck_assert_int_eq(memcmp(sessions[i].out.data, want, size), 0);
    byte_buffer_consume(&sessions[i].out, size);
}

static void send_set(int i, const char *key, const char *value)
{
    request r = {.size = 0};
    put_u8(&r, STORE_SET);
    put_text(&r, key);
    put_text(&r, value);
    ck_assert_int_eq(feed(i, r.bytes, r.size), STATUS_OK);
}

/* One of each request, with what the server answers. */
static void conversation(request *in, request *out)
{
    put_greeting(in);
    put_u8(in, STORE_SET), put_text(in, "a"), put_text(in, "1");
    put_u8(in, STORE_APPEND), put_text(in, "a"), put_text(in, "23");
    put_u8(in, STORE_GET), put_text(in, "a");
    put_text(out, "123");
    put_u8(in, STORE_ADD), put_text(in, "a"), put_u64(in, 7);
    put_u64(out, 130);
    put_u8(in, STORE_COMPARE_SET), put_text(in, "a"), put_text(in, "130"), put_text(in, "x");
    put_text(out, "x");
    put_u8(in, STORE_COMPARE_SET), put_text(in, "a"), put_text(in, "130"), put_text(in, "y");
    put_text(out, "x");
    put_u8(in, STORE_COMPARE_SET), put_text(in, "new"), put_text(in, "z"), put_text(in, "y");
    put_text(out, "z");
    put_u8(in, STORE_MULTI_SET), put_u64(in, 2);
    put_text(in, "b"), put_text(in, ""), put_text(in, "c"), put_text(in, "C");
    put_u8(in, STORE_MULTI_SET), put_u64(in, 0);
    put_u8(in, STORE_MULTI_GET), put_u64(in, 3);
    put_text(in, "c"), put_text(in, "b"), put_text(in, "a");
    put_text(out, "C"), put_text(out, ""), put_text(out, "x");
    put_u8(in, STORE_CHECK), put_u64(in, 2), put_text(in, "a"), put_text(in, "b");
    put_u8(out, STORE_CHECK_READY);
    put_u8(in, STORE_CHECK), put_u64(in, 2), put_text(in, "a"), put_text(in, "new");
    put_u8(out, STORE_CHECK_NOT_READY);
    put_u8(in, STORE_WAIT), put_u64(in, 2), put_text(in, "a"), put_text(in, "c");
    put_u8(out, STORE_WAIT_ENDED);
    put_u8(in, STORE_WAIT), put_u64(in, 0);
    put_u8(out, STORE_WAIT_ENDED);
    put_u8(in, STORE_GETNUMKEYS);
    put_u64(out, 3);
    put_u8(in, STORE_DELETE_KEY), put_text(in, "b");
    put_u64(out, 1);
    put_u8(in, STORE_DELETE_KEY), put_text(in, "b");
    put_u64(out, 0);
    put_u8(in, STORE_SET), put_text(in, "c"), put_text(in, "0");
    put_u8(in, STORE_QUEUE_PUSH), put_text(in, "q"), put_text(in, "one");
    put_u8(in, STORE_QUEUE_PUSH), put_text(in, "q"), put_text(in, "");
    put_u8(in, STORE_QUEUE_LEN), put_text(in, "q");
    put_u64(out, 2);
    put_u8(in, STORE_CHECK), put_u64(in, 2), put_text(in, "a"), put_text(in, "q");
    put_u8(out, STORE_CHECK_READY);
    put_u8(in, STORE_WAIT), put_u64(in, 1), put_text(in, "q");
    put_u8(out, STORE_WAIT_ENDED);
    put_u8(in, STORE_DELETE_KEY), put_text(in, "q");
    put_u64(out, 0);
    put_u8(in, STORE_QUEUE_POP), put_text(in, "q");
    put_u64(out, 2), put_text(out, "one");
    put_u8(in, STORE_QUEUE_POP), put_text(in, "q");
    put_u64(out, 1), put_text(out, "");
    put_u8(in, STORE_QUEUE_POP), put_text(in, "q");
    put_u64(out, 0);
    put_u8(in, STORE_CHECK), put_u64(in, 1), put_text(in, "q");
    put_u8(out, STORE_CHECK_NOT_READY);
    put_u8(in, STORE_BARRIER), put_text(in, "c"), put_u64(in, 1);
    put_u8(out, STORE_WAIT_ENDED);
    put_u8(in, STORE_DELETE_KEY), put_text(in, "c");
    put_u64(out, 1);
    put_u8(in, STORE_QUEUE_PUSH), put_text(in, "q"), put_text(in, "left");
    put_u8(in, STORE_LIST_KEYS);
    put_u64(out, 1), put_text(out, "a");
    put_u8(in, STORE_PING), memcpy(in->bytes + in->size, "ping", 4), in->size += 4;
    memcpy(out->bytes + out->size, "ping", 4), out->size += 4;
    put_u8(in, STORE_CANCEL_WAIT);
    put_u8(out, STORE_WAIT_CANCELED);
}

/* The same answers however the bytes come in. */
START_TEST(requests_may_be_cut_anywhere)
{
    request in = {.size = 0}, out = {.size = 0};
    conversation(&in, &out);
    size_t piece = (size_t)_i / 2 + 1;
    budget_per_turn = _i % 2 == 0 ? 1 << 20 : 1; /* one request a turn */
    for (size_t at = 0; at < in.size; at += piece) {
        size_t n = in.size - at < piece ? in.size - at : piece;
        ck_assert_msg(feed(0, in.bytes + at, n) == STATUS_OK, "%s", status_text());
    }
    expect_answer(0, out.bytes, out.size);
    ck_assert_uint_eq(sessions[0].in.size, 0);
}
END_TEST

/* What is left waits for the next turn, and nothing more is read meanwhile. */
START_TEST(a_run_ends_with_its_budget)
{
    enum { REQUESTS = 100, VALUE = 1000, BUDGET = 10000 };
    static const char value[VALUE];
    const store_service service = {table, queues, on_set, NULL, NULL};
    size_t budget_bytes = BUDGET;
    greet(0);
    for (int i = 0; i < REQUESTS; i++) {
        char key[8];
        request r = {.size = 0};
        snprintf(key, sizeof key, "k%d", i);
        put_u8(&r, STORE_SET), put_text(&r, key), put_u64(&r, VALUE);
        ck_assert_int_eq(byte_buffer_append(&sessions[0].in, r.bytes, r.size), STATUS_OK);
        ck_assert_int_eq(byte_buffer_append(&sessions[0].in, value, VALUE), STATUS_OK);
    }
    ck_assert_int_eq(store_session_run(&sessions[0], &service, &budget_bytes), STATUS_OK);
    ck_assert_uint_eq(budget_bytes, 0);
    ck_assert_uint_ge(store_table_count(table), 1);
    ck_assert_uint_le(store_table_count(table), BUDGET / VALUE);
    ck_assert(sessions[0].pending);
    ck_assert_uint_eq(store_session_read_limit(&sessions[0]), 0);
    ck_assert_int_eq(run_all(0), STATUS_OK);
    ck_assert_uint_eq(store_table_count(table), REQUESTS);
    ck_assert(!sessions[0].pending);
}
END_TEST

START_TEST(waits_end_one_key_after_the_other)
{
    request r = {.size = 0};
    greet(0);
    greet(1);
    put_u8(&r, STORE_WAIT), put_u64(&r, 3);
    put_text(&r, "x"), put_text(&r, "y"), put_text(&r, "z");
    ck_assert_int_eq(feed(0, r.bytes, r.size), STATUS_OK);
    expect_answer(0, "", 0);
    send_set(1, "y", "");
    send_set(1, "x", "");
    ck_assert(sessions[0].waiting);
    expect_answer(0, "", 0);
    send_set(1, "z", "");
    ck_assert(!sessions[0].waiting);
    expect_answer(0, "\0", 1);
    ck_assert_uint_eq(sessions[0].in.size, 0);
}
END_TEST

START_TEST(a_wait_can_be_canceled)
{
    request r = {.size = 0};
    greet(0);
    greet(1);
    put_u8(&r, STORE_WAIT), put_u64(&r, 1), put_text(&r, "x");
    ck_assert_int_eq(feed(0, r.bytes, r.size), STATUS_OK);
    /* The cancellation alone overtakes; what follows it is answered after it. */
    request more = {.size = 0};
    put_u8(&more, STORE_CANCEL_WAIT);
    put_u8(&more, STORE_GETNUMKEYS);
    ck_assert_int_eq(feed(0, more.bytes, more.size), STATUS_OK);
    expect_answer(0, "\1\0\0\0\0\0\0\0\0", 9);
    send_set(1, "x", "");
    expect_answer(0, "", 0);
    /* In one piece with the wait, too. */
    r.size = 0;
    put_u8(&r, STORE_WAIT), put_u64(&r, 1), put_text(&r, "never");
    put_u8(&r, STORE_CANCEL_WAIT);
    ck_assert_int_eq(feed(0, r.bytes, r.size), STATUS_OK);
    expect_answer(0, "\1", 1);
}
END_TEST

/* Whoever goes on is counted once, however often others make it look. */
START_TEST(a_barrier_ends_when_all_have_come)
{
    request r = {.size = 0}, set = {.size = 0};
    put_u8(&r, STORE_BARRIER), put_text(&r, "b"), put_u64(&r, 3);
    greet(0), greet(1), greet(2);
    ck_assert_int_eq(feed(0, r.bytes, r.size), STATUS_OK);
    ck_assert_int_eq(feed(1, r.bytes, r.size), STATUS_OK);
    send_set(2, "b", "2"); /* as it stands */
    expect_answer(0, "", 0);
    ck_assert_int_eq(feed(2, r.bytes, r.size), STATUS_OK);
    for (int i = 0; i < 3; i++)
        expect_answer(i, "\0", 1);
    put_u8(&set, STORE_CANCEL_WAIT);
    send_set(0, "b", "0");
    ck_assert_int_eq(feed(1, r.bytes, r.size), STATUS_OK);
    ck_assert_int_eq(feed(1, set.bytes, set.size), STATUS_OK);
    expect_answer(1, "\1", 1);
    send_set(0, "b", "many");
    ck_assert_int_eq(feed(1, r.bytes, r.size), STATUS_PEER);
}
END_TEST

/* A waits for x, B for y and then sets x, C sets y: one SET wakes both, without recursion. */
START_TEST(the_woken_wake_others)
{
    request a = {.size = 0}, b = {.size = 0}, want = {.size = 0};
    greet(0), greet(1), greet(2);
    put_u8(&a, STORE_GET), put_text(&a, "x");
    put_u8(&b, STORE_GET), put_text(&b, "y");
    put_u8(&b, STORE_SET), put_text(&b, "x"), put_text(&b, "X");
    ck_assert_int_eq(feed(0, a.bytes, a.size), STATUS_OK);
    ck_assert_int_eq(feed(1, b.bytes, b.size), STATUS_OK);
    send_set(2, "y", "Y");
    put_text(&want, "Y");
    expect_answer(1, want.bytes, want.size);
    want.size = 0;
    put_text(&want, "X");
    expect_answer(0, want.bytes, want.size);
}
END_TEST

/* A key that was there when its turn came, and is gone when the last one comes. */
START_TEST(multi_get_answers_with_all_keys_or_waits)
{
    request r = {.size = 0}, gone = {.size = 0}, want = {.size = 0};
    greet(0), greet(1);
    put_u8(&r, STORE_MULTI_GET), put_u64(&r, 2), put_text(&r, "x"), put_text(&r, "y");
    send_set(1, "x", "1");
    ck_assert_int_eq(feed(0, r.bytes, r.size), STATUS_OK);
    put_u8(&gone, STORE_DELETE_KEY), put_text(&gone, "x");
    ck_assert_int_eq(feed(1, gone.bytes, gone.size), STATUS_OK);
    send_set(1, "y", "2");
    expect_answer(0, "", 0);
    send_set(1, "x", "3");
    put_text(&want, "3"), put_text(&want, "2");
    expect_answer(0, want.bytes, want.size);
}
END_TEST

/* What was pushed counts with its bookkeeping, and room comes back with what is popped. */
START_TEST(a_queue_may_not_grow_for_ever)
{
    enum { MOST = (1 << 20) / 64 };
    request push = {.size = 0}, pop = {.size = 0};
    put_u8(&push, STORE_QUEUE_PUSH), put_text(&push, "q"), put_text(&push, "");
    put_u8(&pop, STORE_QUEUE_POP), put_text(&pop, "q");
    int pushed[2] = {0};
    for (int pass = 0; pass < 2; pass++) {
        greet(0);
        while (pushed[pass] < MOST && feed(0, push.bytes, push.size) == STATUS_OK)
            pushed[pass]++;
        ck_assert_int_lt(pushed[pass], MOST);
        store_session_close(&sessions[0]);
        greet(0);
        for (int i = 0; i < pushed[pass]; i++)
            ck_assert_int_eq(feed(0, pop.bytes, pop.size), STATUS_OK);
        ck_assert_uint_eq(store_table_count(queues), 0);
        store_session_close(&sessions[0]);
    }
    ck_assert_int_eq(pushed[0], pushed[1]);
}
END_TEST

START_TEST(a_full_store_refuses)
{
    static uint8_t value[1 << 19];
    request r = {.size = 0};
    greet(0);
    for (int i = 0; i < 2; i++) {
        r.size = 0;
        put_u8(&r, STORE_SET), put_text(&r, i == 0 ? "x" : "y");
        put_u64(&r, sizeof value);
        ck_assert_int_eq(feed(0, r.bytes, r.size), STATUS_OK);
        ck_assert_int_eq(feed(0, value, sizeof value), i == 0 ? STATUS_OK : STATUS_NO_MEMORY);
    }
    ck_assert_uint_eq(store_table_count(table), 1);
}
END_TEST

START_TEST(add_needs_a_number)
{
    static const char *const texts[] = {"", "x", "1x", "99999999999999999999", "-"};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        request r = {.size = 0};
        store_session_close(&sessions[0]);
        greet(0);
        send_set(0, "t", texts[i]);
        put_u8(&r, STORE_ADD), put_text(&r, "t"), put_u64(&r, 1);
        ck_assert_int_eq(feed(0, r.bytes, r.size), STATUS_PEER);
    }
}
END_TEST

START_TEST(tables_hold_many_keys)
{
    enum { KEYS = 5000 };
    char key[32];
    store_bytes value;
    for (int pass = 0; pass < 2; pass++) {
        for (int i = 0; i < KEYS; i++) {
            int n = snprintf(key, sizeof key, "key %d", i);
            store_bytes bytes = {.data = (uint8_t *)key, .size = (size_t)n};
            ck_assert_int_eq(store_table_set(table, bytes, bytes), STATUS_OK);
        }
        ck_assert_uint_eq(store_table_count(table), KEYS);
    }
    for (int i = 0; i < KEYS; i++) {
        int n = snprintf(key, sizeof key, "key %d", i);
        store_bytes bytes = {.data = (uint8_t *)key, .size = (size_t)n};
        ck_assert(store_table_find(table, bytes, &value));
        ck_assert_uint_eq(value.size, (size_t)n);
        ck_assert_int_eq(memcmp(value.data, key, (size_t)n), 0);
        ck_assert(store_table_delete(table, bytes));
        ck_assert(!store_table_delete(table, bytes));
        ck_assert(!store_table_find(table, bytes, &value));
    }
    ck_assert_uint_eq(store_table_count(table), 0);
}
END_TEST

/* Conversations with bytes changed, left out and put in: no answer is right or wrong, but nothing
 * may be read or written that is not ours (which the sanitizers see). */
START_TEST(survives_broken_conversations)
{
    enum { ROUNDS = 3000 };
    unsigned seed = 7;
    for (int round = 0; round < ROUNDS; round++) {
        request in = {.size = 0}, out = {.size = 0};
        conversation(&in, &out);
        for (int change = rand_r(&seed) % 4; change >= 0; change--) {
            size_t at = (size_t)rand_r(&seed) % in.size;
            size_t n = (size_t)rand_r(&seed) % 20;
            if (rand_r(&seed) % 2 == 0 || at + n > in.size)
                in.bytes[at] =
                    (uint8_t)(rand_r(&seed) % 2 == 0 ? rand_r(&seed) % 20 : rand_r(&seed));
            else
                memmove(in.bytes + at, in.bytes + at + n, in.size - at - n), in.size -= n;
        }
        int who = round % MAX_SESSIONS;
        size_t cut = (size_t)rand_r(&seed) % in.size;
        if (feed(who, in.bytes, cut) != STATUS_OK ||
            feed(who, in.bytes + cut, in.size - cut) != STATUS_OK || rand_r(&seed) % 3 != 0)
            store_session_close(&sessions[who]);
        byte_buffer_consume(&sessions[who].out, sessions[who].out.size);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("store_session");
    TCase *core = suite_case(suite, "core", 20);
    tcase_add_checked_fixture(core, start, stop);
    tcase_add_loop_test(core, requests_may_be_cut_anywhere, 0, 24);
    tcase_add_test(core, a_run_ends_with_its_budget);
    tcase_add_test(core, waits_end_one_key_after_the_other);
    tcase_add_test(core, a_wait_can_be_canceled);
    tcase_add_test(core, a_barrier_ends_when_all_have_come);
    tcase_add_test(core, the_woken_wake_others);
    tcase_add_test(core, multi_get_answers_with_all_keys_or_waits);
    tcase_add_test(core, a_queue_may_not_grow_for_ever);
    tcase_add_test(core, a_full_store_refuses);
    tcase_add_test(core, add_needs_a_number);
    tcase_add_test(core, tables_hold_many_keys);
    tcase_add_test(core, survives_broken_conversations);
    return suite_run(suite);
}
