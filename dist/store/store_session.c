#include "dist/store/store_session.h"

#include "base/clock.h"
#include "dist/store/store_table.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    CHUNK_BYTES = 64 << 10,
    REQUEST_BYTES = 256, /* what the shortest request costs, in bytes touched */
};

/* What a request is executed with. */
typedef struct call {
    store_session *session;
    const store_service *service;
    store_table *table;  /* of the service */
    const uint8_t *data; /* the request; data[0] is its opcode */
    size_t at;           /* of its next part */
} call;

static status answer(call *c, const void *data, size_t size_bytes)
{
    byte_buffer *out = &c->session->out;
    if (size_bytes > STORE_SESSION_OUT_BYTES - out->size)
        return FAIL(STATUS_NO_MEMORY, "more than %d bytes of answers that the client does not read",
                    STORE_SESSION_OUT_BYTES);
    return byte_buffer_append(out, data, size_bytes);
}

static status answer_u8(call *c, uint8_t x)
{
    return answer(c, &x, 1);
}

static status answer_i64(call *c, int64_t x)
{
    uint8_t bytes[8];
    store_wire_put_u64(bytes, (uint64_t)x);
    return answer(c, bytes, sizeof bytes);
}

static status answer_value(call *c, store_bytes value)
{
    TRY(answer_i64(c, (int64_t)value.size));
    return answer(c, value.data, value.size);
}

static uint64_t take_u64(call *c)
{
    return store_wire_take_u64(c->data, &c->at);
}

static store_bytes take_bytes(call *c)
{
    return store_wire_take_bytes(c->data, &c->at);
}

/* The key has got a value. */
static void report_set(const call *c, store_bytes key, store_wake who)
{
    c->service->on_set(c->service->ctx, key, who);
}

static status set(call *c, store_bytes key, store_bytes value)
{
    TRY(store_table_set(c->table, key, value));
    report_set(c, key, STORE_WAKE_ALL);
    return STATUS_OK;
}

/* A queue is a key, too. */
static bool is_there(const call *c, store_bytes key)
{
    store_bytes value;
    return store_table_find(c->table, key, &value) ||
           store_queue_look(c->service->queues, key, &value) > 0;
}

static status run_set(call *c)
{
    uint64_t n = c->data[0] == STORE_MULTI_SET ? take_u64(c) : 1;
    for (; n > 0; n--) {
        store_bytes key = take_bytes(c), value = take_bytes(c);
        TRY(set(c, key, value));
    }
    return STATUS_OK;
}

/* As torch's server: a key that is not there is set if nothing was expected; otherwise the answer
 * is what the client expected, and nothing is set. */
static status run_compare_set(call *c)
{
    store_bytes key = take_bytes(c), expected = take_bytes(c), desired = take_bytes(c), held;
    bool there = store_table_find(c->table, key, &held);
    bool match = there ? held.size == expected.size &&
                             (held.size == 0 || memcmp(held.data, expected.data, held.size) == 0)
                       : expected.size == 0;
    if (!match)
        return answer_value(c, there ? held : expected);
    TRY(set(c, key, desired));
    return answer_value(c, desired);
}

/* Counters are kept as decimal text, so that GET reads them. One that is not there is 0. */
static status read_counter(const call *c, store_bytes key, int64_t *out)
{
    store_bytes held;
    char text[24] = "0";
    if (store_table_find(c->table, key, &held)) {
        size_t size = held.size < sizeof text ? held.size : sizeof text - 1;
        if (size > 0)
            memcpy(text, held.data, size);
        text[size] = '\0';
    }
    char *end;
    errno = 0;
    long long old = strtoll(text, &end, 10);
    if (end == text || *end != '\0' || errno != 0)
        return FAIL(STATUS_PEER, "a counter that holds no number: \"%s\"", text);
    *out = old;
    return STATUS_OK;
}

/* Not reported. */
static status set_counter(const call *c, store_bytes key, int64_t number)
{
    char text[24];
    size_t length = (size_t)snprintf(text, sizeof text, "%" PRId64, number);
    return store_table_set(c->table, key, (store_bytes){(uint8_t *)text, length});
}

