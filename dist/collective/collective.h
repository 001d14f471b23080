/* Collectives: what they move, what each is, how ranks that can read each other's memory do one,
 * and the arithmetic of a reduction. */
#ifndef MNIST_DDP_DIST_COLLECTIVE_COLLECTIVE_H
#define MNIST_DDP_DIST_COLLECTIVE_COLLECTIVE_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What collectives move and how they combine it. */

typedef enum dtype {
    DTYPE_F32,
    DTYPE_F64,
    DTYPE_I64,
    DTYPE_BF16, /* base/half.h */
    DTYPE_F16,
    DTYPE_U8,
    DTYPE_COUNT,
} dtype;

/* REDUCE_AVG is the sum divided by the number of ranks; integers are cut towards zero. */
typedef enum reduce_op {
    REDUCE_SUM,
    REDUCE_MIN,
    REDUCE_MAX,
    REDUCE_PROD,
    REDUCE_AVG,
    REDUCE_OP_COUNT,
} reduce_op;

size_t dtype_size(dtype type); /* bytes */
bool dtype_is_float(dtype type);
const char *dtype_name(dtype type);       /* "f32" */
const char *reduce_op_name(reduce_op op); /* "sum" */

/* A collective: what it is, what it reads and sets in one rank's memory, and how one rank alone
 * does it. */

typedef enum collective_kind {
    COLLECTIVE_ALL_REDUCE,
    COLLECTIVE_BROADCAST,
    COLLECTIVE_BARRIER,
    COLLECTIVE_REDUCE,
    COLLECTIVE_ALL_GATHER,
    COLLECTIVE_REDUCE_SCATTER,
    COLLECTIVE_GATHER,
    COLLECTIVE_SCATTER,
    COLLECTIVE_ALL_TO_ALL,
    COLLECTIVE_SEND, /* this and the next: between two ranks alone */
    COLLECTIVE_RECV,
    COLLECTIVE_KIND_COUNT,
} collective_kind;

/*                  in                                    out
 *   all_reduce     (count)                               (count)
 *   broadcast      (count), equal to out                 (count): the root's
 *   reduce         (count)                               (count), on the root
 *   all_gather     (count)                               (world_size, count)
 *   reduce_scatter (world_size, count)                   (count)
 *   gather         (count)                               (world_size, count), on the root
 *   scatter        (world_size, count), on the root      (count)
 *   all_to_all     (world_size, count), row r to rank r  the same, row r from rank r
 *   send, recv     (count)                               (count)
 *
 * In place: in equals out if they have one shape; else the smaller one may be this rank's row of
 * the other. All ranks do so, or none. They overlap in no other way. What is not set or read on a
 * rank may be NULL there. */
typedef struct collective {
    collective_kind kind;
    reduce_op op;
    dtype type;
    const void *in;
    void *out;
    size_t count; /* elements; a barrier has none */
    int root;     /* or the peer of a send or recv */
    int tag;      /* a send's or recv's: a recv takes what was sent with its tag, oldest first */
    float
        prescale; /* every element is multiplied by it on the way in (float types); 0 or 1: none */
    uint64_t seq; /* this group's running number, from 1: names the collective in errors. Sends and
                       receives have numbers of their own. */
    int64_t timeout_ms; /* longer for the first of its kind (process_group_patience_ms) */
    bool blocks; /* the caller waits for it at once: a backend need not move it beside the caller */
    const char *label; /* what it carries, as process_group_keep_label gave it; NULL: not said */
} collective;

/* Bytes that a rank sends to others and gets from them. */
typedef struct rank_traffic {
    uint64_t sent, received;
} rank_traffic;

const char *collective_kind_name(collective_kind kind); /* "all_reduce" */
bool collective_is_send_or_recv(collective_kind kind);
bool collective_has_root(collective_kind kind); /* or a peer */
bool collective_reduces(collective_kind kind);

/* STATUS_INVALID if the arguments make no sense for this rank of `world_size`. Also if its bytes
 * are more than memory can hold: the functions below need not check. */
status collective_check(const collective *c, int rank, int world_size);

