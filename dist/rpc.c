#include "dist/rpc.h"

#include "base/clock.h"
#include "base/memory.h"
#include "dist/membership/keys.h"
#include "dist/membership/membership.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SLICE_MS = 200 }; /* after which a wait looks whether the others live */

typedef enum message_kind { CALL, REMOTE, TO_HERE, DELETE, SHUTDOWN, N_KINDS } message_kind;

/* A message to a rank: this, then the function's arguments, or an rpc_rref. */
typedef struct message_head {
    uint32_t kind;
    int32_t from, id;
    char name[RPC_NAME_BYTES];
} message_head;

/* An answer is a status as u32, then the value or the failure's text. One that stays here: */
typedef struct kept_answer {
    rpc_rref ref;
    byte_buffer answer;
    struct kept_answer *next;
} kept_answer;

struct rpc {
    rpc_options options;
    int calls, taken; /* this rank's own; messages that it has served */
    int ended;        /* other ranks that have nothing to ask any more */
    kept_answer *kept;
};

/* Does rank `peer` live, or do all if it is -1? */
static status check_alive(const rpc *r, int peer)
{
    const int end = r->options.watches ? r->options.world_size : 0;
    for (int rank = 0; rank < end; rank++) {
        const keys_text key = keys_make("", KEYS_RPC_ALIVE, rank);
        const store_watch_options now = {.prefix = key.text, .after = -1};
        store_watch_answer alive = {.n = 1};
        if (peer < 0 || peer == rank)
            TRY(store_watch(r->options.store, &now, &alive));
        bool gone = alive.n == 0;
        store_watch_free(&alive);
        if (gone)
            return FAIL(STATUS_PEER, "rank %d is gone", rank);
    }
    return STATUS_OK;
}

/* Waits for the key, by `peer`, or by any rank if it is -1. The key goes, its value is here. */
static status take(const rpc *r, keys_text key, int peer, uint8_t **out, size_t *size)
{
    const int64_t deadline_ns = clock_deadline_ns(r->options.timeout_ms);
    const double s = (double)r->options.timeout_ms * 1e-3;
    store *keys = r->options.store;
    void *value = NULL;
    bool deleted;
    for (;;) {
        int left_ms = clock_remaining_ms(deadline_ns);
        status st = store_wait(keys, key.text, left_ms < SLICE_MS ? left_ms : SLICE_MS);
        if (st == STATUS_OK)
            break;
        TRY(st == STATUS_TIMEOUT ? check_alive(r, peer) : st);
        if (clock_passed(deadline_ns))
            return peer >= 0 ? FAIL(st, "rank %d has not answered within %g s", peer, s)
                             : FAIL(st, "no rank has called rank %d for %g s", r->options.rank, s);
    }
    TRY(store_get(keys, key.text, &value, size));
    status st = store_delete(keys, key.text, &deleted);
    if (st == STATUS_OK)
        *out = value;
    else
        free(value);
    return st;
}

/* Whether the others miss this rank from now on if its connection to the store closes. */
static status tell_alive(const rpc *r, bool is_missed)
{
    int64_t revision;
    const keys_text key = keys_make("", KEYS_RPC_ALIVE, r->options.rank);
    const store_put_options how = {.value = "", .expected = -1, .goes_with_connection = is_missed};
    return r->options.watches ? store_put(r->options.store, key.text, &how, &revision) : STATUS_OK;
}

status rpc_open(const rpc_options *options, rpc **out)
{
    rpc *r = NULL;
    const membership all = {.store = options->store,
                            .prefix = KEYS_RPC "/",
                            .member = options->rank,
                            .n = options->world_size,
                            .noun = "rank"};
    const meeting how = {.record = "",
                         .deadline_ns = clock_deadline_ns(options->timeout_ms),
                         .late = "has not opened its calls"};
    TRY(memory_alloc(sizeof *r, (void **)&r));
    r->options = *options;
    status st = tell_alive(r, true);
    if (st == STATUS_OK)
        st = membership_meet(&all, &how, NULL);
    if (st == STATUS_OK)
        *out = r;
    else
        free(r);
    return st == STATUS_OK ? st : status_context(st, "rpc of rank %d", options->rank);
}

