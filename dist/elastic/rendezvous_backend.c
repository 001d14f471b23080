#include "dist/elastic/rendezvous_backend.h"

#include <stdlib.h>

void rendezvous_view_free(rendezvous_view *view)
{
    for (int i = 0; i < view->n; i++) {
        free(view->nodes[i].id);
        free(view->nodes[i].value);
    }
    free(view->nodes);
    free(view->state);
    *view = (rendezvous_view){0};
}
