#include "base/spares.h"

#include <stdlib.h>
#include <string.h>

struct spare {
    struct spare *next;
};

void *spares_take(spares *s, size_t size_bytes)
{
    struct spare *piece = s->first;
    if (piece == NULL)
        return calloc(1, size_bytes);
    s->first = piece->next;
    return memset(piece, 0, size_bytes);
}

void spares_give(spares *s, void *piece)
{
    struct spare *given = piece;
    given->next = s->first;
    s->first = given;
}

void spares_free(spares *s)
{
    while (s->first != NULL) {
        struct spare *piece = s->first;
        s->first = piece->next;
        free(piece);
    }
}
