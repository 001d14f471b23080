#include "tests/support/exchanges.h"

#include <stdlib.h>
#include <string.h>

static const size_t COUNTS[] = {0, 1, 3, 8, 7919, 140009};

enum { N_COUNTS = sizeof COUNTS / sizeof COUNTS[0], MAX_COUNT = 140009, MAX_WORLD = 8 };

/* Byte i of what `from` has for `to`. */
static unsigned char byte_of(int from, int to, size_t i)
{
    return (unsigned char)(i * 31 + i / 251 + (size_t)from * 97 + (size_t)to * 57);
}

static void fill(unsigned char *data, int from, int to, size_t size_bytes)
{
    for (size_t i = 0; i < size_bytes; i++)
        data[i] = byte_of(from, to, i);
}

static status expect(const unsigned char *data, int from, int to, size_t size_bytes,
                     const char *what)
{
    for (size_t i = 0; i < size_bytes; i++)
        if (data[i] != byte_of(from, to, i))
            return FAIL(STATUS_INVALID, "%s: byte %zu from rank %d to %d of %zu is wrong", what, i,
                        from, to, size_bytes);
    return STATUS_OK;
}

/* One collective of rows. `to`: 0 if all takers get the same. */
typedef struct row_case {
    process_group *group;
    unsigned char *in, *out; /* (world_size, row) each; equal: in place */
    collective_kind kind;
    dtype type;
    size_t count;
    int root;
} row_case;

static bool is_per_taker(collective_kind kind)
{
    return kind == COLLECTIVE_SCATTER || kind == COLLECTIVE_ALL_TO_ALL;
}

static bool is_per_giver(collective_kind kind)
{
    return kind == COLLECTIVE_ALL_GATHER || kind == COLLECTIVE_GATHER ||
           kind == COLLECTIVE_ALL_TO_ALL;
}

/* Where rows lie so that a collective in place is allowed. */
static void place(const row_case *c, int rank, unsigned char **in, unsigned char **out)
{
    size_t own = (size_t)rank * c->count * dtype_size(c->type);
    bool in_place = c->in == c->out;
    *in = c->in;
    *out = c->out;
    if (in_place && is_per_giver(c->kind) && !is_per_taker(c->kind))
        *in = c->out + own;
    if (in_place && is_per_taker(c->kind) && !is_per_giver(c->kind))
        *out = c->in + own;
    if (c->kind == COLLECTIVE_BROADCAST)
        *in = *out;
}

static status run_rows(const row_case *c)
{
    int rank = process_group_rank(c->group), n = process_group_world_size(c->group);
    size_t row_bytes = c->count * dtype_size(c->type);
    bool is_root = rank == c->root, rooted = collective_has_root(c->kind);
    bool gives = !rooted || is_root || c->kind == COLLECTIVE_GATHER;
    bool takes = c->kind != COLLECTIVE_GATHER || is_root;
    unsigned char *in = NULL, *out = NULL;
    place(c, rank, &in, &out);
    for (int to = 0; to < (is_per_taker(c->kind) ? n : 1) && gives; to++)
        fill(in + (size_t)to * row_bytes, rank, to, row_bytes);
    collective what = {.kind = c->kind,
                       .type = c->type,
                       .in = gives || c->kind == COLLECTIVE_BROADCAST ? in : NULL,
                       .out = takes ? out : NULL,
                       .count = c->count,
                       .root = c->root};
    TRY(process_group_run(c->group, &what, NULL));
    int to = is_per_taker(c->kind) ? rank : 0;
    for (int from = 0; from < n && takes && is_per_giver(c->kind); from++)
        TRY(expect(out + (size_t)from * row_bytes, from, to, row_bytes,
                   collective_kind_name(c->kind)));
    return takes && !is_per_giver(c->kind)
               ? expect(out, c->root, to, row_bytes, collective_kind_name(c->kind))
               : STATUS_OK;
}

static status run_all_rows(process_group *group, unsigned char *in, unsigned char *out)
{
    static const collective_kind kinds[] = {COLLECTIVE_BROADCAST, COLLECTIVE_ALL_GATHER,
                                            COLLECTIVE_GATHER, COLLECTIVE_SCATTER,
                                            COLLECTIVE_ALL_TO_ALL};
    int world_size = process_group_world_size(group);
    for (int k = 0; k < 5; k++)
        for (int n = 0; n < N_COUNTS; n++)
            for (int root = 0; root < (collective_has_root(kinds[k]) ? world_size : 1); root++) {
                dtype type = (dtype)((k + n + root) % DTYPE_COUNT);
                bool is_long = COUNTS[n] == MAX_COUNT;
                row_case c = {group,     in,  out, kinds[k], is_long ? DTYPE_F32 : type,
                              COUNTS[n], root};
                if (!is_long || root == world_size - 1 || !collective_has_root(kinds[k]))
                    TRY(run_rows(&c));
            }
    return STATUS_OK;
}

