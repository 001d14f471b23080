#include "dist/backends/local/local_messages.h"

#include <stdlib.h>
#include <string.h>

static size_t bytes_of(const collective *c)
{
    return c->count * dtype_size(c->type);
}

static local_message **list_of(local_messages *m, const local_message *message)
{
    return message->what.kind == COLLECTIVE_SEND ? &m->sends : &m->recvs;
}

status local_messages_add(local_messages *m, int rank, const collective *c, local_message **out)
{
    bool is_kept = c->kind == COLLECTIVE_SEND && bytes_of(c) <= LOCAL_KEPT_BYTES;
    size_t kept_bytes = is_kept ? bytes_of(c) : 0;
    local_message *message = malloc(sizeof *message + kept_bytes);
    if (message == NULL)
        return FAIL(STATUS_NO_MEMORY, "a message of %zu bytes", bytes_of(c));
    *message = (local_message){.what = *c, .rank = rank, .is_kept = is_kept};
    if (kept_bytes > 0) {
        memcpy(message->data, c->in, kept_bytes);
        message->what.in = message->data;
    }
    local_message **end = list_of(m, message);
    while (*end != NULL)
        end = &(*end)->next;
    *end = message;
    *out = is_kept ? NULL : message;
    return STATUS_OK;
}

void local_messages_drop(local_messages *m, local_message *message)
{
    local_message **at = list_of(m, message);
    while (*at != message)
        at = &(*at)->next;
    *at = message->next;
    free(message);
}

static local_message *find_send(const local_messages *m, const local_message *recv)
{
    local_message *s = m->sends;
    while (s != NULL && (s->state != LOCAL_WAITS || s->rank != recv->what.root ||
                         s->what.root != recv->rank || s->what.tag != recv->what.tag))
        s = s->next;
    return s;
}

static status refuse(local_message *sent, local_message *recv)
{
    sent->state = recv->state = LOCAL_REFUSED;
    return FAIL(STATUS_INVALID,
                "rank %d sends %zu elements of %s, rank %d receives %zu of %s: count and type are "
                "to be the same",
                sent->rank, sent->what.count, dtype_name(sent->what.type), recv->rank,
                recv->what.count, dtype_name(recv->what.type));
}

status local_messages_move(local_messages *m, int rank, pthread_mutex_t *lock, bool *moved)
{
    *moved = false;
    for (local_message *recv = m->recvs; recv != NULL; recv = recv->next) {
        if (recv->rank != rank || recv->state != LOCAL_WAITS)
            continue;
        local_message *sent = find_send(m, recv);
        if (sent == NULL)
            continue;
        *moved = true;
        if (sent->what.count != recv->what.count || sent->what.type != recv->what.type)
            return refuse(sent, recv);
        sent->state = LOCAL_MOVES; /* nobody frees either meanwhile */
        recv->state = LOCAL_MOVES;
        pthread_mutex_unlock(lock);
        memcpy(recv->what.out, sent->what.in, bytes_of(&recv->what));
        pthread_mutex_lock(lock);
        sent->state = LOCAL_DONE;
        recv->state = LOCAL_DONE;
        if (sent->is_kept)
            local_messages_drop(m, sent);
    }
    return STATUS_OK;
}

void local_messages_free(local_messages *m)
{
    while (m->sends != NULL)
        local_messages_drop(m, m->sends);
    while (m->recvs != NULL)
        local_messages_drop(m, m->recvs);
}