static void drop(kept_answer **at)
{
    kept_answer *one = *at;
    *at = one->next;
    byte_buffer_free(&one->answer);
    free(one);
}

void rpc_close(rpc *r)
{
    while (r != NULL && r->kept != NULL)
        drop(&r->kept);
    free(r);
}

/* The caller's side. */

/* Numbers of messages to a rank are given out by the store: so their order is one for all. */
static status send_message(rpc *r, message_kind kind, const rpc_future *f, const void *args,
                           size_t size)
{
    int64_t number;
    byte_buffer b = {0};
    message_head head = {kind, r->options.rank, f->id, ""};
    snprintf(head.name, sizeof head.name, "%s", f->name);
    if (f->to < 0 || f->to >= r->options.world_size)
        return FAIL(STATUS_INVALID, "%s: there is no rank %d: they are numbered from 0 to %d",
                    f->name, f->to, r->options.world_size - 1);
    if (size > RPC_VALUE_BYTES)
        return FAIL(STATUS_INVALID, "%s: arguments of %zu bytes: at most %d are allowed", f->name,
                    size, RPC_VALUE_BYTES);
    status st = byte_buffer_append(&b, &head, sizeof head);
    if (st == STATUS_OK)
        st = byte_buffer_append(&b, args, size);
    if (st == STATUS_OK)
        st = store_add(r->options.store, keys_make("", KEYS_RPC_SENT, f->to).text, 1, &number);
    if (st == STATUS_OK)
        st = store_set(r->options.store, keys_make_of("", KEYS_RPC, f->to, (int)number).text,
                       b.data, b.size);
    byte_buffer_free(&b);
    return st;
}

status rpc_async(rpc *r, int to, const char *name, const void *args, size_t size, rpc_future *out)
{
    const rpc_future f = {to, ++r->calls, name};
    TRY(send_message(r, CALL, &f, args, size));
    *out = f;
    return STATUS_OK;
}

status rpc_wait(rpc *r, const rpc_future *f, rpc_value *out)
{
    const keys_text key = keys_make_of("", KEYS_RPC_ANSWER, r->options.rank, f->id);
    uint32_t code = UINT32_MAX;
    uint8_t *bytes = NULL;
    size_t size = 0;
    status st = take(r, key, f->to, &bytes, &size);
    if (size >= sizeof code)
        memcpy(&code, bytes, sizeof code);
    if (st == STATUS_OK && code == STATUS_OK) {
        size -= sizeof code;
        memmove(bytes, bytes + sizeof code, size + 1); /* and the store's zero */
        *out = (rpc_value){.data = bytes, .size = size};
        return STATUS_OK;
    }
    if (st == STATUS_OK)
        st = code <= STATUS_NO_MODULE
                 ? FAIL((status)code, "%s", bytes + sizeof code)
                 : FAIL(STATUS_PEER, "its answer of %zu bytes makes no sense", size);
    free(bytes);
    return status_context(st, "%s, on rank %d", f->name, f->to);
}

status rpc_sync(rpc *r, int to, const char *name, const void *args, size_t size, rpc_value *out)
{
    rpc_future f;
    TRY(rpc_async(r, to, name, args, size, &f));
    return rpc_wait(r, &f, out);
}

status rpc_remote(rpc *r, int to, const char *name, const void *args, size_t size, rpc_rref *out)
{
    const rpc_future f = {to, ++r->calls, name};
    TRY(send_message(r, REMOTE, &f, args, size));
    *out = (rpc_rref){to, r->options.rank, f.id};
    return STATUS_OK;
}

status rref_to_here(rpc *r, const rpc_rref *ref, rpc_value *out)
{
    const rpc_future f = {ref->owner, ++r->calls, "to_here"};
    TRY(send_message(r, TO_HERE, &f, ref, sizeof *ref));
    return rpc_wait(r, &f, out);
}

status rref_delete(rpc *r, const rpc_rref *ref)
{
    return send_message(r, DELETE, &(rpc_future){ref->owner, 0, "delete"}, ref, sizeof *ref);
}

/* The side that is called. */

