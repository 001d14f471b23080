#include "dist/store/store_kept.h"

#include "dist/net/socket_address.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { AUTHOR_BYTES = 16 << 20 };

status store_kept_init(store_kept *kept)
{
    *kept = (store_kept){0};
    return store_table_create(AUTHOR_BYTES, &kept->authors);
}

void store_kept_close(store_kept *kept)
{
    store_table_destroy(kept->authors);
    free(kept->prefix);
    *kept = (store_kept){0};
}

status store_kept_choose(store_kept *kept, const char *prefix)
{
    char *copy = NULL;
    if (prefix[0] != '\0' && asprintf(&copy, "/%s", prefix) < 0)
        return FAIL(STATUS_NO_MEMORY, "a store's prefix");
    free(kept->prefix);
    kept->prefix = copy;
    return STATUS_OK;
}

bool store_kept_has(const store_kept *kept, store_bytes key)
{
    size_t length = kept->prefix == NULL ? 0 : strlen(kept->prefix);
    return length > 0 && key.size >= length && memcmp(key.data, kept->prefix, length) == 0;
}

status store_kept_note(store_kept *kept, store_bytes key, int fd)
{
    char address[SOCKET_ADDRESS_BYTES];
    socket_address_peer(fd, address);
    store_bytes text = {.data = (const uint8_t *)address, .size = strlen(address) + 1};
    return store_table_set(kept->authors, key, text);
}

void store_kept_author(const store_kept *kept, const char *key, char *out)
{
    char whole[STORE_KEY_BYTES];
    store_bytes address = {0};
    int length = snprintf(whole, sizeof whole, "/%s", key);
    store_bytes name = {.data = (const uint8_t *)whole, .size = (size_t)length};
    bool there = (size_t)length < sizeof whole && store_table_find(kept->authors, name, &address);
    snprintf(out, SOCKET_ADDRESS_BYTES, "%s", there ? (const char *)address.data : "");
}
