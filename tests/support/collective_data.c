#include "tests/support/collective_data.h"

#include "base/half.h"
#include "kernels/ops.h"

#include <stdlib.h>
#include <string.h>

static bool is_out_of_place(memory_kind kind)
{
    return kind == MEMORY_OUT_OF_PLACE || kind == MEMORY_OUT_IN_HEAP ||
           kind == MEMORY_DEVICE_OUT_OF_PLACE;
}

/* The device's own arrays. */
static status open_on_device(device *dev, memory_kind kind, collective_data *d)
{
    d->stream = dev->stream;
    TRY(dev->ops->alloc(dev, d->size_bytes, &d->call_out));
    d->call_in = d->call_out;
    return is_out_of_place(kind) ? dev->ops->alloc(dev, d->size_bytes, &d->call_in) : STATUS_OK;
}

status collective_data_open(process_group *group, memory_kind kind, size_t size_bytes,
                            collective_data *out)
{
    collective_data d = {.size_bytes = size_bytes};
    bool in_heap = kind == MEMORY_SYMMETRIC || kind == MEMORY_OUT_IN_HEAP ||
                   (kind == MEMORY_MIXED && process_group_rank(group) % 2 == 0);
    if (kind < MEMORY_HOST_KINDS)
        TRY(process_group_alloc(group, size_bytes, &d.heap));
    d.out = in_heap ? d.heap : calloc(1, size_bytes);
    d.in = is_out_of_place(kind) ? calloc(1, size_bytes) : d.out;
    if (d.in == NULL || d.out == NULL)
        return FAIL(STATUS_NO_MEMORY, "test buffers");
    d.call_in = d.in;
    d.call_out = d.out;
    if (kind >= MEMORY_HOST_KINDS && ranks_device() != NULL)
        TRY(open_on_device(ranks_device(), kind, &d));
    *out = d;
    return STATUS_OK;
}

void collective_data_close(collective_data *d)
{
    device *dev = ranks_device();
    if (d->stream != NULL && d->call_in != d->call_out)
        dev->ops->free(dev, d->call_in);
    if (d->stream != NULL)
        dev->ops->free(dev, d->call_out);
    if (d->in != d->out)
        free(d->in);
    if (d->out != d->heap)
        free(d->out);
    *d = (collective_data){0};
}

status collective_data_send(collective_data *d)
{
    device *dev = ranks_device();
    if (d->stream == NULL)
        return STATUS_OK;
    if (d->in != d->out)
        TRY(dev->ops->upload(dev, d->call_out, d->out, d->size_bytes));
    return dev->ops->upload(dev, d->call_in, d->in, d->size_bytes);
}

status collective_data_fetch(collective_data *d)
{
    device *dev = ranks_device();
    if (d->stream == NULL)
        return STATUS_OK;
    if (d->in != d->out)
        TRY(dev->ops->download(dev, d->in, d->call_in, d->size_bytes));
    return dev->ops->download(dev, d->out, d->call_out, d->size_bytes);
}

int64_t collective_data_value(int rank, size_t i)
{
    return (int64_t)((i * 7 + (size_t)rank * 13 + i % 5 * (size_t)rank) % 101) - 50;
}

int64_t collective_data_reduced(reduce_op op, int world_size, size_t i)
{
    int64_t acc = collective_data_value(0, i);
    for (int rank = 1; rank < world_size; rank++) {
        int64_t x = collective_data_value(rank, i);
        if (op == REDUCE_SUM)
            acc += x;
        else if (op == REDUCE_MIN ? x < acc : x > acc)
            acc = x;
    }
    return acc;
}

void collective_data_put(void *data, dtype type, size_t i, int64_t value)
{
    if (type == DTYPE_F32)
        ((float *)data)[i] = (float)value;
    else if (type == DTYPE_F64)
        ((double *)data)[i] = (double)value;
    else if (type == DTYPE_BF16 || type == DTYPE_F16)
        ((uint16_t *)data)[i] =
            type == DTYPE_BF16 ? f32_to_bf16((float)value) : f32_to_f16((float)value);
    else
        ((int64_t *)data)[i] = value;
}

static double get(const void *data, dtype type, size_t i)
{
    if (type == DTYPE_F32)
        return (double)((const float *)data)[i];
    if (type == DTYPE_BF16 || type == DTYPE_F16) {
        uint16_t half = ((const uint16_t *)data)[i];
        return (double)(type == DTYPE_BF16 ? bf16_to_f32(half) : f16_to_f32(half));
    }
    return type == DTYPE_F64 ? ((const double *)data)[i] : (double)((const int64_t *)data)[i];
}

status collective_data_expect(const void *data, dtype type, size_t i, int64_t want,
                              const char *what)
{
    double got = get(data, type, i);
    if (got < (double)want || got > (double)want)
        return FAIL(STATUS_INVALID, "%s: dtype %d [%zu] is %g, want %g", what, (int)type, i, got,
                    (double)want);
    return STATUS_OK;
}
