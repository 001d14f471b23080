#include "dist/rpc.h"

#include "base/clock.h"
#include "base/memory.h"
#include "dist/membership/keys.h"
#include "dist/store/store.h"
#include "dist/store/store_wire.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SLICE_MS = 200 }; /* after which a wait looks whether the others live */

/* A message to a rank: kind, from, id, the bytes of its name and of its arguments as u32 each; then
 * both. An answer: status and bytes, then those. */
enum { HEAD_WORDS = 5, HEAD_BYTES = 4 * HEAD_WORDS, ANSWER_WORDS = 2, ANSWER_BYTES = 8 };

typedef enum message_kind { CALL, REMOTE, TO_HERE, DELETE, SHUTDOWN, N_KINDS } message_kind;

typedef struct message {
    message_kind kind;
    char name[RPC_NAME_BYTES];
    rpc_call call;
} message;

/* What a function has returned for a reference. */
typedef struct kept_value {
    int creator, id;
    status st;
    rpc_value value; /* of a failure: its text */
    struct kept_value *next;
} kept_value;

struct rpc {
    rpc_options options;
    int calls, taken; /* this rank's own; messages that it has served */
    int ended;        /* other ranks that have nothing to ask any more */
    kept_value *kept;
};

static keys_text alive_key(int rank)
{
    return keys_make("", KEYS_RPC_ALIVE, rank);
}

/* The store drops the key when this process's connection closes. */
static status tell_alive(const rpc *r)
{
    int64_t revision;
    const store_put_options how = {.value = "1", .expected = -1, .goes_with_connection = true};
    return r->options.watches
               ? store_put(r->options.store, alive_key(r->options.rank).text, &how, &revision)
               : STATUS_OK;
}

static bool is_listed(const store_watch_answer *alive, int rank)
{
    for (size_t i = 0; i < alive->n; i++)
        if (strcmp(alive->keys[i].key, alive_key(rank).text) == 0)
            return true;
    return false;
}

/* Does `peer` live, or do all if it is -1? */
static status check_alive(const rpc *r, int peer)
{
    store_watch_answer alive;
    const store_watch_options all = {.prefix = KEYS_RPC_ALIVE "/", .after = -1};
    if (!r->options.watches)
        return STATUS_OK;
    TRY(store_watch(r->options.store, &all, &alive));
    status st = STATUS_OK;
    for (int rank = 0; rank < r->options.world_size && st == STATUS_OK; rank++)
        if ((peer < 0 || peer == rank) && !is_listed(&alive, rank))
            st = FAIL(STATUS_PEER, "rank %d is gone", rank);
    store_watch_free(&alive);
    return st;
}

/* Until the key is there. STATUS_TIMEOUT is for the caller to put in words. */
static status await_key(const rpc *r, const char *key, int peer)
{
    int64_t deadline_ns = clock_deadline_ns(r->options.timeout_ms);
    for (;;) {
        int left_ms = clock_remaining_ms(deadline_ns);
        status st = store_wait(r->options.store, key, left_ms < SLICE_MS ? left_ms : SLICE_MS);
        if (st != STATUS_TIMEOUT)
            return st;
        TRY(check_alive(r, peer));
        if (clock_passed(deadline_ns))
            return STATUS_TIMEOUT;
    }
}

/* The key's value, which goes with it. */
static status take(const rpc *r, const char *key, uint8_t **out, size_t *size)
{
    bool deleted;
    void *value;
    TRY(store_get(r->options.store, key, &value, size));
    status st = store_delete(r->options.store, key, &deleted);
    if (st == STATUS_OK)
        *out = value;
    else
        free(value);
    return st;
}

status rpc_open(const rpc_options *options, rpc **out)
{
    rpc *r = NULL;
    int64_t came;
    TRY(memory_alloc(sizeof *r, (void **)&r));
    r->options = *options;
    status st = tell_alive(r);
    if (st == STATUS_OK)
        st = store_add(options->store, KEYS_RPC_CAME, 1, &came);
    if (st == STATUS_OK && came == options->world_size)
        st = store_set(options->store, KEYS_RPC_OPEN, "1", 1);
    if (st == STATUS_OK)
        st = store_wait(options->store, KEYS_RPC_OPEN, options->timeout_ms);
    if (st != STATUS_OK) {
        free(r);
        return status_context(st, "rpc of rank %d", options->rank);
    }
    *out = r;
    return STATUS_OK;
}

