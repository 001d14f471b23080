/* What concerns more than one operation: who waits for whom, many at once, bits, sub-groups. */
#include "tests/support/conformance.h"

#include "base/clock.h"
#include "kernels/ops.h"

#include <stdlib.h>
#include <string.h>

enum { BARRIERS = 50, OUTSTANDING = 150, N_BITS = 10007, SUB_COUNT = 257, LATE_MS = 30 };

/* Nobody passes a barrier too early. */
status conformance_barrier(conformance_state *s, const conformance_row *row)
{
    _Atomic int *entered = &s->plan->board->entered;
    (void)row;
    for (int round = 1; round <= BARRIERS; round++) {
        atomic_fetch_add(entered, 1);
        TRY(process_group_barrier(s->group));
        int seen = atomic_load(entered);
        if (seen < round * s->world_size)
            return FAIL(STATUS_INVALID, "barrier %d passed when %d of %d had come", round, seen,
                        round * s->world_size);
        TRY(process_group_barrier(s->group));
    }
    return STATUS_OK;
}

/* More works under way than any backend keeps notes of, of all kinds; waited for in order. */
static const collective_kind MANY_KINDS[] = {COLLECTIVE_ALL_REDUCE, COLLECTIVE_BROADCAST,
                                             COLLECTIVE_REDUCE};
enum { N_MANY_KINDS = sizeof MANY_KINDS / sizeof MANY_KINDS[0] };

static status start_many(conformance_state *s, prepared_case *list, work **works)
{
    size_t at = 0;
    for (int k = 0; k < OUTSTANDING; k++) {
        conformance_case what = {.kind = MANY_KINDS[k % N_MANY_KINDS],
                                 .type = (dtype)(k % DTYPE_COUNT),
                                 .memory = s->plan->memory[k % s->plan->n_memory],
                                 .count = (size_t)k % 100,
                                 .root = k % s->world_size,
                                 .prescale = 1};
        TRY(conformance_case_prepare(s->group, &s->arena, &what, at, &list[k]));
        at += conformance_case_bytes(&what, s->world_size);
    }
    for (int k = 0; k < OUTSTANDING; k++)
        TRY(process_group_launch(s->group, &list[k].c, list[k].on_device ? s->arena.stream : NULL,
                                 &works[k]));
    return STATUS_OK;
}

static status finish_many(conformance_state *s, prepared_case *list, work **works)
{
    for (int k = 0; k < OUTSTANDING; k++)
        TRY(process_group_wait(s->group, works[k], NULL));
    for (int k = 0; k < OUTSTANDING; k++)
        TRY(conformance_case_check(&list[k]));
    return STATUS_OK;
}

