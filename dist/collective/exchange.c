#include "dist/collective/exchange.h"

#include "dist/collective/reduce.h"

#include <string.h>

enum { LINE_BYTES = 64 };

typedef struct exchange_facts {
    bool root_gives, root_takes; /* alone */
    bool row_per_taker, row_per_giver;
} exchange_facts;

static const exchange_facts FACTS[COLLECTIVE_KIND_COUNT] = {
    [COLLECTIVE_REDUCE] = {.root_takes = true},
    [COLLECTIVE_REDUCE_SCATTER] = {.row_per_taker = true},
    [COLLECTIVE_BROADCAST] = {.root_gives = true},
    [COLLECTIVE_SCATTER] = {.root_gives = true, .row_per_taker = true},
    [COLLECTIVE_ALL_GATHER] = {.row_per_giver = true},
    [COLLECTIVE_GATHER] = {.root_takes = true, .row_per_giver = true},
    [COLLECTIVE_ALL_TO_ALL] = {.row_per_taker = true, .row_per_giver = true},
};

bool exchange_gives(const collective *c, int rank)
{
    return c->count > 0 && (!FACTS[c->kind].root_gives || c->root == rank);
}

bool exchange_takes(const collective *c, int rank)
{
    return c->count > 0 && (!FACTS[c->kind].root_takes || c->root == rank);
}

bool exchange_is_read(const collective *c, int rank)
{
    return exchange_gives(c, rank) && !(FACTS[c->kind].root_takes && c->root == rank);
}

int exchange_rows(const collective *c, int world_size)
{
    return FACTS[c->kind].row_per_taker ? world_size : 1;
}

size_t exchange_row(const collective *c, int rank)
{
    return FACTS[c->kind].row_per_taker ? (size_t)rank : 0;
}

static void copy(void *out, const void *in, size_t size_bytes)
{
    if (out != in)
        memcpy(out, in, size_bytes);
}

void exchange_take(const collective *c, int rank, int world_size, const void *const *given,
                   size_t at, size_t count)
{
    size_t size = dtype_size(c->type);
    unsigned char *out = (unsigned char *)c->out + at * size;
    if (collective_reduces(c->kind)) {
        reduce_parts parts = {given, world_size, (void *const[]){out}, 1};
        reduce_into(c->type, c->op, c->prescale, &parts, count);
    } else if (FACTS[c->kind].root_gives) {
        copy(out, given[c->root], count * size);
    } else {
        for (int step = 0; step < world_size; step++) { /* not all begin with the same giver */
            int from = (rank + step) % world_size;
            copy(out + (size_t)from * c->count * size, given[from], count * size);
        }
    }
}

exchange_part exchange_part_of(const collective *c, size_t count, int rank, int world_size)
{
    size_t per_line = LINE_BYTES / dtype_size(c->type), n = (size_t)world_size, r = (size_t)rank;
    size_t lines = (count + per_line - 1) / per_line;
    size_t begin = lines * r / n * per_line, end = lines * (r + 1) / n * per_line;
    return (exchange_part){begin < count ? begin : count, end < count ? end : count};
}
