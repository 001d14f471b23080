/* From each rank to each other one there is a channel: a stream of bytes through a ring in shared
 * memory. The sender alone moves `written` on, the receiver alone `read`.
 *
 *   channel   | head 17 | bytes of 17 ............. | head 18 | bytes of 18 .. (free) ..........|
 *                       ^ read                                               ^ written
 *
 * A send writes its head (tag, type, count) and its bytes, piece by piece as there is room, after
 * the sends before it to the same peer. It is done when all is in the channel: one that fits does
 * not need its receiver.
 *
 * A receiver reads a channel while it has a recv of that peer. The message at hand belongs to the
 * oldest recv with its tag. If there is none yet, it is `kept` in memory of this rank until one
 * comes, so that those after it with other tags get through.
 *
 * Each wait, also that of a collective, moves all channels of this rank on. So two ranks that wait
 * for different messages of each other do not wait for ever.
 *
 * Heads lie at whole cache lines, and all counts are multiples of a line.
 */
#include "dist/backends/shm/shm_messages.h"

#include "base/memory.h"

#include <stdlib.h>
#include <string.h>

enum { PIECE_BYTES = 32 << 10, STREAMED_BYTES = 4 << 10 };

typedef struct head {
    uint64_t count;
    uint32_t type, tag;
} head;

typedef struct shm_sends {
    shm_message *first, *last; /* not all in the channel */
} shm_sends;

/* A message that came before its recv. */
typedef struct kept {
    struct kept *next;
    head head;
    shm_message *owner; /* the recv that came meanwhile; NULL: none */
    unsigned char bytes[];
} kept;

typedef struct shm_receives {
    shm_message *first, *last; /* not done, and without a message */
    kept *kept_first, *kept_last;

    /* The message at hand. */
    bool is_open;
    head head;
    size_t moved;
    shm_message *owner; /* its recv; NULL: `filled` gets it */
    kept *filled;
} shm_receives;

static size_t whole_lines(size_t size_bytes)
{
    return (size_bytes + SHM_LINE_BYTES - 1) / SHM_LINE_BYTES * SHM_LINE_BYTES;
}

static size_t bytes_of(const head *h)
{
    return h->count * dtype_size((dtype)h->type);
}

/* In the channel, with its head. */
static size_t length_of(const head *h)
{
    return whole_lines(sizeof *h + bytes_of(h));
}

