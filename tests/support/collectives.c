#include "tests/support/collectives.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

/* Empty, single, indivisible, whole lines, even, prime, more than a slot of staging. */
static const size_t COUNTS[] = {0, 1, 7, 64, 1000, 7919, 300001};

enum {
    N_COUNTS = sizeof COUNTS / sizeof COUNTS[0],
    MAX_COUNT = 300001,
    MAX_BYTES = MAX_COUNT * 8,
    BARRIERS = 50,
    OUTSTANDING = 150,
    N_BITS = 10007,
};

typedef struct buffers {
    memory_kind kind;
    void *in, *out, *heap;
} buffers;

static status make_buffers(process_group *group, int rank, memory_kind kind, buffers *b)
{
    *b = (buffers){.kind = kind};
    TRY(process_group_alloc(group, MAX_BYTES, &b->heap));
    if (kind == MEMORY_SYMMETRIC || (kind == MEMORY_MIXED && rank % 2 == 0)) {
        b->in = b->out = b->heap;
        return STATUS_OK;
    }
    b->out = malloc(MAX_BYTES);
    b->in = kind == MEMORY_OUT_OF_PLACE ? malloc(MAX_BYTES) : b->out;
    return b->in != NULL && b->out != NULL ? STATUS_OK : FAIL(STATUS_NO_MEMORY, "test buffers");
}

static void free_buffers(buffers *b)
{
    if (b->out != b->heap)
        free(b->out);
    if (b->in != b->out)
        free(b->in);
}

/* Integers of -50 .. 50: every sum of a few is exact in all types. */
static int64_t value_of(int rank, size_t i)
{
    return (int64_t)((i * 7 + (size_t)rank * 13 + i % 5 * (size_t)rank) % 101) - 50;
}

static int64_t reduced(reduce_op op, int world_size, size_t i)
{
    int64_t acc = value_of(0, i);
    for (int rank = 1; rank < world_size; rank++) {
        int64_t x = value_of(rank, i);
        if (op == REDUCE_SUM)
            acc += x;
        else if (op == REDUCE_MIN ? x < acc : x > acc)
            acc = x;
    }
    return acc;
}

static void put(void *data, dtype type, size_t i, int64_t value)
{
    if (type == DTYPE_F32)
        ((float *)data)[i] = (float)value;
    else if (type == DTYPE_F64)
        ((double *)data)[i] = (double)value;
    else
        ((int64_t *)data)[i] = value;
}

static double get(const void *data, dtype type, size_t i)
{
    if (type == DTYPE_F32)
        return (double)((const float *)data)[i];
    return type == DTYPE_F64 ? ((const double *)data)[i] : (double)((const int64_t *)data)[i];
}

static status expect(const void *data, dtype type, size_t i, int64_t want, const char *what)
{
    double got = get(data, type, i);
    if (got < (double)want || got > (double)want)
        return FAIL(STATUS_INVALID, "%s: dtype %d [%zu] is %g, want %g", what, (int)type, i, got,
                    (double)want);
    return STATUS_OK;
}

static status all_reduce_once(process_group *group, const buffers *b, dtype type, reduce_op op,
                              size_t count)
{
    int rank = process_group_rank(group), world_size = process_group_world_size(group);
    work *w = NULL;
    for (size_t i = 0; i < count; i++)
        put(b->in, type, i, value_of(rank, i));
    TRY(process_group_all_reduce_async(group, b->in, b->out, count, type, op, 1, NULL, &w));
    TRY(process_group_wait(group, w, NULL));
    for (size_t i = 0; i < count; i++)
        TRY(expect(b->out, type, i, reduced(op, world_size, i), "all_reduce"));
    for (size_t i = 0; i < count && b->in != b->out; i++)
        TRY(expect(b->in, type, i, value_of(rank, i), "in of all_reduce"));
    return STATUS_OK;
}

status collectives_all_reduce(process_group *group, int rank, int world_size, void *arg)
{
    (void)world_size;
    buffers b;
    status st = make_buffers(group, rank, *(const memory_kind *)arg, &b);
    for (int n = 0; n < N_COUNTS && st == STATUS_OK; n++)
        for (int type = DTYPE_F32; type <= DTYPE_I64 && st == STATUS_OK; type++)
            for (int op = REDUCE_SUM; op <= REDUCE_MAX && st == STATUS_OK; op++)
                if (COUNTS[n] < MAX_COUNT || op == type) /* the long ones: each op and type once */
                    st = all_reduce_once(group, &b, (dtype)type, (reduce_op)op, COUNTS[n]);
    free_buffers(&b);
    return st;
}

static status broadcast_once(process_group *group, void *data, dtype type, size_t count, int root)
{
    int rank = process_group_rank(group);
    for (size_t i = 0; i < count; i++)
        put(data, type, i, value_of(rank, i));
    TRY(process_group_broadcast(group, data, count, type, root));
    for (size_t i = 0; i < count; i++)
        TRY(expect(data, type, i, value_of(root, i), "broadcast"));
    return STATUS_OK;
}