/* "all_reduce #17 (bucket 1: fc1.weight, fc1.bias)", or without a label "all_reduce #17 (2 x f64)".
 */
void collective_describe(const collective *c, char *out, size_t size_bytes);

/* What it reads at c->in and sets at c->out on this rank; 0: nothing. */
size_t collective_in_bytes(const collective *c, int rank, int world_size);
size_t collective_out_bytes(const collective *c, int rank, int world_size);

/* What it moves on this rank if a ring reduces and gathers, and a root or a pair of ranks exchange
 * directly: a root sends or gets its data world_size - 1 times. */
rank_traffic collective_star_traffic(const collective *c, int rank, int world_size);

/* The same, but broadcast and reduce pass through a chain of ranks that ends at the root. */
rank_traffic collective_chain_traffic(const collective *c, int rank, int world_size);

/* Does it for a world of one rank, on host memory. */
void collective_do_alone(const collective *c);

/* How ranks that can read each other's memory do a collective: some give, which is to show their
 * `in`; some take, which is to read from all that give and set their own `out`.
 *
 *   kind            gives  rows of in  takes   sets
 *   all_reduce      all    1           all     the reduction
 *   reduce          all    1           root    the reduction
 *   reduce_scatter  all    per taker   all     the reduction of its rows
 *   broadcast       root   1           all     a copy
 *   scatter         root   per taker   all     a copy of its row
 *   all_gather      all    1           all     a row per giver
 *   gather          all    1           root    a row per giver
 *   all_to_all      all    per taker   all     a row per giver
 *   barrier         none
 */

bool exchange_gives(const collective *c, int rank);
bool exchange_takes(const collective *c, int rank);
bool exchange_is_read(const collective *c, int rank); /* it gives to others, not to itself alone */

/* Of a giver's `in`: 1, or world_size if every taker has a row of its own. */
int exchange_rows(const collective *c, int world_size);

/* Which of them `rank` takes. */
size_t exchange_row(const collective *c, int rank);

/* Sets elements at .. at + count - 1 of what `rank` takes: of its only row, or of each.
 * given[r]: those that rank r gives to it, if r gives. It may lie where the result goes, and
 * overlaps that in no other way. Reductions go in rank order. */
void exchange_take(const collective *c, int rank, int world_size, const void *const *given,
                   size_t at, size_t count);

/* Which elements of `count` one of world_size ranks works on, cut at whole cache lines. */
typedef struct exchange_part {
    size_t begin, end;
} exchange_part;
exchange_part exchange_part_of(const collective *c, size_t count, int rank, int world_size);

/* Element-wise reductions over the buffers of several ranks, all in this process's memory. */

/* buffers[0..n-1], each (count) of `type`, none overlapping, all become the same reduction:
 *
 *   acc = s * b[0]; acc = op(acc, s * b[1]); ... op(acc, s * b[n-1])       s = prescale
 *
 * with every product and every sum rounded on its own, so that the result has the bits of scaling
 * first and summing then. REDUCE_AVG divides the sum by n. 16-bit floats are combined in float32
 * and rounded once, at the end. s is not used for integers, which wrap. Deterministic. */
void reduce_buffers(dtype type, reduce_op op, float prescale, void *const *buffers, int n,
                    size_t count);

/* The same from in[0..n_in-1] into all of out[0..n_out-1], each (count). An out may be one of the
 * ins; nothing else overlaps. The bits are those of reduce_buffers. */
typedef struct reduce_parts {
    const void *const *in;
    int n_in;
    void *const *out;
    int n_out;
} reduce_parts;
void reduce_into(dtype type, reduce_op op, float prescale, const reduce_parts *parts, size_t count);

/* acc[i] = op(acc[i], x[i]); acc and x (count) of `type` do not overlap. REDUCE_AVG is a sum here:
 * reduce_divide ends it. */
void reduce_fold(dtype type, reduce_op op, void *acc, const void *x, size_t count);

/* data[i] /= divisor, integers cut towards zero; data (count) of `type`. */
void reduce_divide(dtype type, void *data, size_t count, int divisor);

#ifdef __cplusplus
}
#endif
#endif
