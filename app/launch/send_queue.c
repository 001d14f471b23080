#include "app/launch/send_queue.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

typedef struct message {
    struct message *next;
    char *key, *text;
} message;

struct send_queue {
    pthread_mutex_t lock;
    message *first, **last; /* under the lock; who sends removes */
};

status send_queue_create(send_queue **out)
{
    send_queue *queue = calloc(1, sizeof *queue);
    if (queue == NULL)
        return FAIL(STATUS_NO_MEMORY, "what to tell the other nodes");
    pthread_mutex_init(&queue->lock, NULL);
    queue->last = &queue->first;
    *out = queue;
    return STATUS_OK;
}

static void free_notice(message *n)
{
    free(n->key);
    free(n->text);
    free(n);
}

void send_queue_destroy(send_queue *queue)
{
    if (queue == NULL)
        return;
    while (queue->first != NULL) {
        message *n = queue->first;
        queue->first = n->next;
        free_notice(n);
    }
    pthread_mutex_destroy(&queue->lock);
    free(queue);
}

status send_queue_put(send_queue *queue, const char *key, const char *text)
{
    message *n = calloc(1, sizeof *n);
    if (n == NULL)
        return FAIL(STATUS_NO_MEMORY, "what to tell the other nodes");
    *n = (message){.key = strdup(key), .text = strdup(text)};
    if (n->key == NULL || n->text == NULL) {
        free_notice(n);
        return FAIL(STATUS_NO_MEMORY, "what to tell the other nodes");
    }
    pthread_mutex_lock(&queue->lock);
    *queue->last = n;
    queue->last = &n->next;
    pthread_mutex_unlock(&queue->lock);
    return STATUS_OK;
}

static message *first_of(send_queue *queue)
{
    pthread_mutex_lock(&queue->lock);
    message *n = queue->first;
    pthread_mutex_unlock(&queue->lock);
    return n;
}

static void remove_first(send_queue *queue)
{
    pthread_mutex_lock(&queue->lock);
    message *n = queue->first;
    queue->first = n->next;
    if (queue->first == NULL)
        queue->last = &queue->first;
    pthread_mutex_unlock(&queue->lock);
    free_notice(n);
}

status send_queue_send(send_queue *queue, store *client)
{
    for (message *n = first_of(queue); n != NULL; n = first_of(queue)) {
        bool there = false;
        TRY(store_set(client, n->key, n->text, strlen(n->text)));
        TRY(store_check(client, n->key, &there)); /* SET has no answer; this one comes behind it */
        remove_first(queue);
    }
    return STATUS_OK;
}