static size_t least(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* Few bytes are there sooner through the caches. */
static void put_piece(unsigned char *out, const void *in, size_t size_bytes)
{
    if (size_bytes < STREAMED_BYTES)
        memcpy(out, in, size_bytes);
    else
        memory_stream(out, in, size_bytes);
}

/* Copies at position `at` of the ring, in two pieces if that goes over its end. */
static void put(shm_channel *channel, uint64_t at, const void *data, size_t size_bytes)
{
    size_t begin = at % SHM_CHANNEL_BYTES, before = least(SHM_CHANNEL_BYTES - begin, size_bytes);
    put_piece(channel->bytes + begin, data, before);
    put_piece(channel->bytes, (const unsigned char *)data + before, size_bytes - before);
}

static void get(const shm_channel *channel, uint64_t at, void *data, size_t size_bytes)
{
    size_t begin = at % SHM_CHANNEL_BYTES, before = least(SHM_CHANNEL_BYTES - begin, size_bytes);
    memcpy(data, channel->bytes + begin, before);
    memcpy((unsigned char *)data + before, channel->bytes, size_bytes - before);
}

/* Which bytes of the data lie in bytes moved .. moved + some - 1 of the message. */
typedef struct stretch {
    size_t skip; /* of them are head */
    size_t begin, size_bytes;
} stretch;

static stretch data_of(const head *h, size_t moved, size_t some)
{
    size_t skip = moved == 0 ? sizeof *h : 0, begin = moved + skip - sizeof *h;
    return (stretch){skip, begin, least(some - skip, bytes_of(h) - least(begin, bytes_of(h)))};
}

/* Writes sends into the channel as long as there is room. */
static void push(shm_messages *m, int peer)
{
    shm_sends *sends = &m->to[peer];
    shm_channel *channel = shm_region_channel(&m->sync->region, m->sync->region.rank, peer);
    uint64_t written = atomic_load_explicit(&channel->written, memory_order_relaxed);
    while (sends->first != NULL) {
        shm_message *s = sends->first;
        const collective *c = s->what;
        head h = {.count = c->count, .type = (uint32_t)c->type, .tag = (uint32_t)c->tag};
        uint64_t read = atomic_load(&channel->read);
        size_t room = SHM_CHANNEL_BYTES - (size_t)(written - read);
        size_t some = least(least(room, PIECE_BYTES), length_of(&h) - s->moved);
        if (some == 0 || room > SHM_CHANNEL_BYTES || room % SHM_LINE_BYTES != 0)
            return; /* no room, or the peer's counter is none of ours */
        stretch data = data_of(&h, s->moved, some);
        if (s->moved == 0)
            put(channel, written, &h, sizeof h);
        put(channel, written + data.skip, (const unsigned char *)c->in + data.begin,
            data.size_bytes);
        written += some;
        s->moved += some;
        atomic_store(&channel->written, written);
        shm_sync_ring(m->sync, peer);
        if (s->moved == length_of(&h)) {
            sends->first = s->next;
            m->under_way--;
            atomic_store(&s->is_done, true);
        }
    }
}

/* The first recv with this tag, taken off the list; NULL: none. */
static shm_message *take_recv(shm_receives *r, uint32_t tag)
{
    shm_message *before = NULL, *found = r->first;
    while (found != NULL && (uint32_t)found->what->tag != tag) {
        before = found;
        found = found->next;
    }
    if (found == NULL)
        return NULL;
    *(before == NULL ? &r->first : &before->next) = found->next;
    if (r->last == found)
        r->last = before;
    return found;
}

static status check_same(const head *h, const collective *c)
{
    if (h->count == c->count && h->type == (uint32_t)c->type)
        return STATUS_OK;
    return FAIL(STATUS_INVALID,
                "rank %d sends %zu x %s with tag %d, but this rank receives %zu x %s", c->root,
                (size_t)h->count, dtype_name((dtype)h->type), c->tag, c->count,
                dtype_name(c->type));
}

/* Takes the next head, which has come, and finds who gets the message. */
static status open_message(shm_receives *r, const shm_channel *channel, uint64_t at, int peer)
{
    get(channel, at, &r->head, sizeof r->head);
    size_t size_bytes;
    if (r->head.type >= DTYPE_COUNT ||
        !memory_product(r->head.count, dtype_size((dtype)r->head.type), &size_bytes) ||
        size_bytes > PTRDIFF_MAX / 2)
        return FAIL(STATUS_PEER, "rank %d scribbled over the shared memory", peer);
    r->owner = take_recv(r, r->head.tag);
    r->moved = 0;
    if (r->owner != NULL)
        TRY(check_same(&r->head, r->owner->what));
    if (r->owner == NULL) {
        kept *k = malloc(sizeof *k + size_bytes);
        if (k == NULL)
            return FAIL(STATUS_NO_MEMORY, "%zu bytes from rank %d with tag %u, before its recv",
                        size_bytes, peer, r->head.tag);
        *k = (kept){.head = r->head};
        *(r->kept_first == NULL ? &r->kept_first : &r->kept_last->next) = k;
        r->filled = r->kept_last = k;
    }
    r->is_open = true;
    return STATUS_OK;
}

static void end_recv(shm_messages *m, shm_message *owner)
{
    m->under_way--;
    atomic_store(&owner->is_done, true);
}

/* Gives a kept message, which is whole, to its recv. */
static void hand_over(shm_messages *m, shm_receives *r, kept *k, shm_message *owner)
{
    kept *before = NULL;
    for (kept *i = r->kept_first; i != k; i = i->next)
        before = i;
    *(before == NULL ? &r->kept_first : &before->next) = k->next;
    if (r->kept_last == k)
        r->kept_last = before;
    memcpy(owner->what->out, k->bytes, bytes_of(&k->head));
    free(k);
    end_recv(m, owner);
}

static void close_message(shm_messages *m, shm_receives *r)
{
    kept *k = r->filled;
    r->is_open = false;
    r->filled = NULL;
    if (k == NULL)
        end_recv(m, r->owner);
    else if (k->owner != NULL)
        hand_over(m, r, k, k->owner);
}

static bool is_wanted(const shm_receives *r)
{
    bool is_claimed = r->is_open && (r->owner != NULL || r->filled->owner != NULL);
    return r->first != NULL || is_claimed;
}

/* Reads from the channel what has come, as long as there is a recv. */
static status pull(shm_messages *m, int peer)
{
    shm_receives *r = &m->from[peer];
    shm_channel *channel = shm_region_channel(&m->sync->region, peer, m->sync->region.rank);
    uint64_t read = atomic_load_explicit(&channel->read, memory_order_relaxed);
    while (is_wanted(r)) {
        uint64_t written = atomic_load(&channel->written);
        size_t there = (size_t)(written - read);
        if (there == 0)
            return STATUS_OK;
        if (there > SHM_CHANNEL_BYTES || there % SHM_LINE_BYTES != 0)
            return FAIL(STATUS_PEER, "rank %d scribbled over the shared memory", peer);
        if (!r->is_open)
            TRY(open_message(r, channel, read, peer));
        size_t some = least(least(there, PIECE_BYTES), length_of(&r->head) - r->moved);
        stretch data = data_of(&r->head, r->moved, some);
        unsigned char *out = r->filled != NULL ? r->filled->bytes : r->owner->what->out;
        get(channel, read + data.skip, out + data.begin, data.size_bytes);
        read += some;
        r->moved += some;
        atomic_store(&channel->read, read);
        shm_sync_ring(m->sync, peer);
        if (r->moved == length_of(&r->head))
            close_message(m, r);
    }
    return STATUS_OK;
}

status shm_messages_move(void *ctx, bool *more)
{
    shm_messages *m = ctx;
    status st = STATUS_OK;
    pthread_mutex_lock(&m->lock);
    for (int peer = 0; peer < m->world_size && m->under_way > 0; peer++) {
        push(m, peer);
        if (st == STATUS_OK)
            st = pull(m, peer);
    }
    *more = m->under_way > 0;
    pthread_mutex_unlock(&m->lock);
    return st;
}

status shm_messages_create(shm_sync *sync, int world_size, shm_messages *out)
{
    size_t n = (size_t)world_size;
    *out = (shm_messages){.sync = sync, .world_size = world_size};
    pthread_mutex_init(&out->lock, NULL);
    out->to = calloc(n, sizeof *out->to);
    out->from = calloc(n, sizeof *out->from);
    if (out->to == NULL || out->from == NULL) {
        shm_messages_free(out);
        return FAIL(STATUS_NO_MEMORY, "messages of %d ranks", world_size);
    }
    return STATUS_OK;
}

void shm_messages_free(shm_messages *m)
{
    if (m->sync == NULL)
        return;
    for (int peer = 0; m->from != NULL && peer < m->world_size; peer++)
        while (m->from[peer].kept_first != NULL) {
            kept *k = m->from[peer].kept_first;
            m->from[peer].kept_first = k->next;
            free(k);
        }
    free(m->to);
    free(m->from);
    pthread_mutex_destroy(&m->lock);
    *m = (shm_messages){0};
}

/* Finds the oldest message that came before this recv; else the recv waits for one. */
static status launch_recv(shm_messages *m, shm_receives *r, shm_message *message)
{
    kept *k = r->kept_first;
    while (k != NULL && (k->owner != NULL || k->head.tag != (uint32_t)message->what->tag))
        k = k->next;
    if (k != NULL)
        TRY(check_same(&k->head, message->what));
    if (k == NULL) {
        *(r->first == NULL ? &r->first : &r->last->next) = message;
        r->last = message;
    } else if (k == r->filled) {
        k->owner = message;
    } else {
        hand_over(m, r, k, message);
    }
    return STATUS_OK;
}

status shm_messages_launch(shm_messages *m, const collective *what, shm_message *message)
{
    status st = STATUS_OK;
    *message = (shm_message){.what = what};
    pthread_mutex_lock(&m->lock);
    m->under_way++;
    if (what->kind == COLLECTIVE_SEND) {
        shm_sends *sends = &m->to[what->root];
        *(sends->first == NULL ? &sends->first : &sends->last->next) = message;
        sends->last = message;
        push(m, what->root);
    } else {
        st = launch_recv(m, &m->from[what->root], message);
    }
    pthread_mutex_unlock(&m->lock);
    return st;
}

status shm_messages_wait(shm_messages *m, const shm_message *message, int64_t deadline_ns)
{
    bool sends = message->what->kind == COLLECTIVE_SEND;
    if (atomic_load(&message->is_done))
        return STATUS_OK;
    return shm_sync_await_done(m->sync,
                               &(shm_awaited){.done = &message->is_done,
                                              .peer = message->what->root,
                                              .what = sends ? "receive" : "send"},
                               deadline_ns);
}
