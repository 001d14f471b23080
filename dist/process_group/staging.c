#include "dist/process_group/process_group_state.h"

#include "kernels/ops.h"

#include <stdlib.h>

/* Host memory comes in chunks, pinned once. A chunk is handed out from its beginning to its end,
 * and is empty again after all that lies in it was released. Training releases all in every step,
 * as all buckets are waited for, and so uses the same places each time. What does not fit goes to
 * the next chunk.
 *
 * The stream orders the copies: a copy out comes after all work enqueued before it, also after the
 * copy in that still reads the same place. So even a collective that reads nothing on this rank
 * begins with a copy out.
 */

enum { ALIGN = 64 };

typedef struct staging_chunk {
    struct staging_chunk *next;
    unsigned char *memory;
    size_t size_bytes, used_bytes;
    int users;
} staging_chunk;

struct staging {
    device *dev;
    staging_memory_fn memory;
    void *memory_ctx;
    staging_chunk *chunks; /* the oldest first */
    staged *spare;
};

status staging_create(device *dev, staging_memory_fn memory, void *ctx, staging **out)
{
    staging *s = calloc(1, sizeof *s);
    if (s == NULL)
        return FAIL(STATUS_NO_MEMORY, "staging memory");
    *s = (staging){.dev = dev, .memory = memory, .memory_ctx = ctx};
    *out = s;
    return STATUS_OK;
}

void staging_destroy(staging *s)
{
    if (s == NULL)
        return;
    while (s->spare != NULL) {
        staged *item = s->spare;
        s->spare = item->next;
        s->dev->ops->accelerator->event_destroy(item->copied);
        free(item);
    }
    while (s->chunks != NULL) {
        staging_chunk *chunk = s->chunks;
        s->chunks = chunk->next;
        s->dev->ops->accelerator->unpin(s->dev, chunk->memory);
        free(chunk);
    }
    free(s);
}

static status add_chunk(staging *s, size_t size_bytes, staging_chunk **out)
{
    staging_chunk *chunk = calloc(1, sizeof *chunk);
    if (chunk == NULL)
        return FAIL(STATUS_NO_MEMORY, "staging memory");
    status st = s->memory(s->memory_ctx, size_bytes, (void **)&chunk->memory, &chunk->size_bytes);
    if (st == STATUS_OK)
        st = s->dev->ops->accelerator->pin(s->dev, chunk->memory, chunk->size_bytes);
    if (st != STATUS_OK) {
        free(chunk);
        return st;
    }
    staging_chunk **last = &s->chunks;
    while (*last != NULL)
        last = &(*last)->next;
    *last = chunk;
    *out = chunk;
    return STATUS_OK;
}

static status take_room(staging *s, size_t size_bytes, staged *item, unsigned char **out)
{
    size_t rounded = (size_bytes + ALIGN - 1) / ALIGN * ALIGN;
    staging_chunk *chunk = s->chunks;
    while (chunk != NULL && chunk->size_bytes - chunk->used_bytes < rounded)
        chunk = chunk->next;
    if (chunk == NULL)
        TRY(add_chunk(s, rounded, &chunk));
    *out = chunk->memory + chunk->used_bytes;
    chunk->used_bytes += rounded;
    chunk->users++;
    item->chunk = chunk;
    return STATUS_OK;
}

static status take_item(staging *s, staged **out)
{
    staged *item = s->spare;
    if (item != NULL) {
        s->spare = item->next;
        *out = item;
        return STATUS_OK;
    }
    item = calloc(1, sizeof *item);
    if (item == NULL)
        return FAIL(STATUS_NO_MEMORY, "staging memory");
    status st = s->dev->ops->accelerator->event_create(s->dev, &item->copied);
    if (st != STATUS_OK) {
        free(item);
        return st;
    }
    *out = item;
    return STATUS_OK;
}

/* In place if in and out are equally long, else one after the other. */
static status place(staging *s, const collective *c, staged *item)
{
    bool in_place =
        item->in_bytes == 0 || item->out_bytes == 0 || item->in_bytes == item->out_bytes;
    size_t in_room = (item->in_bytes + ALIGN - 1) / ALIGN * ALIGN;
    size_t longer = item->in_bytes > item->out_bytes ? item->in_bytes : item->out_bytes;
    unsigned char *memory = NULL;
    TRY(take_room(s, in_place ? longer : in_room + item->out_bytes, item, &memory));
    item->host = *c;
    item->host.in = memory;
    item->host.out = in_place ? memory : memory + in_room;
    return STATUS_OK;
}

status staging_copy_out(staging *s, const collective *c, size_t in_bytes, size_t out_bytes,
                        staged **out)
{
    staged *item = NULL;
    TRY(take_item(s, &item));
    item->chunk = NULL;
    item->in_bytes = in_bytes;
    item->out_bytes = out_bytes;
    status st = place(s, c, item);
    if (st == STATUS_OK && in_bytes > 0)
        st = s->dev->ops->accelerator->copy_out(s->dev, (void *)item->host.in, c->in, in_bytes,
                                                item->copied);
    else if (st == STATUS_OK)
        st = s->dev->ops->accelerator->copy_out(s->dev, item->host.out, c->out, out_bytes,
                                                item->copied);
    if (st != STATUS_OK) {
        staging_release(s, item);
        return st;
    }
    *out = item;
    return STATUS_OK;
}

status staging_wait(staging *s, staged *item)
{
    return s->dev->ops->accelerator->event_wait(s->dev, item->copied);
}

status staging_copy_in(staging *s, const staged *item, void *out)
{
    if (item->out_bytes == 0)
        return STATUS_OK;
    return s->dev->ops->accelerator->copy_in(s->dev, out, item->host.out, item->out_bytes);
}

void staging_release(staging *s, staged *item)
{
    if (item == NULL)
        return;
    if (item->chunk != NULL && --item->chunk->users == 0)
        item->chunk->used_bytes = 0;
    item->next = s->spare;
    s->spare = item;
}
