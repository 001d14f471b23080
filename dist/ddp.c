/* A backward pass reports slices in descending order, so one edge says which gradients are final:
 * all from there to the end. A bucket leaves once the edge is at or below its offset.
 */
#include "dist/ddp.h"

#include "base/clock.h"
#include "dist/process_group/process_group.h"

#include <stdio.h>
#include <stdlib.h>

enum { LABEL_BYTES = 200 };

typedef struct bucket {
    size_t offset, count;
    size_t first_parameter, n_parameters;
    const char *label; /* "bucket 1: conv1.weight, conv1.bias"; NULL: not named */
    work *under_way;   /* NULL: not launched */
} bucket;

struct ddp {
    process_group *group;
    float *gradients;
    size_t count, carried;
    bool overlap;
    float prescale;
    comm_hook *hook; /* NULL: none */

    bucket *buckets; /* in the order of their launch: descending offsets */
    size_t n_buckets;

    size_t edge;           /* gradients from here on are final */
    device_stream *stream; /* whose work makes them so */
    size_t launched;       /* buckets */
    ddp_times times;
};

static status check(const ddp_parameters *p)
{
    if (p->count == 0 || p->n == 0 || p->offsets[0] != 0)
        return FAIL(STATUS_INVALID, "%zu gradients in %zu parameters: the first begins at 0",
                    p->count, p->n);
    for (size_t i = 0; i < p->n; i++)
        if (p->offsets[i] >= (i + 1 < p->n ? p->offsets[i + 1] : p->count))
            return FAIL(STATUS_INVALID, "parameter %zu of %zu begins at %zu, not before the next",
                        i, p->n, p->offsets[i]);
    return STATUS_OK;
}

/* From the last parameter to the first; a bucket is closed by the parameter that fills it. */
static void fill_buckets(ddp *d, const ddp_parameters *p, const ddp_options *o)
{
    const size_t *offsets = p->offsets;
    size_t end = d->count, end_parameter = p->n;
    for (size_t i = p->n; i-- > 0;) {
        size_t cap = d->n_buckets == 0 ? o->first_bucket_bytes : o->bucket_cap_bytes;
        if (i > 0 && (end - offsets[i]) * sizeof(float) < cap)
            continue;
        d->buckets[d->n_buckets++] = (bucket){.offset = offsets[i],
                                              .count = end - offsets[i],
                                              .first_parameter = i,
                                              .n_parameters = end_parameter - i};
        end = offsets[i];
        end_parameter = i;
    }
}

status ddp_create(process_group *group, float *gradients, const ddp_parameters *parameters,
                  const ddp_options *options, ddp **out)
{
    TRY(check(parameters));
    ddp *d = calloc(1, sizeof *d);
    bucket *buckets = calloc(parameters->n, sizeof *buckets);
    if (d == NULL || buckets == NULL) {
        free(buckets);
        free(d);
        return FAIL(STATUS_NO_MEMORY, "a reducer for %zu parameters", parameters->n);
    }
    *d = (ddp){.group = group,
               .gradients = gradients,
               .count = parameters->count,
               .overlap = options->overlap,
               .hook = options->hook,
               .prescale = 1.0f / (float)process_group_world_size(group),
               .buckets = buckets,
               .edge = parameters->count};
    fill_buckets(d, parameters, options);
    *out = d;
    return STATUS_OK;
}

void ddp_destroy(ddp *reducer)
{
    if (reducer == NULL)
        return;
    free(reducer->buckets);
    free(reducer);
}

void ddp_carry(ddp *reducer, size_t floats)
{
    reducer->carried = floats;
}

status ddp_name_parameters(ddp *reducer, const char *const *names)
{
    for (size_t i = 0; i < reducer->n_buckets; i++) {
        bucket *b = &reducer->buckets[i];
        char label[LABEL_BYTES];
        int length = snprintf(label, sizeof label, "bucket %zu: ", i);
        for (size_t k = 0; k < b->n_parameters && length < LABEL_BYTES; k++)
            length += snprintf(label + length, sizeof label - (size_t)length, "%s%s",
                               k == 0 ? "" : ", ", names[b->first_parameter + k]);
        TRY(process_group_keep_label(reducer->group, label, &b->label));
    }
    return STATUS_OK;
}

size_t ddp_buckets(const ddp *reducer)
{
    return reducer->n_buckets;
}

void ddp_bucket(const ddp *reducer, size_t index, size_t *offset, size_t *count)
{
    *offset = reducer->buckets[index].offset;
    *count = reducer->buckets[index].count;
}

static status launch_bucket(ddp *d, bucket *b)
{
    if (d->hook != NULL)
        return comm_hook_launch(d->hook, b->offset, b->count, b->label);
    float *data = d->gradients + b->offset;
    collective c = {.kind = COLLECTIVE_ALL_REDUCE,
                    .op = REDUCE_SUM,
                    .type = DTYPE_F32,
                    .in = data,
                    .out = data,
                    .count = b->count + (d->launched == 0 ? d->carried : 0),
                    .prescale = d->prescale,
                    .label = b->label};
    return process_group_launch(d->group, &c, d->stream, &b->under_way);
}

static status launch_complete(ddp *d)
{
    while (d->launched < d->n_buckets && d->buckets[d->launched].offset >= d->edge) {
        TRY(launch_bucket(d, &d->buckets[d->launched]));
        d->launched++;
    }
    return STATUS_OK;
}

status ddp_on_grad_ready(void *reducer, size_t offset, size_t count, device_stream *stream)
{
    ddp *d = reducer;
    if (offset > d->edge || count != d->edge - offset)
        return FAIL(STATUS_INVALID,
                    "gradients [%zu, %zu) came, but a slice that ends at %zu was due: slices "
                    "descend and adjoin",
                    offset, offset + count, d->edge);
    d->edge = offset;
    d->stream = stream;
    return d->overlap ? launch_complete(d) : STATUS_OK;
}

/* Up to the first failure: it breaks the group, which then owns the works that are left, and its
 * message is the one to be read. */
static status wait_for_buckets(ddp *d)
{
    status st = d->hook != NULL ? comm_hook_wait(d->hook, &d->times.comm_ns) : STATUS_OK;
    for (size_t i = 0; i < d->launched && st == STATUS_OK && d->hook == NULL; i++) {
        int64_t elapsed_ns = 0;
        st = process_group_wait(d->group, d->buckets[i].under_way, &elapsed_ns);
        d->buckets[i].under_way = NULL;
        d->times.comm_ns += elapsed_ns;
    }
    d->launched = 0;
    d->edge = d->count;
    return st;
}

status ddp_wait(ddp *reducer)
{
    ddp *d = reducer;
    if (d->edge != 0)
        return FAIL(STATUS_INVALID,
                    "gradients [0, %zu) are missing: the backward pass did not report them",
                    d->edge);
    int64_t start_ns = clock_now_ns();
    status st = launch_complete(d);
    status waited = wait_for_buckets(d);
    d->times.exposed_ns += clock_now_ns() - start_ns;
    return st != STATUS_OK ? st : waited;
}

ddp_times ddp_elapsed(const ddp *reducer)
{
    return reducer->times;
}
