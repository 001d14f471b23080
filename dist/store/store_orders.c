#include "dist/store/store_orders.h"

#include <errno.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

status store_orders_init(store_orders *orders)
{
    *orders = (store_orders){.wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
    if (orders->wake_fd < 0)
        return FAIL(STATUS_IO, "eventfd: %s", strerror(errno));
    pthread_mutex_init(&orders->lock, NULL);
    pthread_cond_init(&orders->changed, NULL);
    return STATUS_OK;
}

void store_orders_close(store_orders *orders)
{
    if (orders->wake_fd < 0)
        return;
    pthread_mutex_lock(&orders->lock);
    while (orders->givers > 0)
        pthread_cond_wait(&orders->changed, &orders->lock);
    pthread_mutex_unlock(&orders->lock);
    pthread_mutex_destroy(&orders->lock);
    pthread_cond_destroy(&orders->changed);
    close(orders->wake_fd);
    orders->wake_fd = -1;
}

void store_orders_give(store_orders *orders, store_order *order)
{
    uint64_t one = 1;
    pthread_mutex_lock(&orders->lock);
    orders->givers++;
    if (!orders->stopped) {
        store_order **end = &orders->first;
        while (*end != NULL)
            end = &(*end)->next;
        *end = order;
        atomic_store(&orders->waiting, true);
        ssize_t n = write(orders->wake_fd, &one, sizeof one);
        ASSERT(n == (ssize_t)sizeof one);
    }
    while (!order->done && !orders->stopped)
        pthread_cond_wait(&orders->changed, &orders->lock);
    orders->givers--;
    pthread_cond_broadcast(&orders->changed);
    pthread_mutex_unlock(&orders->lock);
}

bool store_orders_take(store_orders *orders, store_order_fn carry_out, void *ctx)
{
    uint64_t count;
    pthread_mutex_lock(&orders->lock);
    ssize_t n = read(orders->wake_fd, &count, sizeof count);
    ASSERT(n == (ssize_t)sizeof count || errno == EAGAIN);
    atomic_store(&orders->waiting, false);
    while (orders->first != NULL) {
        store_order *order = orders->first;
        orders->first = order->next;
        if (order->task == STORE_STOP)
            orders->stopped = true;
        if (!orders->stopped)
            carry_out(ctx, order);
        order->done = true;
    }
    bool stopped = orders->stopped;
    pthread_cond_broadcast(&orders->changed);
    pthread_mutex_unlock(&orders->lock);
    return !stopped;
}
