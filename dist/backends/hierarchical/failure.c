#include "dist/backends/hierarchical/failure.h"

#include "dist/health/first_cause.h"
#include "dist/membership/keys.h"
#include "dist/store/store.h"

#include <stdio.h>
#include <stdlib.h>

enum {
    RECORD_BYTES = 2048,
    NETWORK_GRACE_MS = 200, /* the dead rank's own host sees its process, and says which it was */
};

/* Another rank's failure, as failure_share has recorded it. */
static status adopt(const char *record, status own)
{
    int rank = 0, code = 0, skip = 0;
    if (sscanf(record, "%d %d %n", &rank, &code, &skip) != 2 || skip == 0)
        return own;
    bool keeps = code == STATUS_TIMEOUT || code == STATUS_INVALID;
    return FAIL(keeps ? (status)code : STATUS_PEER, "rank %d has found: %s", rank, record + skip);
}

status failure_share(const hierarchical *h, status st)
{
    char mine[RECORD_BYTES];
    status_kept own;
    void *held = NULL;
    size_t size_bytes = 0;
    keys_text key = keys_make(h->prefix, KEYS_FAILURE, -1);
    status_keep(&own);
    snprintf(mine, sizeof mine, "%d %d %.1900s", h->rank, (int)st, own.text);
    /* A store that does not answer is given up here, before the longer time of the next call. */
    (void)store_wait(h->store, key.text, h->host.failed ? 1 : NETWORK_GRACE_MS);
    status told = store_compare_set(h->store, key.text, "", mine, &held, &size_bytes);
    status_restore(&own);
    if (told != STATUS_OK || first_cause_priority(st) == CAUSE_OWN || atoi(held) == h->rank) {
        free(held);
        return st;
    }
    st = adopt(held, st);
    free(held);
    return st;
}
