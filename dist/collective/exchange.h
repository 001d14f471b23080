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
#ifndef MNIST_DDP_DIST_COLLECTIVE_EXCHANGE_H
#define MNIST_DDP_DIST_COLLECTIVE_EXCHANGE_H

#include "dist/collective/collective.h"

#include <stdbool.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

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

#ifdef __cplusplus
}
#endif
#endif
