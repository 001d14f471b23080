#include "dist/store/store_queue.h"

#include <string.h>

enum { ENDS = 'e', VALUE = 'v', ENDS_BYTES = 16 };

/* A piece's key in the table: its kind, the queue's key and, of a value, its number. */
typedef struct piece {
    uint8_t name[1 + STORE_KEY_BYTES + 8];
    store_bytes key;
} piece;

static void name_piece(piece *out, char kind, store_bytes key, uint64_t number)
{
    out->name[0] = (uint8_t)kind;
    if (key.size > 0)
        memcpy(out->name + 1, key.data, key.size);
    store_wire_put_u64(out->name + 1 + key.size, number);
    out->key = (store_bytes){out->name, 1 + key.size + (kind == VALUE ? 8 : 0)};
}

/* Of its values the number of the first, and the number after the last. */
typedef struct queue_ends {
    uint64_t first, end;
} queue_ends;

static queue_ends read_ends(const store_table *queues, store_bytes key)
{
    piece ends;
    store_bytes held;
    name_piece(&ends, ENDS, key, 0);
    if (!store_table_find(queues, ends.key, &held))
        return (queue_ends){0, 0};
    return (queue_ends){store_wire_u64(held.data), store_wire_u64(held.data + 8)};
}

static status write_ends(store_table *queues, store_bytes key, queue_ends now)
{
    piece ends;
    uint8_t bytes[ENDS_BYTES];
    name_piece(&ends, ENDS, key, 0);
    store_wire_put_u64(bytes, now.first);
    store_wire_put_u64(bytes + 8, now.end);
    return store_table_set(queues, ends.key, (store_bytes){bytes, sizeof bytes});
}

uint64_t store_queue_length(const store_table *queues, store_bytes key)
{
    queue_ends ends = read_ends(queues, key);
    return ends.end - ends.first;
}

status store_queue_push(store_table *queues, store_bytes key, store_bytes value)
{
    piece last;
    queue_ends ends = read_ends(queues, key);
    name_piece(&last, VALUE, key, ends.end++);
    TRY(store_table_set(queues, last.key, value));
    status st = write_ends(queues, key, ends);
    if (st != STATUS_OK)
        (void)store_table_delete(queues, last.key);
    return st;
}

void store_queue_first(const store_table *queues, store_bytes key, store_bytes *value)
{
    piece first;
    name_piece(&first, VALUE, key, read_ends(queues, key).first);
    bool there = store_table_find(queues, first.key, value);
    ASSERT(there);
}

status store_queue_drop_first(store_table *queues, store_bytes key)
{
    piece first, all;
    queue_ends ends = read_ends(queues, key);
    name_piece(&first, VALUE, key, ends.first++);
    (void)store_table_delete(queues, first.key);
    if (ends.first < ends.end)
        return write_ends(queues, key, ends);
    name_piece(&all, ENDS, key, 0);
    (void)store_table_delete(queues, all.key);
    return STATUS_OK;
}