static status run_add(call *c)
{
    store_bytes key = take_bytes(c);
    uint64_t amount = take_u64(c);
    int64_t sum;
    TRY(read_counter(c, key, &sum));
    sum = (int64_t)((uint64_t)sum + amount);
    TRY(set_counter(c, key, sum));
    report_set(c, key, STORE_WAKE_ALL);
    return answer_i64(c, sum);
}

static status run_append(call *c)
{
    store_bytes key = take_bytes(c), more = take_bytes(c);
    status st = store_table_append(c->table, key, more, STORE_VALUE_BYTES);
    if (st == STATUS_INVALID)
        return FAIL(STATUS_PEER, "APPEND: %s", status_text());
    TRY(st);
    report_set(c, key, STORE_WAKE_ALL);
    return STATUS_OK;
}

static status run_check(call *c)
{
    uint8_t result = STORE_CHECK_READY;
    for (uint64_t n = take_u64(c); n > 0; n--) {
        if (!is_there(c, take_bytes(c)))
            result = STORE_CHECK_NOT_READY;
    }
    return answer_u8(c, result);
}

/* Looks for the keys from c->at on, `n` of them. If one is not there the session waits for it.
 */
static void await_keys(call *c, uint64_t n)
{
    store_session *session = c->session;
    session->waiting = false;
    for (; n > 0; n--) {
        size_t at = c->at;
        if (!is_there(c, take_bytes(c))) {
            session->waiting = true;
            session->awaited_at = at;
            session->awaited = n;
            return;
        }
    }
}

/* GET and MULTI_GET once all keys have been there. One may be gone again: then the wait goes on
 * from that key, before any value is copied. */
static status answer_values(call *c, uint64_t n)
{
    size_t first = c->at;
    await_keys(c, n);
    if (c->session->waiting)
        return STATUS_OK;
    for (c->at = first; n > 0; n--) {
        store_bytes value = {0};
        (void)store_table_find(c->table, take_bytes(c), &value);
        TRY(answer_value(c, value));
    }
    return STATUS_OK;
}

/* GET, MULTI_GET and WAIT, also when they are taken up again. */
static status run_waiting(call *c)
{
    store_session *session = c->session;
    uint64_t n = c->data[0] == STORE_GET ? 1 : take_u64(c);
    size_t first = c->at;
    if (session->awaited > 0) {
        c->at = session->awaited_at;
        await_keys(c, session->awaited);
    } else {
        await_keys(c, n);
    }
    if (session->waiting)
        return STATUS_OK;
    if (c->data[0] == STORE_WAIT)
        return answer_u8(c, STORE_WAIT_ENDED);
    c->at = first;
    return answer_values(c, n);
}

/* Of those that wait for the queue only one may go on: it is to find a value there. */
static status run_queue_push(call *c)
{
    store_bytes key = take_bytes(c), value = take_bytes(c);
    TRY(store_queue_push(c->service->queues, key, value));
    report_set(c, key, STORE_WAKE_ONE);
    return STATUS_OK;
}

static status run_queue_pop(call *c)
{
    store_bytes key = take_bytes(c), first = {0};
    uint64_t length = store_queue_look(c->service->queues, key, &first);
    TRY(answer_i64(c, (int64_t)length));
    if (length == 0)
        return STATUS_OK;
    TRY(answer_value(c, first));
    return store_queue_drop(c->service->queues, key);
}

static status run_queue_len(call *c)
{
    store_bytes first;
    return answer_i64(c, (int64_t)store_queue_look(c->service->queues, take_bytes(c), &first));
}

/* Counts the caller, once; it waits until as many have come. Also when it is taken up again. */
static status run_barrier(call *c)
{
    store_session *session = c->session;
    size_t at = c->at;
    store_bytes key = take_bytes(c);
    int64_t n = (int64_t)take_u64(c), come;
    TRY(read_counter(c, key, &come));
    if (session->awaited == 0)
        TRY(set_counter(c, key, ++come));
    if (session->awaited == 0 && come >= n)
        report_set(c, key, STORE_WAKE_ALL);
    session->waiting = come < n;
    session->awaited = 1;
    session->awaited_at = at;
    return session->waiting ? STATUS_OK : answer_u8(c, STORE_WAIT_ENDED);
}