status conformance_many(conformance_state *s, const conformance_row *row)
{
    work *works[OUTSTANDING];
    prepared_case *list = calloc(OUTSTANDING, sizeof *list);
    (void)row;
    if (list == NULL)
        return FAIL(STATUS_NO_MEMORY, "a list of works");
    status st = start_many(s, list, works);
    if (st == STATUS_OK)
        st = finish_many(s, list, works);
    free(list);
    return st;
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

/* Three of fractions: this rank's data, the sums and the first sums. */
typedef struct bits {
    float in[N_BITS], out[N_BITS], first[N_BITS];
} bits;

static status sum_fractions(conformance_state *s, bits *b, memory_kind kind, bool scaled_before)
{
    static const float scale = 1.0f / 3.0f;
    bool on_device = kind >= MEMORY_HOST_KINDS && s->arena.stream != NULL;
    bool in_heap = kind == MEMORY_SYMMETRIC || kind == MEMORY_OUT_IN_HEAP;
    device *dev = ranks_device();
    void *data = on_device ? (void *)s->arena.device[0] : in_heap ? s->arena.heap : s->arena.out;
    collective c = {.kind = COLLECTIVE_ALL_REDUCE,
                    .in = data,
                    .out = data,
                    .count = N_BITS,
                    .prescale = scaled_before ? 1 : scale};
    fill_fractions(b->in, s->rank);
    for (int i = 0; i < N_BITS && scaled_before; i++)
        b->in[i] *= scale;
    if (on_device)
        TRY(dev->ops->upload(dev, data, b->in, sizeof b->in));
    else
        memcpy(data, b->in, sizeof b->in);
    TRY(process_group_run(s->group, &c, on_device ? s->arena.stream : NULL));
    if (on_device)
        return dev->ops->download(dev, b->out, data, sizeof b->out);
    memcpy(b->out, data, sizeof b->out);
    return STATUS_OK;
}

static status compare(const float *a, const float *b, const char *what)
{
    for (int i = 0; i < N_BITS; i++)
        if (memcmp(&a[i], &b[i], sizeof a[i]) != 0)
            return FAIL(STATUS_INVALID, "%s: [%d] is %a, want %a", what, i, (double)a[i],
                        (double)b[i]);
    return STATUS_OK;
}

/* Sums in rank order, every product and sum rounded by itself. */
static void sum_in_rank_order(int world_size, bits *b)
{
    static const float scale = 1.0f / 3.0f;
    for (int rank = 0; rank < world_size; rank++) {
        fill_fractions(b->in, rank);
        for (int i = 0; i < N_BITS; i++) {
            volatile float x = b->in[i] * scale, sum = rank == 0 ? x : b->first[i] + x;
            b->first[i] = sum;
        }
    }
}

/* The same bits in every kind of memory, again, scaled before, and on all ranks. */
static status check_bits(conformance_state *s, bits *b)
{
    const conformance_plan *plan = s->plan;
    if (plan->one_order)
        sum_in_rank_order(s->world_size, b);
    for (int i = 0; i < plan->n_memory; i++)
        for (int again = 0; again < 3; again++) {
            TRY(sum_fractions(s, b, plan->memory[i], again == 2));
            if (i == 0 && again == 0 && !plan->one_order)
                memcpy(b->first, b->out, sizeof b->first);
            TRY(compare(b->out, b->first,
                        again == 0   ? plan->one_order ? "not the sum in rank order"
                                                       : "another kind of memory"
                        : again == 1 ? "a second run"
                                     : "scaled before"));
        }
    memcpy(b->out, b->first, sizeof b->out);
    TRY(process_group_broadcast(s->group, b->out, N_BITS, DTYPE_F32, 0, NULL));
    return compare(b->out, b->first, "rank 0's bits");
}

status conformance_bits(conformance_state *s, const conformance_row *row)
{
    bits *b = malloc(sizeof *b);
    (void)row;
    if (b == NULL)
        return FAIL(STATUS_NO_MEMORY, "fractions");
    status st = check_bits(s, b);
    free(b);
    return st;
}

/* Some operations in a sub-group, which knows its ranks by their place in it. */
static status use(conformance_state *s, process_group *sub, int place, int size)
{
    static const collective_kind kinds[] = {COLLECTIVE_ALL_REDUCE, COLLECTIVE_BROADCAST,
                                            COLLECTIVE_REDUCE};
    if (process_group_rank(sub) != place || process_group_world_size(sub) != size)
        return FAIL(STATUS_INVALID, "rank %d of %d in the sub-group, want %d of %d",
                    process_group_rank(sub), process_group_world_size(sub), place, size);
    for (int k = 0; k < 3; k++)
        for (int root = 0; root < size; root++) {
            conformance_case what = {.kind = kinds[k],
                                     .type = (dtype)((k + root) % DTYPE_COUNT),
                                     .memory =
                                         s->arena.stream != NULL ? MEMORY_DEVICE : MEMORY_PLAIN,
                                     .count = SUB_COUNT,
                                     .root = root,
                                     .prescale = 1};
            TRY(conformance_case_run(sub, &s->arena, &what));
        }
    return process_group_barrier(sub);
}

/* ranks: `group`'s, every step-th from `first` on; a member is `place` of n in it. *out: NULL on
 * ranks that are not in it. */
static status make(process_group *group, int first, int step, process_group **out)
{
    int ranks[CONFORMANCE_RANKS], n = 0;
    for (int rank = first; rank < process_group_world_size(group); rank += step)
        ranks[n++] = rank;
    bool is_in =
        process_group_rank(group) >= first && (process_group_rank(group) - first) % step == 0;
    TRY(process_group_new_group(group, &(sub_group){.ranks = ranks, .n = n}, out));
    if ((*out != NULL) == is_in)
        return STATUS_OK;
    return FAIL(STATUS_INVALID, "rank %d %s a sub-group of every %d. rank from %d on",
                process_group_rank(group), is_in ? "is not in" : "is in", step, first);
}

/* Even and odd ranks, at the same time; then all but the first of each; then everybody again. A
 * member comes late to each. */
static status use_groups(conformance_state *s, process_group **subs)
{
    for (int parity = 0; parity < 2 && parity < s->world_size; parity++) {
        if (s->rank == s->world_size - 1)
            clock_sleep_ms(LATE_MS);
        TRY(make(s->group, parity, 2, &subs[parity]));
    }
    process_group *own = subs[s->rank % 2];
    int size = process_group_world_size(own);
    TRY(use(s, own, s->rank / 2, size));
    if (size > 1) {
        TRY(make(own, 1, 1, &subs[2]));
        if (subs[2] != NULL)
            TRY(use(s, subs[2], s->rank / 2 - 1, size - 1));
        TRY(use(s, own, s->rank / 2, size));
    }
    return use(s, s->group, s->rank, s->world_size);
}

status conformance_groups(conformance_state *s, const conformance_row *row)
{
    process_group *subs[3] = {NULL, NULL, NULL};
    (void)row;
    status st = use_groups(s, subs);
    status_kept why;
    status_keep(&why);
    for (int i = 2; i >= 0; i--)
        process_group_destroy(subs[i]);
    status_restore(&why);
    return st;
}
