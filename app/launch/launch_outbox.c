#include "app/launch/launch_outbox.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

typedef struct notice {
    struct notice *next;
    char *key, *text;
} notice;

struct launch_outbox {
    pthread_mutex_t lock;
    notice *first, **last; /* under the lock; who sends removes */
};

status launch_outbox_create(launch_outbox **out)
{
    launch_outbox *outbox = calloc(1, sizeof *outbox);
    if (outbox == NULL)
        return FAIL(STATUS_NO_MEMORY, "what to tell the other nodes");
    pthread_mutex_init(&outbox->lock, NULL);
    outbox->last = &outbox->first;
    *out = outbox;
    return STATUS_OK;
}

static void free_notice(notice *n)
{
    free(n->key);
    free(n->text);
    free(n);
}

void launch_outbox_destroy(launch_outbox *outbox)
{
    if (outbox == NULL)
        return;
    while (outbox->first != NULL) {
        notice *n = outbox->first;
        outbox->first = n->next;
        free_notice(n);
    }
    pthread_mutex_destroy(&outbox->lock);
    free(outbox);
}

status launch_outbox_put(launch_outbox *outbox, const char *key, const char *text)
{
    notice *n = calloc(1, sizeof *n);
    if (n == NULL)
        return FAIL(STATUS_NO_MEMORY, "what to tell the other nodes");
    *n = (notice){.key = strdup(key), .text = strdup(text)};
    if (n->key == NULL || n->text == NULL) {
        free_notice(n);
        return FAIL(STATUS_NO_MEMORY, "what to tell the other nodes");
    }
    pthread_mutex_lock(&outbox->lock);
    *outbox->last = n;
    outbox->last = &n->next;
    pthread_mutex_unlock(&outbox->lock);
    return STATUS_OK;
}

static notice *first_of(launch_outbox *outbox)
{
    pthread_mutex_lock(&outbox->lock);
    notice *n = outbox->first;
    pthread_mutex_unlock(&outbox->lock);
    return n;
}

static void remove_first(launch_outbox *outbox)
{
    pthread_mutex_lock(&outbox->lock);
    notice *n = outbox->first;
    outbox->first = n->next;
    if (outbox->first == NULL)
        outbox->last = &outbox->first;
    pthread_mutex_unlock(&outbox->lock);
    free_notice(n);
}

status launch_outbox_send(launch_outbox *outbox, store *client)
{
    for (notice *n = first_of(outbox); n != NULL; n = first_of(outbox)) {
        bool there = false;
        TRY(store_set(client, n->key, n->text, strlen(n->text)));
        TRY(store_check(client, n->key, &there)); /* SET has no answer; this one comes behind it */
        remove_first(outbox);
    }
    return STATUS_OK;
}
