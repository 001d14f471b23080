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
    free(box->lasting);
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

void outbox_put_lasting(outbox *box, keys_text key, const char *text)
{
    outbox_put(box, key, text);
    pthread_mutex_lock(&box->lock);
    free(box->lasting);
    box->lasting = strdup(text);
    box->lasting_key = key;
    pthread_mutex_unlock(&box->lock);
}

void outbox_repeat(outbox *box)
{
    pthread_mutex_lock(&box->lock);
    char *text = box->lasting != NULL ? strdup(box->lasting) : NULL;
    keys_text key = box->lasting_key;
    pthread_mutex_unlock(&box->lock);
    if (text != NULL)
        outbox_put(box, key, text);
    free(text);
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
