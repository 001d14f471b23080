#include "dist/elastic/rdzv_ops.h"

#include "dist/membership/keys.h"

#include <stdio.h>
#include <stdlib.h>

void rdzv_view_free(rdzv_view *view)
{
    for (int i = 0; i < view->n; i++) {
        free(view->nodes[i].id);
        free(view->nodes[i].value);
    }
    free(view->nodes);
    free(view->state);
    *view = (rdzv_view){0};
}

status rdzv_prefix(const char *run_id, char *out, size_t size_bytes)
{
    size_t used = (size_t)snprintf(out, size_bytes, KEYS_RENDEZVOUS);
    for (const char *c = run_id; *c != '\0'; c++) {
        if (used + 5 > size_bytes)
            return FAIL(STATUS_INVALID, "the run id is too long: %.64s...", run_id);
        bool plain = *c != '/' && *c != '%';
        used += (size_t)snprintf(out + used, size_bytes - used, plain ? "%c" : "%%%02X",
                                 (unsigned char)*c);
    }
    snprintf(out + used, size_bytes - used, "/");
    return STATUS_OK;
}
