#include "dist/store/store_queue.h"

#include <string.h>

/* A piece's name in the table: the queue's key and a number, of the value or ENDS. */
typedef struct piece {
    uint8_t name[STORE_KEY_BYTES + 8];
} piece;

static const uint64_t ENDS = UINT64_MAX;

/* The number of the first value, and the one after the last. */
typedef struct queue_ends {
    uint64_t first, end;
} queue_ends;

static store_bytes name_piece(piece *out, store_bytes key, uint64_t number)
{
    memcpy(out->name, key.data, key.size);
    store_wire_put_u64(out->name + key.size, number);
    return (store_bytes){.data = out->name, .size = key.size + 8};
}

static queue_ends read_ends(const store_table *queues, store_bytes key)
{
    piece ends;
    store_bytes held;
    if (!store_table_find(queues, name_piece(&ends, key, ENDS), &held))
        return (queue_ends){0};
    return (queue_ends){store_wire_u64(held.data), store_wire_u64(held.data + 8)};
}

static status write_ends(store_table *queues, store_bytes key, queue_ends now)
{
    piece ends;
    uint8_t bytes[16];
    store_bytes name = name_piece(&ends, key, ENDS);
    store_wire_put_u64(bytes, now.first);
    store_wire_put_u64(bytes + 8, now.end);
    if (now.first < now.end)
        return store_table_set(queues, name, (store_bytes){bytes, sizeof bytes});
    (void)store_table_delete(queues, name);
    return STATUS_OK;
}

status store_queue_push(store_table *queues, store_bytes key, store_bytes value)
{
    piece last;
    queue_ends ends = read_ends(queues, key);
    store_bytes name = name_piece(&last, key, ends.end++);
    TRY(store_table_set(queues, name, value));
    status st = write_ends(queues, key, ends);
    if (st != STATUS_OK)
        (void)store_table_delete(queues, name);
    return st;
}

uint64_t store_queue_look(const store_table *queues, store_bytes key, store_bytes *value)
{
    piece first;
    queue_ends ends = read_ends(queues, key);
    if (ends.first < ends.end)
        (void)store_table_find(queues, name_piece(&first, key, ends.first), value);
    return ends.end - ends.first;
}

status store_queue_drop(store_table *queues, store_bytes key)
{
    piece first;
    queue_ends ends = read_ends(queues, key);
    (void)store_table_delete(queues, name_piece(&first, key, ends.first++));
    return write_ends(queues, key, ends);
}
