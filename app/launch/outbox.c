#include "app/launch/outbox.h"

#include "base/log.h"

#include <stdlib.h>
#include <string.h>

struct outbox_message {
    outbox_message *next;
    keys_text key;
    char text[]; /* its value */
};

void outbox_init(outbox *box)
{
    *box = (outbox){.last = &box->first};
    pthread_mutex_init(&box->lock, NULL);
}

void outbox_close(outbox *box)
{
    for (outbox_message *m = box->first, *next; m != NULL; m = next) {
        next = m->next;
        free(m);
    }
    pthread_mutex_destroy(&box->lock);
}

void outbox_put(outbox *box, keys_text key, const char *text)
{
    size_t size_bytes = strlen(text) + 1;
    outbox_message *m = malloc(sizeof *m + size_bytes);
    if (m == NULL) {
        LOG_E("no memory for what the other nodes should hear");
        return;
    }
    m->next = NULL;
    m->key = key;
    memcpy(m->text, text, size_bytes);
    pthread_mutex_lock(&box->lock);
    *box->last = m;
    box->last = &m->next;
    pthread_mutex_unlock(&box->lock);
}

status outbox_send(outbox *box, store *client)
{
    pthread_mutex_lock(&box->lock);
    outbox_message *m = box->first, *next;
    pthread_mutex_unlock(&box->lock);
    for (; m != NULL; m = next) {
        bool there = false;
        TRY(store_set(client, m->key.text, m->text, strlen(m->text)));
        TRY(store_check(client, m->key.text, &there)); /* SET itself has no answer */
        pthread_mutex_lock(&box->lock);
        next = box->first = m->next;
        if (next == NULL)
            box->last = &box->first;
        pthread_mutex_unlock(&box->lock);
        free(m);
    }
    return STATUS_OK;
}