static void drop(kept_value **at)
{
    kept_value *one = *at;
    *at = one->next;
    free(one->value.data);
    free(one);
}

void rpc_close(rpc *r)
{
    while (r != NULL && r->kept != NULL)
        drop(&r->kept);
    free(r);
}

/* The caller's side. */

static status check_call(const rpc *r, int to, const char *name, size_t size)
{
    if (to < 0 || to >= r->options.world_size)
        return FAIL(STATUS_INVALID, "%s: there is no rank %d: they are numbered from 0 to %d", name,
                    to, r->options.world_size - 1);
    if (size > RPC_VALUE_BYTES || strlen(name) >= RPC_NAME_BYTES)
        return FAIL(STATUS_INVALID,
                    "%.60s: arguments of %zu bytes: at most %d are allowed, and %d "
                    "of a name",
                    name, size, RPC_VALUE_BYTES, RPC_NAME_BYTES - 1);
    return STATUS_OK;
}

/* Numbers of messages to a rank are given out by the store: so their order is one for all. */
static status send_message(rpc *r, message_kind kind, const rpc_future *to, const void *args,
                           size_t size)
{
    int64_t number;
    uint32_t head[HEAD_WORDS] = {kind, (uint32_t)r->options.rank, (uint32_t)to->id,
                                 (uint32_t)strlen(to->name), (uint32_t)size};
    uint8_t bytes[HEAD_BYTES];
    byte_buffer b = {0};
    for (int i = 0; i < HEAD_WORDS; i++)
        store_wire_put_u32(bytes + 4 * i, head[i]);
    status st = byte_buffer_append(&b, bytes, sizeof bytes);
    if (st == STATUS_OK)
        st = byte_buffer_append(&b, to->name, strlen(to->name));
    if (st == STATUS_OK)
        st = byte_buffer_append(&b, args, size);
    if (st == STATUS_OK)
        st = store_add(r->options.store, keys_make("", KEYS_RPC_SENT, to->to).text, 1, &number);
    if (st == STATUS_OK)
        st = store_set(r->options.store, keys_make_of("", KEYS_RPC, to->to, (int)number).text,
                       b.data, b.size);
    byte_buffer_free(&b);
    return st;
}

static status begin_call(rpc *r, message_kind kind, int to, const char *name, const void *args,
                         size_t size, rpc_future *out)
{
    TRY(check_call(r, to, name, size));
    rpc_future f = {.to = to, .id = ++r->calls};
    snprintf(f.name, sizeof f.name, "%s", name);
    TRY(send_message(r, kind, &f, args, size));
    *out = f;
    return STATUS_OK;
}

status rpc_async(rpc *r, int to, const char *name, const void *args, size_t size, rpc_future *out)
{
    return begin_call(r, CALL, to, name, args, size, out);
}

/* What an answer of `size` bytes says. */
static status read_answer(const rpc_future *f, const uint8_t *bytes, size_t size, rpc_value *out)
{
    size_t said = size >= ANSWER_BYTES ? store_wire_u32(bytes + 4) : 0;
    if (size < ANSWER_BYTES || said != size - ANSWER_BYTES || said > RPC_VALUE_BYTES)
        return FAIL(STATUS_PEER, "%s: the answer of rank %d has %zu bytes, and says %zu + %d",
                    f->name, f->to, size, said, ANSWER_BYTES);
    uint32_t code = store_wire_u32(bytes);
    const char *data = (const char *)bytes + ANSWER_BYTES;
    if (code != STATUS_OK)
        return FAIL(code <= STATUS_NO_MODULE ? (status)code : STATUS_PEER, "%s, on rank %d: %.*s",
                    f->name, f->to, (int)said, data);
    rpc_value value = {.size = said};
    TRY(memory_alloc(said + 1, &value.data)); /* a zero byte follows a text */
    memcpy(value.data, data, said);
    *out = value;
    return STATUS_OK;
}

