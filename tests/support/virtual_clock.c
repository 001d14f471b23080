#include "tests/support/virtual_clock.h"

#include "base/clock.h"

#include <poll.h>
#include <pthread.h>
#include <stddef.h>

typedef struct waiter {
    int fd;
    int64_t deadline_ns, seen;
    struct waiter *next;
} waiter;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t moved = PTHREAD_COND_INITIALIZER;
static int64_t now_ns = 1000000000, changes;
static int threads, waiting;
static waiter *waiters;

int64_t virtual_clock_ns(void)
{
    pthread_mutex_lock(&lock);
    int64_t out = now_ns;
    pthread_mutex_unlock(&lock);
    return out;
}

int64_t virtual_clock_deadline_ns(int64_t timeout_ms)
{
    return virtual_clock_ns() + timeout_ms * 1000000;
}

bool virtual_clock_passed(int64_t deadline_ns)
{
    return virtual_clock_ns() >= deadline_ns;
}

static void add_threads(int n)
{
    pthread_mutex_lock(&lock);
    threads += n;
    pthread_mutex_unlock(&lock);
}

void virtual_clock_enter(void)
{
    add_threads(1);
}

void virtual_clock_leave(void)
{
    add_threads(-1);
}

void virtual_clock_change(void)
{
    pthread_mutex_lock(&lock);
    changes++;
    pthread_cond_broadcast(&moved);
    pthread_mutex_unlock(&lock);
}

int64_t virtual_clock_changes(void)
{
    pthread_mutex_lock(&lock);
    int64_t out = changes;
    pthread_mutex_unlock(&lock);
    return out;
}

static bool is_due(const waiter *w)
{
    struct pollfd fd = {.fd = w->fd, .events = POLLIN};
    return changes > w->seen || now_ns >= w->deadline_ns || poll(&fd, 1, 0) > 0;
}

/* If all wait, and for nothing else than time. */
static bool jump(void)
{
    int64_t first_ns = INT64_MAX;
    for (const waiter *w = waiters; w != NULL; w = w->next) {
        if (is_due(w))
            return false;
        first_ns = w->deadline_ns < first_ns ? w->deadline_ns : first_ns;
    }
    if (waiting < threads)
        return false;
    now_ns = first_ns;
    pthread_cond_broadcast(&moved);
    return true;
}

/* Who does not take part writes to descriptors, too: they are looked at each millisecond. */
void virtual_clock_wait(int fd, int64_t deadline_ns, int64_t seen)
{
    pthread_mutex_lock(&lock);
    waiter self = {fd, deadline_ns, seen, waiters};
    waiters = &self;
    waiting++;
    while (!is_due(&self))
        if (!jump())
            clock_await(&moved, &lock, clock_deadline_ns(1));
    waiter **place = &waiters;
    while (*place != &self)
        place = &(*place)->next;
    *place = self.next;
    waiting--;
    pthread_mutex_unlock(&lock);
}