/* A time that came over the wire. */
static status take_ms(call *c, int64_t *ms)
{
    *ms = (int64_t)take_u64(c);
    if (*ms < 0 || *ms > STORE_LIMIT_MS)
        return FAIL(STATUS_PEER, "a time of %" PRId64 " ms, at most %d are allowed", *ms,
                    STORE_LIMIT_MS);
    return STATUS_OK;
}

static status run_put(call *c)
{
    int64_t revision;
    store_watched_put put = {.owner = c->session};
    put.key = take_bytes(c);
    put.value = take_bytes(c);
    put.expected = (int64_t)take_u64(c);
    TRY(take_ms(c, &put.ttl_ms));
    put.goes_with_owner = (store_wire_u32(c->data + c->at) & STORE_GOES_WITH_CONNECTION) != 0;
    TRY(store_watched_set(c->service->watched, &put, &revision));
    if (revision != 0)
        report_set(c, put.key, STORE_WAKE_ALL);
    return answer_i64(c, revision);
}

static status answer_watch(call *c, store_bytes prefix)
{
    const store_watched *watched = c->service->watched;
    const byte_buffer *out = &c->session->out;
    store_watched_key key;
    uint64_t n = 0;
    TRY(answer_u8(c, STORE_WAIT_ENDED));
    TRY(answer_i64(c, 0)); /* the size, once it is known */
    size_t start = out->size;
    TRY(answer_i64(c, store_watched_revision(watched)));
    TRY(answer_i64(c, 0)); /* likewise, the number of keys */
    for (store_iterator at = {0}; store_watched_next(watched, prefix, &at, &key); n++) {
        TRY(answer_value(c, key.key));
        TRY(answer_value(c, key.value));
        TRY(answer_i64(c, key.created));
        TRY(answer_i64(c, key.set));
    }
    store_wire_put_u64(out->data + start - 8, out->size - start);
    store_wire_put_u64(out->data + start + 8, n);
    return STATUS_OK;
}

/* Also when it is taken up again. */
static status run_watch(call *c)
{
    store_session *session = c->session;
    size_t at = c->at;
    store_bytes prefix = take_bytes(c);
    int64_t after = (int64_t)take_u64(c), wait_ms;
    TRY(take_ms(c, &wait_ms));
    if (session->due_ns == 0)
        session->due_ns = clock_deadline_ns(wait_ms);
    if (store_watched_changed(c->service->watched, prefix, after)) {
        session->waiting = false;
        return answer_watch(c, prefix);
    }
    session->waiting = !clock_passed(session->due_ns);
    session->awaited_at = at;
    return session->waiting ? STATUS_OK : answer_u8(c, STORE_WATCH_SAME);
}

static status execute_own(call *c)
{
    store_watched *watched = c->service->watched;
    if (watched == NULL)
        return FAIL(STATUS_PEER, "this store has no watched keys");
    c->session->watches = true;
    switch (c->data[0]) {
    case STORE_PUT:
        return run_put(c);
    case STORE_RENEW:
        return answer_u8(c, store_watched_renew(watched, take_bytes(c), c->session) ? 1 : 0);
    case STORE_REMOVE:
        return answer_u8(c, store_watched_remove(watched, take_bytes(c)) ? 1 : 0);
    default:
        return run_watch(c);
    }
}