status exchanges_rows(process_group *group, int rank, int world_size, void *arg)
{
    memory_kind kind = *(const memory_kind *)arg;
    size_t size_bytes = (size_t)MAX_COUNT * sizeof(float) * (size_t)world_size;
    bool in_heap = kind == MEMORY_SYMMETRIC || (kind == MEMORY_MIXED && rank % 2 == 0);
    bool in_place = kind == MEMORY_SYMMETRIC || kind == MEMORY_PLAIN || kind == MEMORY_MIXED;
    void *heap = NULL;
    TRY(process_group_alloc(group, size_bytes, &heap));
    unsigned char *plain = calloc(2, size_bytes);
    if (plain == NULL)
        return FAIL(STATUS_NO_MEMORY, "test buffers");
    unsigned char *out = in_heap || kind == MEMORY_OUT_IN_HEAP ? heap : plain;
    status st = run_all_rows(group, in_place ? out : plain + size_bytes, out);
    if (st == STATUS_OK && (kind == MEMORY_SYMMETRIC || kind == MEMORY_MIXED)) /* out of place */
        st = run_all_rows(group, in_heap ? heap : plain + size_bytes, plain);
    free(plain);
    return st;
}

enum { TAGS = 3 };

/* Sizes of the three messages: one in its head's line, one that fits, one that does not. */
static const size_t MESSAGE_BYTES[TAGS] = {24, 5000, 700001};

static size_t message_at(int tag)
{
    size_t at = 0;
    for (int i = 0; i < tag; i++)
        at += MESSAGE_BYTES[i];
    return at;
}

/* Message `step` of a rank: peers in a rank's own order, tags turned round for every second. */
static collective message_of(int rank, int world_size, int step, unsigned char *data,
                             collective_kind kind)
{
    int peer = (rank + 1 + step / TAGS) % world_size, tag = step % TAGS;
    if (kind == COLLECTIVE_RECV) {
        peer = (rank + world_size - 1 - step / TAGS) % world_size;
        tag = (rank + step / TAGS) % 2 == 0 ? TAGS - 1 - tag : tag;
    }
    size_t at = (size_t)peer * message_at(TAGS) + message_at(tag);
    return (collective){.kind = kind,
                        .type = DTYPE_U8,
                        .in = data + at,
                        .out = data + at,
                        .count = MESSAGE_BYTES[tag],
                        .root = peer,
                        .tag = tag};
}

static status launch_any_order(process_group *group, unsigned char *sent, unsigned char *got,
                               work **works, int *n_works)
{
    int rank = process_group_rank(group), world_size = process_group_world_size(group);
    int per_way = (world_size - 1) * TAGS;
    for (int i = 0; i < 2 * per_way; i++) {
        bool sends = (i / TAGS + rank) % 2 == 0;
        int step = i / (2 * TAGS) * TAGS + i % TAGS;
        collective c = sends ? message_of(rank, world_size, step, sent, COLLECTIVE_SEND)
                             : message_of(rank, world_size, step, got, COLLECTIVE_RECV);
        if (sends)
            fill((unsigned char *)c.out, rank + 10 * c.tag, c.root, c.count);
        TRY(process_group_launch(group, &c, NULL, &works[*n_works]));
        ++*n_works;
    }
    return STATUS_OK;
}

status exchanges_any_order(process_group *group, int rank, int world_size, void *arg)
{
    work *works[2 * MAX_WORLD * TAGS];
    size_t size_bytes = message_at(TAGS) * (size_t)world_size;
    unsigned char *sent = calloc(2, size_bytes), *got = sent + size_bytes;
    int n = 0;
    (void)arg;
    if (sent == NULL)
        return FAIL(STATUS_NO_MEMORY, "test buffers");
    status st = launch_any_order(group, sent, got, works, &n);
    for (int i = 0; i < n && st == STATUS_OK; i++)
        st = process_group_wait(group, works[i], NULL);
    for (int peer = 0; peer < world_size && st == STATUS_OK; peer++)
        for (int tag = 0; tag < TAGS && st == STATUS_OK && peer != rank; tag++)
            st = expect(got + (size_t)peer * message_at(TAGS) + message_at(tag), peer + 10 * tag,
                        rank, MESSAGE_BYTES[tag], "recv");
    free(sent);
    return st;
}

status exchanges_by_tag(process_group *group, int rank, int world_size, void *arg)
{
    static const int sent[TAGS] = {0, 2, 1}, received[TAGS] = {1, 2, 0};
    work *works[TAGS];
    int peer = rank ^ 1;
    bool sends = rank % 2 == 0;
    (void)arg;
    if (peer >= world_size)
        return STATUS_OK;
    unsigned char *data = calloc(1, message_at(TAGS));
    status st = data == NULL ? FAIL(STATUS_NO_MEMORY, "test buffers") : STATUS_OK;
    for (int i = 0; i < TAGS && st == STATUS_OK; i++) {
        int tag = sends ? sent[i] : received[i];
        unsigned char *at = data + message_at(tag);
        collective c = {.kind = sends ? COLLECTIVE_SEND : COLLECTIVE_RECV,
                        .type = DTYPE_U8,
                        .in = at,
                        .out = at,
                        .count = MESSAGE_BYTES[tag],
                        .root = peer,
                        .tag = tag};
        if (sends)
            fill(at, tag, 0, c.count);
        st = sends ? process_group_launch(group, &c, NULL, &works[i])
                   : process_group_run(group, &c, NULL);
        if (st == STATUS_OK && !sends)
            st = expect(at, tag, 0, c.count, "recv by tag");
    }
    for (int i = 0; i < TAGS && st == STATUS_OK && sends; i++)
        st = process_group_wait(group, works[i], NULL);
    free(data);
    return st;
}

