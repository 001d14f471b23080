#include "tests/support/fake_accelerator.h"

#include "base/memory.h"
#include "kernels/ops.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_PINNED = 64 };

/* One piece of enqueued work; NULL in place of src: a fill. */
typedef struct task {
    struct task *next;
    void *dst;
    const void *src;
    size_t size_bytes;
    float value;
    device_event *done;
} task;

typedef struct fake_state {
    task *first, *last;
    struct {
        unsigned char *begin;
        size_t size_bytes;
    } pinned[MAX_PINNED];
    int n_pinned, strays;
} fake_state;

struct device_event {
    bool reached;
};

static fake_state *state_of(const device *dev)
{
    return dev->state;
}

static status enqueue(device *dev, task what)
{
    fake_state *s = state_of(dev);
    task *t = calloc(1, sizeof *t);
    if (t == NULL)
        return FAIL(STATUS_NO_MEMORY, "a task");
    *t = what;
    if (what.done != NULL)
        what.done->reached = false;
    *(s->first == NULL ? &s->first : &s->last->next) = t;
    s->last = t;
    return STATUS_OK;
}

static void do_first(fake_state *s)
{
    task *t = s->first;
    s->first = t->next;
    if (t->src != NULL)
        memcpy(t->dst, t->src, t->size_bytes);
    for (size_t i = 0; t->src == NULL && i < t->size_bytes / sizeof(float); i++)
        ((float *)t->dst)[i] = t->value;
    if (t->done != NULL)
        t->done->reached = true;
    free(t);
}

static status synchronize(device *dev)
{
    while (state_of(dev)->first != NULL)
        do_first(state_of(dev));
    return STATUS_OK;
}

static status fake_alloc(device *dev, size_t size_bytes, void **out)
{
    (void)dev;
    return memory_alloc(size_bytes, out);
}

static void fake_free(device *dev, void *memory)
{
    (void)synchronize(dev);
    free(memory);
}

static status upload(device *dev, void *dst, const void *host, size_t size_bytes)
{
    TRY(synchronize(dev));
    memcpy(dst, host, size_bytes);
    return STATUS_OK;
}

static status download(device *dev, void *host, const void *src, size_t size_bytes)
{
    return upload(dev, host, src, size_bytes);
}

static status copy(device *dev, void *dst, const void *src, size_t size_bytes)
{
    return enqueue(dev, (task){.dst = dst, .src = src, .size_bytes = size_bytes});
}

static status pin(device *dev, void *host, size_t size_bytes)
{
    fake_state *s = state_of(dev);
    ASSERT(s->n_pinned < MAX_PINNED);
    s->pinned[s->n_pinned].begin = host;
    s->pinned[s->n_pinned++].size_bytes = size_bytes;
    return STATUS_OK;
}

static void unpin(device *dev, void *host)
{
    fake_state *s = state_of(dev);
    ASSERT(s->first == NULL); /* nothing may still be copied through it */
    for (int i = 0; i < s->n_pinned; i++)
        if (s->pinned[i].begin == host) {
            s->pinned[i] = s->pinned[--s->n_pinned];
            return;
        }
    s->strays++;
}

static status alloc_pinned(device *dev, size_t size_bytes, void **out)
{
    TRY(memory_alloc(size_bytes, out));
    return pin(dev, *out, size_bytes);
}

static void free_pinned(device *dev, void *host)
{
    (void)synchronize(dev);
    if (host != NULL)
        unpin(dev, host);
    free(host);
}

static void note_stray(fake_state *s, const void *host, size_t size_bytes)
{
    for (int i = 0; i < s->n_pinned; i++) {
        uintptr_t begin = (uintptr_t)s->pinned[i].begin, at = (uintptr_t)host;
        if (at >= begin && at + size_bytes <= begin + s->pinned[i].size_bytes)
            return;
    }
    s->strays++;
}

static status event_create(device *dev, device_event **out)
{
    (void)dev;
    *out = calloc(1, sizeof **out);
    return *out != NULL ? STATUS_OK : FAIL(STATUS_NO_MEMORY, "an event");
}

static void event_destroy(device_event *event)
{
    free(event);
}

static status copy_out(device *dev, void *pinned, const void *src, size_t size_bytes,
                       device_event *done)
{
    note_stray(state_of(dev), pinned, size_bytes);
    return enqueue(dev, (task){.dst = pinned, .src = src, .size_bytes = size_bytes, .done = done});
}

static status event_wait(device *dev, device_event *event)
{
    while (!event->reached)
        do_first(state_of(dev));
    return STATUS_OK;
}

static status copy_in(device *dev, void *dst, const void *pinned, size_t size_bytes)
{
    note_stray(state_of(dev), pinned, size_bytes);
    return copy(dev, dst, pinned, size_bytes);
}

status fake_accelerator_open(int rank, device **out)
{
    static const accelerator_ops accelerator = {.pin = pin,
                                                .unpin = unpin,
                                                .alloc_pinned = alloc_pinned,
                                                .free_pinned = free_pinned,
                                                .event_create = event_create,
                                                .event_destroy = event_destroy,
                                                .copy_out = copy_out,
                                                .event_wait = event_wait,
                                                .copy_in = copy_in};
    static const device_ops ops = {.name = "fake",
                                   .alloc = fake_alloc,
                                   .free = fake_free,
                                   .upload = upload,
                                   .download = download,
                                   .copy = copy,
                                   .synchronize = synchronize,
                                   .accelerator = &accelerator};
    (void)rank;
    device *dev = calloc(1, sizeof *dev);
    fake_state *s = calloc(1, sizeof *s);
    if (dev == NULL || s == NULL)
        return FAIL(STATUS_NO_MEMORY, "a fake device");
    *dev = (device){.ops = &ops, .state = s, .threads = 1, .stream = (device_stream *)s};
    *out = dev;
    return STATUS_OK;
}

void fake_accelerator_close(device *dev)
{
    ASSERT(state_of(dev)->n_pinned == 0);
    (void)synchronize(dev);
    free(dev->state);
    free(dev);
}

status fake_accelerator_fill(device *dev, float *data, size_t count, float value)
{
    return enqueue(dev, (task){.dst = data, .size_bytes = count * sizeof *data, .value = value});
}

int fake_accelerator_pinned(const device *dev)
{
    return state_of(dev)->n_pinned;
}

int fake_accelerator_strays(const device *dev)
{
    return state_of(dev)->strays;
}