status rpc_wait(rpc *r, const rpc_future *f, rpc_value *out)
{
    const keys_text key = keys_make_of("", KEYS_RPC_ANSWER, r->options.rank, f->id);
    uint8_t *bytes = NULL;
    size_t size = 0;
    status st = await_key(r, key.text, f->to);
    if (st == STATUS_TIMEOUT)
        return FAIL(STATUS_TIMEOUT, "%s: rank %d has not answered within %g s", f->name, f->to,
                    (double)r->options.timeout_ms * 1e-3);
    TRY(status_context(st, "%s", f->name));
    TRY(take(r, key.text, &bytes, &size));
    st = read_answer(f, bytes, size, out);
    free(bytes);
    return st;
}

status rpc_sync(rpc *r, int to, const char *name, const void *args, size_t size, rpc_value *out)
{
    rpc_future f;
    TRY(rpc_async(r, to, name, args, size, &f));
    return rpc_wait(r, &f, out);
}

status rpc_remote(rpc *r, int to, const char *name, const void *args, size_t size, rpc_rref *out)
{
    rpc_future f;
    TRY(begin_call(r, REMOTE, to, name, args, size, &f));
    *out = (rpc_rref){to, r->options.rank, f.id};
    return STATUS_OK;
}

/* A message about a reference has its creator and id as arguments. */
static status ask_about(rpc *r, message_kind kind, const rpc_rref *ref, rpc_future *out)
{
    uint8_t which[8];
    store_wire_put_u32(which, (uint32_t)ref->creator);
    store_wire_put_u32(which + 4, (uint32_t)ref->id);
    return begin_call(r, kind, ref->owner, kind == TO_HERE ? "to_here" : "delete", which,
                      sizeof which, out);
}

status rref_to_here(rpc *r, const rpc_rref *ref, rpc_value *out)
{
    rpc_future f;
    TRY(ask_about(r, TO_HERE, ref, &f));
    return rpc_wait(r, &f, out);
}

status rref_delete(rpc *r, const rpc_rref *ref)
{
    rpc_future f;
    return ask_about(r, DELETE, ref, &f);
}

/* The side that is called. */

/* A failure goes as its text. */
static rpc_value text_of_failure(void)
{
    char *text = strdup(status_text());
    return (rpc_value){.data = text, .size = text != NULL ? strlen(text) : 0};
}

status rpc_reply(rpc *r, int to, int id, status st, const rpc_value *value)
{
    uint8_t head[ANSWER_BYTES];
    byte_buffer b = {0};
    rpc_value text = {0};
    if (st == STATUS_OK && value->size > RPC_VALUE_BYTES)
        st = FAIL(STATUS_INVALID, "what it returns has %zu bytes: at most %d are allowed",
                  value->size, RPC_VALUE_BYTES);
    if (st != STATUS_OK)
        value = &(rpc_value){0}, text = text_of_failure();
    const rpc_value *sent = st != STATUS_OK ? &text : value;
    store_wire_put_u32(head, (uint32_t)st);
    store_wire_put_u32(head + 4, (uint32_t)sent->size);
    status put = byte_buffer_append(&b, head, sizeof head);
    if (put == STATUS_OK)
        put = byte_buffer_append(&b, sent->data, sent->size);
    if (put == STATUS_OK)
        put = store_set(r->options.store, keys_make_of("", KEYS_RPC_ANSWER, to, id).text, b.data,
                        b.size);
    byte_buffer_free(&b);
    free(text.data);
    return put;
}

static status run_function(rpc *r, const message *m, rpc_value *out)
{
    for (int i = 0; i < r->options.n_functions; i++) {
        const rpc_function *f = &r->options.functions[i];
        if (strcmp(f->name, m->name) == 0)
            return f->call(f->ctx, &m->call, out);
    }
    return FAIL(STATUS_INVALID, "there is no such function");
}

static status answer_call(rpc *r, const message *m)
{
    rpc_value value = {0};
    status st = run_function(r, m, &value);
    if (st == STATUS_OK && value.later)
        return STATUS_OK;
    st = rpc_reply(r, m->call.from, m->call.id, st, &value);
    free(value.data);
    return st;
}