status exchanges_send_first(process_group *group, int rank, int world_size, void *arg)
{
    size_t size_bytes = *(const size_t *)arg;
    int next = (rank + 1) % world_size, before = (rank + world_size - 1) % world_size;
    unsigned char *data = malloc(2 * size_bytes);
    if (data == NULL)
        return FAIL(STATUS_NO_MEMORY, "test buffers");
    fill(data, rank, next, size_bytes);
    status st = process_group_send(group, data, size_bytes, DTYPE_U8, next, NULL);
    if (st == STATUS_OK)
        st = process_group_recv(group, data + size_bytes, size_bytes, DTYPE_U8, before, NULL);
    if (st == STATUS_OK)
        st = expect(data + size_bytes, before, rank, size_bytes, "recv");
    free(data);
    return st;
}

/* Odd ranks begin with the collective, even ones with the message. */
status exchanges_beside_collectives(process_group *group, int rank, int world_size, void *arg)
{
    enum { COUNT = 500000 };
    unsigned char *message = malloc(COUNT);
    float sums[4] = {1, 2, 3, 4};
    work *works[2] = {NULL, NULL};
    int peer = rank ^ 1;
    status st = message == NULL ? FAIL(STATUS_NO_MEMORY, "test buffers") : STATUS_OK;
    (void)arg;
    collective m = {.kind = rank % 2 == 0 ? COLLECTIVE_SEND : COLLECTIVE_RECV,
                    .type = DTYPE_U8,
                    .in = message,
                    .out = message,
                    .count = COUNT,
                    .root = peer};
    collective sum = {
        .kind = COLLECTIVE_ALL_REDUCE, .type = DTYPE_F32, .in = sums, .out = sums, .count = 4};
    if (st == STATUS_OK && rank % 2 == 0)
        fill(message, rank, peer, COUNT);
    const collective *order[2] = {rank % 2 == 0 ? &m : &sum, rank % 2 == 0 ? &sum : &m};
    for (int i = 0; i < 2 && st == STATUS_OK; i++)
        if (order[i] != &m || peer < world_size)
            st = process_group_launch(group, order[i], NULL, &works[i]);
    for (int i = 0; i < 2 && st == STATUS_OK; i++)
        if (works[i] != NULL)
            st = process_group_wait(group, works[i], NULL);
    if (st == STATUS_OK && rank % 2 == 1)
        st = expect(message, peer, rank, COUNT, "recv");
    if (st == STATUS_OK && (sums[3] < 4 * (float)world_size || sums[3] > 4 * (float)world_size))
        st = FAIL(STATUS_INVALID, "sum %g of %d ranks", (double)sums[3], world_size);
    free(message);
    return st;
}

static status use_sub_group(process_group *group, const int *ranks, int n)
{
    process_group *sub = NULL;
    int64_t sum = process_group_rank(group), want = 0;
    size_t size_bytes = 3000;
    for (int i = 0; i < n; i++)
        want += ranks[i];
    TRY(process_group_new_group(group, &(sub_group){.ranks = ranks, .n = n}, &sub));
    if (sub == NULL)
        return STATUS_OK;
    status st = process_group_all_reduce(sub, &sum, 1, DTYPE_I64, REDUCE_SUM, NULL);
    if (st == STATUS_OK && sum != want)
        st = FAIL(STATUS_INVALID, "a sub-group's sum is %lld, want %lld", (long long)sum,
                  (long long)want);
    if (st == STATUS_OK && n > 1)
        st = exchanges_send_first(sub, process_group_rank(sub), n, &size_bytes);
    if (st == STATUS_OK)
        st = process_group_barrier(sub);
    process_group_destroy(sub);
    return st;
}

status exchanges_in_sub_groups(process_group *group, int rank, int world_size, void *arg)
{
    int ranks[MAX_WORLD];
    (void)rank;
    (void)arg;
    for (int odd = 0; odd < 2; odd++) {
        int n = 0;
        for (int r = odd; r < world_size; r += 2)
            ranks[n++] = r;
        if (n > 0)
            TRY(use_sub_group(group, ranks, n));
    }
    for (int r = 0; r < world_size; r++)
        ranks[r] = r;
    TRY(use_sub_group(group, ranks, world_size > 1 ? world_size - 1 : 1));
    return process_group_barrier(group);
}