status collectives_broadcast(process_group *group, int rank, int world_size, void *arg)
{
    buffers b;
    status st = make_buffers(group, rank, *(const memory_kind *)arg, &b);
    for (int root = 0; root < world_size && st == STATUS_OK; root++)
        for (int n = 0; n < N_COUNTS && st == STATUS_OK; n++)
            st = broadcast_once(group, b.out, (dtype)((root + n) % 3), COUNTS[n], root);
    free_buffers(&b);
    return st;
}

status collectives_barrier(process_group *group, int rank, int world_size, void *arg)
{
    (void)rank;
    _Atomic int *entered = arg;
    for (int round = 1; round <= BARRIERS; round++) {
        atomic_fetch_add(entered, 1);
        TRY(process_group_barrier(group));
        int seen = atomic_load(entered);
        if (seen < round * world_size)
            return FAIL(STATUS_INVALID, "barrier %d passed when %d of %d had come", round, seen,
                        round * world_size);
        TRY(process_group_barrier(group));
    }
    return STATUS_OK;
}

static status start_many(process_group *group, int rank, int64_t *data, work **works)
{
    for (int k = 0; k < OUTSTANDING; k++) {
        int64_t *slice = data + k * 100;
        for (int i = 0; i < 100; i++)
            slice[i] = value_of(rank, (size_t)(k * 100 + i));
        TRY(process_group_all_reduce_async(group, slice, slice, (size_t)(k % 100), DTYPE_I64,
                                           REDUCE_SUM, 1, NULL, &works[k]));
    }
    return STATUS_OK;
}

static status check_many(int rank, int world_size, const int64_t *data)
{
    for (int k = 0; k < OUTSTANDING; k++)
        for (int i = 0; i < 100; i++) {
            size_t at = (size_t)(k * 100 + i);
            int64_t want = i < k % 100 ? reduced(REDUCE_SUM, world_size, at) : value_of(rank, at);
            TRY(expect(data, DTYPE_I64, at, want, "one of many"));
        }
    return STATUS_OK;
}

status collectives_outstanding(process_group *group, int rank, int world_size, void *arg)
{
    (void)arg;
    static const size_t bytes = OUTSTANDING * 100 * sizeof(int64_t);
    work *works[OUTSTANDING];
    void *heap = NULL;
    TRY(process_group_alloc(group, bytes, &heap));
    TRY(start_many(group, rank, heap, works));
    for (int k = 0; k < OUTSTANDING; k++)
        TRY(process_group_wait(group, works[k], NULL));
    return check_many(rank, world_size, heap);
}

/* Fractions whose sums round, of both signs and several magnitudes. */
static void fill_fractions(float *data, int rank)
{
    uint32_t x = 2463534242u + (uint32_t)rank;
    for (int i = 0; i < N_BITS; i++) {
        x ^= x << 13;
        x ^= x >> 17;
        x ^= x << 5;
        data[i] = ((float)(x & 0xffffff) / 16777216.0f - 0.5f) * (i % 3 == 0 ? 100.0f : 0.01f);
    }
}

static status reduce_scaled(process_group *group, float *data, float prescale)
{
    work *w = NULL;
    TRY(process_group_all_reduce_async(group, data, data, N_BITS, DTYPE_F32, REDUCE_SUM, prescale,
                                       NULL, &w));
    return process_group_wait(group, w, NULL);
}

static status compare(const float *a, const float *b, const char *what)
{
    for (int i = 0; i < N_BITS; i++)
        if (memcmp(&a[i], &b[i], sizeof a[i]) != 0)
            return FAIL(STATUS_INVALID, "%s: [%d] is %a, want %a", what, i, (double)a[i],
                        (double)b[i]);
    return STATUS_OK;
}

static status check_bits(process_group *group, int rank, float *first, float *again)
{
    static const float scale = 1.0f / 3.0f;
    size_t bytes = N_BITS * sizeof(float);
    fill_fractions(first, rank);
    fill_fractions(again, rank);
    TRY(reduce_scaled(group, first, scale));
    TRY(reduce_scaled(group, again, scale));
    TRY(compare(again, first, "a second run"));
    fill_fractions(again, rank);
    for (int i = 0; i < N_BITS; i++)
        again[i] *= scale;
    TRY(reduce_scaled(group, again, 1));
    TRY(compare(again, first, "scaled before"));
    memcpy(again, first, bytes);
    TRY(process_group_broadcast(group, again, N_BITS, DTYPE_F32, 0));
    return compare(again, first, "rank 0's bits");
}

status collectives_bits(process_group *group, int rank, int world_size, void *arg)
{
    (void)world_size;
    (void)arg;
    void *shared = NULL;
    size_t bytes = N_BITS * sizeof(float);
    TRY(process_group_alloc(group, bytes, &shared));
    float *plain = malloc(2 * bytes);
    if (plain == NULL)
        return FAIL(STATUS_NO_MEMORY, "test buffers");
    status st = check_bits(group, rank, plain, plain + N_BITS);
    if (st == STATUS_OK) /* and the kind of memory makes no difference */
        st = check_bits(group, rank, shared, plain + N_BITS);
    if (st == STATUS_OK)
        st = compare(plain, shared, "symmetric memory");
    free(plain);
    return st;
}
