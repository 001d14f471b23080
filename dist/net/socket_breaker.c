#include "dist/net/socket_breaker.h"

#include <sys/socket.h>

void socket_breaker_init(socket_breaker *breaker)
{
    *breaker = (socket_breaker){.fd = -1};
    pthread_mutex_init(&breaker->lock, NULL);
}

void socket_breaker_close(socket_breaker *breaker)
{
    if (breaker != NULL)
        pthread_mutex_destroy(&breaker->lock);
}

/* The lock is held. */
static void shut_down(const socket_breaker *breaker)
{
    if (breaker->broken && breaker->fd >= 0)
        (void)shutdown(breaker->fd, SHUT_RDWR);
}

void socket_breaker_set(socket_breaker *breaker, int fd)
{
    if (breaker == NULL)
        return;
    pthread_mutex_lock(&breaker->lock);
    breaker->fd = fd;
    shut_down(breaker);
    pthread_mutex_unlock(&breaker->lock);
}

void socket_breaker_break(socket_breaker *breaker)
{
    if (breaker == NULL)
        return;
    pthread_mutex_lock(&breaker->lock);
    breaker->broken = true;
    shut_down(breaker);
    pthread_mutex_unlock(&breaker->lock);
}

bool socket_breaker_is_broken(socket_breaker *breaker)
{
    if (breaker == NULL)
        return false;
    pthread_mutex_lock(&breaker->lock);
    bool broken = breaker->broken;
    pthread_mutex_unlock(&breaker->lock);
    return broken;
}