static status make_answer(status st, const rpc_value *value, byte_buffer *out)
{
    if (st == STATUS_OK && value->size > RPC_VALUE_BYTES)
        st = FAIL(STATUS_INVALID, "what it returns has %zu bytes: at most %d are allowed",
                  value->size, RPC_VALUE_BYTES);
    const uint32_t code = st;
    const char *text = status_text();
    TRY(byte_buffer_append(out, &code, sizeof code));
    return st == STATUS_OK ? byte_buffer_append(out, value->data, value->size)
                           : byte_buffer_append(out, text, strlen(text));
}

static status send_answer(rpc *r, int to, int id, const byte_buffer *answer)
{
    const keys_text key = keys_make_of("", KEYS_RPC_ANSWER, to, id);
    return store_set(r->options.store, key.text, answer->data, answer->size);
}

status rpc_reply(rpc *r, int to, int id, status st, const rpc_value *value)
{
    byte_buffer answer = {0};
    st = make_answer(st, value, &answer);
    if (st == STATUS_OK)
        st = send_answer(r, to, id, &answer);
    byte_buffer_free(&answer);
    return st;
}

static status run_function(const rpc *r, const char *name, const rpc_call *call, rpc_value *out)
{
    for (int i = 0; i < r->options.n_functions; i++) {
        const rpc_function *f = &r->options.functions[i];
        if (strcmp(f->name, name) == 0)
            return f->call(f->ctx, call, out);
    }
    return FAIL(STATUS_INVALID, "there is no such function");
}

static status keep(rpc *r, const rpc_call *call, status st, const rpc_value *value)
{
    kept_answer *one = NULL;
    TRY(memory_alloc(sizeof *one, (void **)&one));
    *one = (kept_answer){.ref = {r->options.rank, call->from, call->id}, .next = r->kept};
    r->kept = one;
    return make_answer(st, value, &one->answer);
}

static status serve(rpc *r, const message_head *m, const rpc_call *call)
{
    status st;
    rpc_value value = {0};
    kept_answer **kept = &r->kept; /* of the reference that is asked about */
    while (*kept != NULL && (call->size != sizeof(rpc_rref) ||
                             memcmp(call->args, &(*kept)->ref, sizeof(rpc_rref)) != 0))
        kept = &(*kept)->next;
    switch ((message_kind)m->kind) {
    case CALL:
    case REMOTE:
        st = run_function(r, m->name, call, &value);
        if (m->kind == REMOTE)
            st = keep(r, call, st, &value);
        else if (!value.later)
            st = rpc_reply(r, call->from, call->id, st, &value);
        free(value.data);
        return st;
    case TO_HERE:
        if (*kept != NULL)
            return send_answer(r, call->from, call->id, &(*kept)->answer);
        st = FAIL(STATUS_INVALID, "the reference's value is not here any more");
        return rpc_reply(r, call->from, call->id, st, NULL);
    case DELETE:
        if (*kept != NULL)
            drop(kept);
        return STATUS_OK;
    default:
        r->ended++;
        return STATUS_OK;
    }
}

status rpc_serve_one(rpc *r)
{
    const keys_text key = keys_make_of("", KEYS_RPC, r->options.rank, r->taken + 1);
    message_head m = {.kind = N_KINDS};
    uint8_t *bytes = NULL;
    size_t size = 0;
    TRY(take(r, key, -1, &bytes, &size));
    r->taken++;
    if (size >= sizeof m)
        memcpy(&m, bytes, sizeof m);
    m.name[sizeof m.name - 1] = '\0';
    const rpc_call call = {m.from, m.id, bytes + sizeof m, size - sizeof m};
    bool fits = m.kind < N_KINDS && m.from >= 0 && m.from < r->options.world_size;
    status st = fits ? serve(r, &m, &call)
                     : FAIL(STATUS_PEER, "message %d to rank %d makes no sense: %zu bytes",
                            r->taken, r->options.rank, size);
    free(bytes);
    return st;
}

status rpc_shutdown(rpc *r)
{
    for (int to = 0; to < r->options.world_size; to++)
        if (to != r->options.rank)
            TRY(send_message(r, SHUTDOWN, &(rpc_future){to, 0, "shutdown"}, NULL, 0));
    while (r->ended + 1 < r->options.world_size)
        TRY(rpc_serve_one(r));
    return tell_alive(r, false); /* it may end before the others have heard all */
}
