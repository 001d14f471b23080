/* An all-reduce around a ring: each rank's array is cut into as many chunks as there are ranks. In
 * N - 1 steps every rank sends one chunk to the next rank and adds the one that comes to its own:
 * after them each rank has one chunk's sum over all. In N - 1 more steps the sums go round. Each
 * rank sends 2 (N - 1) chunks, 2 (N - 1) / N of the array, however many ranks there are. */
#include "app/demo/demo.h"

#include <stdio.h>
#include <string.h>

enum { RANKS_MAX = 7, CELL_BYTES = 32 };

/* What one rank has: a number per chunk, and the ranks whose numbers are in it. */
typedef struct ring {
    demo *d;
    double chunks[RANKS_MAX];
    int64_t sent_bytes; /* and as many received */
} ring;

static int around(const ring *r, int number)
{
    int n = r->d->world_size;
    return (number % n + n) % n;
}

/* Shows the rank's chunks; the one at `marked` with a star. */
static status show_chunks(const ring *r, int marked)
{
    char row[RANKS_MAX * CELL_BYTES] = "";
    demo_columns(r->d, "%s", "");
    for (int c = 0; c < r->d->world_size; c++) {
        demo_columns(r->d, "chunk %d", c);
        snprintf(row + strlen(row), CELL_BYTES, "|%.0f%s", r->chunks[c], c == marked ? "*" : " ");
    }
    demo_row(r->d, "rank %d%s", r->d->rank, row);
    return demo_show(r->d);
}

/* Step `step` of one of the two halves. */
static status show_step(ring *r, int step, bool reduces)
{
    demo *d = r->d;
    int steps = d->world_size - 1;
    int out_chunk = around(r, d->rank - step + (reduces ? 0 : 1));
    int in_chunk = around(r, out_chunk - 1);
    double got = 0;
    demo_begin(d, "Step %d of %d: %s", step + 1 + (reduces ? 0 : steps), 2 * steps,
               reduces ? "reduce-scatter" : "all-gather");
    TRY(demo_swap(d, around(r, d->rank + 1), &r->chunks[out_chunk], around(r, d->rank - 1), &got,
                  sizeof got));
    r->sent_bytes += (int64_t)sizeof got;
    r->chunks[in_chunk] = reduces ? r->chunks[in_chunk] + got : got;
    if (step == 0)
        demo_say(d, reduces
                        ? "Each rank sends one chunk to the next rank, and adds what comes from "
                          "the rank before to its own. A star marks the chunk that has changed."
                        : "Each rank has the whole sum of one chunk. Now the sums go round: what "
                          "comes takes the place of what was there.");
    demo_arrow(d, d->rank, around(r, d->rank + 1), "chunk %d", out_chunk);
    return show_chunks(r, in_chunk);
}

static status show_start(ring *r)
{
    demo *d = r->d;
    demo_begin(d, "All-reduce around a ring of %d ranks", d->world_size);
    demo_say(d,
             "Every rank has an array, here %d numbers, and all are to get the sum over ranks. "
             "If one rank added them all up, its link would carry everybody's data. In a ring "
             "each rank talks to its neighbours alone.",
             d->world_size);
    demo_say(d,
             "The array is cut into %d chunks, one for each rank. Rank r brings 10 to the power "
             "of r in each: so the digits of a sum say whose numbers are in it.",
             d->world_size);
    return show_chunks(r, -1);
}

static status show_end(ring *r)
{
    demo *d = r->d;
    int n = d->world_size;
    size_t array_bytes = (size_t)n * sizeof r->chunks[0];
    double formula = 2.0 * (n - 1) / n * (double)array_bytes;
    double sums[RANKS_MAX];
    for (int c = 0; c < n; c++)
        sums[c] = demo_digit(d);
    TRY(process_group_all_reduce(d->group, sums, (size_t)n, DTYPE_F64, REDUCE_SUM, NULL));
    bool same = memcmp(sums, r->chunks, array_bytes) == 0;
    demo_begin(d, "Every rank has every sum");
    demo_say(d,
             "Each rank has sent %lld bytes of an array of S = %zu bytes. 2 (N - 1) / N of S is "
             "%g: less than twice the array, however many ranks there are.",
             (long long)r->sent_bytes, array_bytes, formula);
    demo_columns(d, "|bytes sent|bytes received|same as all_reduce");
    demo_row(d, "rank %d|#%lld|#%lld|%s", d->rank, (long long)r->sent_bytes,
             (long long)r->sent_bytes, same ? "yes" : "NO");
    demo_fact(d, "bytes_sent", json_integer(r->sent_bytes));
    demo_fact(d, "bytes_formula", json_real(formula));
    demo_fact(d, "array_bytes", json_integer((json_int_t)array_bytes));
    return demo_show_proof(d, same, "the ring's sums are not those of all_reduce");
}

status ring_demo(demo *d)
{
    ring r = {.d = d};
    for (int c = 0; c < d->world_size; c++)
        r.chunks[c] = demo_digit(d);
    TRY(show_start(&r));
    for (int step = 0; step + 1 < d->world_size; step++)
        TRY(show_step(&r, step, true));
    for (int step = 0; step + 1 < d->world_size; step++)
        TRY(show_step(&r, step, false));
    return show_end(&r);
}