static status keep(rpc *r, const message *m)
{
    kept_value *one = NULL;
    TRY(memory_alloc(sizeof *one, (void **)&one));
    *one = (kept_value){.creator = m->call.from, .id = m->call.id, .next = r->kept};
    one->st = run_function(r, m, &one->value);
    if (one->st != STATUS_OK)
        one->value = text_of_failure();
    r->kept = one;
    return STATUS_OK;
}

/* Where the list has it; NULL at the list's end. */
static kept_value **find_kept(rpc *r, const rpc_call *call)
{
    kept_value **at = &r->kept;
    const uint8_t *which = call->args;
    while (call->size == 8 && *at != NULL &&
           ((uint32_t)(*at)->creator != store_wire_u32(which) ||
            (uint32_t)(*at)->id != store_wire_u32(which + 4)))
        at = &(*at)->next;
    return call->size == 8 ? at : NULL;
}

static status answer_reference(rpc *r, const message *m)
{
    kept_value **at = find_kept(r, &m->call), *one = at != NULL ? *at : NULL;
    status st =
        one == NULL ? FAIL(STATUS_INVALID, "the reference's value is not here any more") : one->st;
    if (one != NULL && st != STATUS_OK)
        (void)FAIL(st, "%.*s", (int)one->value.size, (const char *)one->value.data);
    return rpc_reply(r, m->call.from, m->call.id, st, one != NULL ? &one->value : NULL);
}

static status serve(rpc *r, const message *m)
{
    kept_value **at;
    switch (m->kind) {
    case CALL:
        return answer_call(r, m);
    case REMOTE:
        return keep(r, m);
    case TO_HERE:
        return answer_reference(r, m);
    case DELETE:
        at = find_kept(r, &m->call);
        if (at != NULL && *at != NULL)
            drop(at);
        return STATUS_OK;
    default:
        r->ended++;
        return STATUS_OK;
    }
}

static status read_message(const rpc *r, const uint8_t *bytes, size_t size, message *out)
{
    uint32_t head[HEAD_WORDS] = {N_KINDS};
    for (size_t i = 0; i < HEAD_WORDS && size >= HEAD_BYTES; i++)
        head[i] = store_wire_u32(bytes + 4 * i);
    if (head[0] >= N_KINDS || head[1] >= (uint32_t)r->options.world_size ||
        head[3] >= RPC_NAME_BYTES || size - HEAD_BYTES != (size_t)head[3] + head[4])
        return FAIL(STATUS_PEER, "message %d to rank %d makes no sense: %zu bytes", r->taken,
                    r->options.rank, size);
    *out = (message){.kind = (message_kind)head[0],
                     .call = {.from = (int)head[1],
                              .id = (int)head[2],
                              .args = bytes + HEAD_BYTES + head[3],
                              .size = head[4]}};
    memcpy(out->name, bytes + HEAD_BYTES, head[3]);
    return STATUS_OK;
}

status rpc_serve_one(rpc *r)
{
    const keys_text key = keys_make_of("", KEYS_RPC, r->options.rank, r->taken + 1);
    uint8_t *bytes = NULL;
    size_t size = 0;
    message m;
    status st = await_key(r, key.text, -1);
    if (st == STATUS_TIMEOUT)
        return FAIL(STATUS_TIMEOUT, "no rank has called rank %d for %g s", r->options.rank,
                    (double)r->options.timeout_ms * 1e-3);
    TRY(st);
    TRY(take(r, key.text, &bytes, &size));
    r->taken++;
    st = read_message(r, bytes, size, &m);
    if (st == STATUS_OK)
        st = serve(r, &m);
    free(bytes);
    return st;
}

status rpc_shutdown(rpc *r)
{
    for (int to = 0; to < r->options.world_size; to++)
        if (to != r->options.rank)
            TRY(send_message(r, SHUTDOWN, &(rpc_future){.to = to}, NULL, 0));
    while (r->ended + 1 < r->options.world_size)
        TRY(rpc_serve_one(r));
    return STATUS_OK;
}
