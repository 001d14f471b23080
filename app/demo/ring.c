/* An all-reduce around a ring: each rank's array is cut into as many chunks as there are ranks. In
 * N - 1 steps every rank sends one chunk to the next rank and adds the one that comes to its own:
 * after them each rank has one chunk's sum over all. In N - 1 more steps the sums go round. Each
 * rank sends 2 (N - 1) chunks, 2 (N - 1) / N of the array, however many ranks there are. */
#include "app/demo/demo_table.h"

#include <stdio.h>
#include <string.h>

enum { RANKS_MAX = 7, TAG = 7 };

/* What one rank has: a number per chunk, and the ranks whose numbers are in it. */
typedef struct ring {
    demo *d;
    double chunks[RANKS_MAX];
    int64_t sent_bytes, received_bytes;
} ring;

static int around(const ring *r, int number)
{
    int n = r->d->world_size;
    return (number % n + n) % n;
}

/* Rank r brings 10^r, so that a sum's digits say whose numbers are in it. */
static void fill(ring *r)
{
    double own = 1;
    for (int rank = 0; rank < r->d->rank; rank++)
        own *= 10;
    for (int c = 0; c < r->d->world_size; c++)
        r->chunks[c] = own;
}

/* The rank's chunks; the one at `marked` with a star. */
static json_t *row_of(const ring *r, int marked)
{
    char label[32], cell[32];
    json_t *cells = json_array();
    snprintf(label, sizeof label, "rank %d", r->d->rank);
    json_array_append_new(cells, json_string(label));
    for (int c = 0; c < r->d->world_size; c++) {
        snprintf(cell, sizeof cell, "%.0f%s", r->chunks[c], c == marked ? "*" : " ");
        json_array_append_new(cells, json_string(cell));
    }
    return cells;
}

static void say_columns(const ring *r)
{
    char name[32];
    demo_columns(r->d, "", NULL);
    for (int c = 0; c < r->d->world_size; c++) {
        snprintf(name, sizeof name, "chunk %d", c);
        demo_columns(r->d, name, NULL);
    }
}

/* Sends a chunk to the next rank while one comes from the rank before. */
static status exchange(ring *r, int out_chunk, double *got)
{
    demo *d = r->d;
    const collective both[] = {{.kind = COLLECTIVE_SEND,
                                .type = DTYPE_F64,
                                .in = &r->chunks[out_chunk],
                                .count = 1,
                                .root = around(r, d->rank + 1),
                                .tag = TAG,
                                .prescale = 1},
                               {.kind = COLLECTIVE_RECV,
                                .type = DTYPE_F64,
                                .out = got,
                                .count = 1,
                                .root = around(r, d->rank - 1),
                                .tag = TAG,
                                .prescale = 1}};
    work *works[2];
    TRY(process_group_batch_isend_irecv(d->group, both, 2, NULL, works));
    TRY(process_group_wait(d->group, works[0], NULL));
    TRY(process_group_wait(d->group, works[1], NULL));
    r->sent_bytes += (int64_t)sizeof *got;
    r->received_bytes += (int64_t)sizeof *got;
    return STATUS_OK;
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
    TRY(exchange(r, out_chunk, &got));
    r->chunks[in_chunk] = reduces ? r->chunks[in_chunk] + got : got;
    if (step == 0)
        demo_say(d, reduces
                        ? "Each rank sends one chunk to the next rank, and adds what comes from "
                          "the rank before to its own. A star marks the chunk that has changed."
                        : "Each rank has the whole sum of one chunk. Now the sums go round: what "
                          "comes takes the place of what was there.");
    demo_arrow(d, around(r, d->rank + 1), "chunk %d", out_chunk);
    say_columns(r);
    demo_row(d, row_of(r, in_chunk));
    return demo_show(d);
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
    say_columns(r);
    demo_row(d, row_of(r, -1));
    return demo_show(d);
}

static status show_end(ring *r)
{
    demo *d = r->d;
    int n = d->world_size;
    size_t array_bytes = (size_t)n * sizeof r->chunks[0];
    double formula = 2.0 * (n - 1) / n * (double)array_bytes;
    double sums[RANKS_MAX];
    ring fresh = {.d = d};
    fill(&fresh);
    memcpy(sums, fresh.chunks, array_bytes);
    TRY(process_group_all_reduce(d->group, sums, (size_t)n, DTYPE_F64, REDUCE_SUM, NULL));
    bool same = memcmp(sums, r->chunks, array_bytes) == 0;
    demo_begin(d, "Every rank has every sum");
    demo_say(d,
             "Each rank has sent %lld bytes of an array of S = %zu bytes. 2 (N - 1) / N of S is "
             "%g: less than twice the array, however many ranks there are.",
             (long long)r->sent_bytes, array_bytes, formula);
    demo_columns(d, "", "bytes sent", "bytes received", "same as all_reduce", NULL);
    char label[32];
    snprintf(label, sizeof label, "rank %d", d->rank);
    demo_row(d, json_pack("[s, I, I, s]", label, (json_int_t)r->sent_bytes,
                          (json_int_t)r->received_bytes, same ? "yes" : "NO"));
    demo_fact(d, "bytes_sent", json_integer(r->sent_bytes));
    demo_fact(d, "bytes_formula", json_real(formula));
    demo_fact(d, "array_bytes", json_integer((json_int_t)array_bytes));
    TRY(demo_show(d));
    return same ? STATUS_OK : FAIL(STATUS_DEVICE, "the ring's sums are not those of all_reduce");
}

status ring_demo(demo *d)
{
    ring r = {.d = d};
    fill(&r);
    TRY(show_start(&r));
    for (int step = 0; step + 1 < d->world_size; step++)
        TRY(show_step(&r, step, true));
    for (int step = 0; step + 1 < d->world_size; step++)
        TRY(show_step(&r, step, false));
    return show_end(&r);
}