static status execute(call *c)
{
    switch (c->data[0]) {
    case STORE_SET:
    case STORE_MULTI_SET:
        return run_set(c);
    case STORE_COMPARE_SET:
        return run_compare_set(c);
    case STORE_GET:
    case STORE_MULTI_GET:
    case STORE_WAIT:
        return run_waiting(c);
    case STORE_ADD:
        return run_add(c);
    case STORE_CHECK:
        return run_check(c);
    case STORE_GETNUMKEYS:
        return answer_i64(c, (int64_t)store_table_count(c->table));
    case STORE_DELETE_KEY:
        return answer_i64(c, store_table_delete(c->table, take_bytes(c)) ? 1 : 0);
    case STORE_APPEND:
        return run_append(c);
    case STORE_CANCEL_WAIT: /* one that came too late: the wait is over */
        return answer_u8(c, STORE_WAIT_CANCELED);
    case STORE_PING:
        return answer(c, c->data + 1, 4);
    case STORE_QUEUE_PUSH:
        return run_queue_push(c);
    case STORE_QUEUE_POP:
        return run_queue_pop(c);
    case STORE_QUEUE_LEN:
        return run_queue_len(c);
    case STORE_LIST_KEYS:
        TRY(answer_i64(c, (int64_t)store_table_count(c->table)));
        for (store_iterator at = {0}; store_table_next(c->table, &at);)
            TRY(answer_value(c, at.key));
        return STATUS_OK;
    case STORE_BARRIER:
        return run_barrier(c);
    default:
        return execute_own(c);
    }
}

/* The request at the front is done with. */
static void next_request(store_session *session)
{
    byte_buffer_consume(&session->in, session->scan.at);
    session->scan = (store_scan){0};
    session->waiting = false;
    session->awaited = 0;
    session->due_ns = 0;
}

static status check_greeting(store_session *session)
{
    static const uint8_t greeting[STORE_GREETING_BYTES] = {
        STORE_VALIDATE, STORE_MAGIC & 0xff, STORE_MAGIC >> 8 & 0xff, STORE_MAGIC >> 16 & 0xff,
        STORE_MAGIC >> 24};
    byte_buffer *in = &session->in;
    size_t n = in->size < sizeof greeting ? in->size : sizeof greeting;
    if (n > 0 && memcmp(in->data, greeting, n) != 0)
        return FAIL(STATUS_PEER, "the greeting is not a store client's");
    if (n == sizeof greeting) {
        session->greeted = true;
        byte_buffer_consume(in, n);
    }
    return STATUS_OK;
}

/* While a request waits, only its cancellation may overtake it. */
static bool take_cancellation(store_session *session)
{
    const byte_buffer *in = &session->in;
    size_t at = session->scan.at;
    if (in->size <= at || in->data[at] != STORE_CANCEL_WAIT)
        return false;
    next_request(session);
    return true;
}

/* Executes the request at the front; takes what it has touched from the budget. */
static status execute_first(store_session *session, const store_service *service,
                            size_t *budget_bytes)
{
    size_t answered = session->out.size;
    call c = {session, service, service->table, session->in.data, 1};
    TRY(execute(&c));
    size_t touched = REQUEST_BYTES + session->scan.at + (session->out.size - answered);
    *budget_bytes -= touched < *budget_bytes ? touched : *budget_bytes;
    return STATUS_OK;
}

status store_session_run(store_session *session, const store_service *service, size_t *budget_bytes)
{
    session->pending = false;
    if (!session->greeted)
        TRY(check_greeting(session));
    while (session->greeted) {
        byte_buffer *in = &session->in;
        session->pending = *budget_bytes == 0 && in->size > 0;
        if (session->pending)
            return STATUS_OK;
        store_scan_result result = store_wire_scan(&session->scan, in->data, in->size);
        if (result == STORE_SCAN_PARTIAL)
            return STATUS_OK;
        if (result == STORE_SCAN_BAD)
            return STATUS_PEER;
        if (session->waiting && take_cancellation(session))
            continue;
        TRY(execute_first(session, service, budget_bytes));
        if (!session->waiting)
            next_request(session);
        else if (!take_cancellation(session))
            return STATUS_OK;
    }
    return STATUS_OK;
}

bool store_session_awaits(const store_session *session, store_bytes *key)
{
    if (!session->waiting)
        return false;
    size_t at = session->awaited_at;
    *key = store_wire_take_bytes(session->in.data, &at);
    return true;
}

size_t store_session_read_limit(const store_session *session)
{
    if (!session->greeted)
        return STORE_GREETING_BYTES - session->in.size;
    if (session->pending ||
        (session->waiting && session->in.size - session->scan.at >= CHUNK_BYTES))
        return 0;
    return CHUNK_BYTES;
}

void store_session_close(store_session *session)
{
    byte_buffer_free(&session->in);
    byte_buffer_free(&session->out);
    *session = (store_session){0};
}
