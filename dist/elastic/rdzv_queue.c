#include "dist/elastic/rdzv_queue.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

/* What the owner is told. On the heap: it goes from hand to hand. */
typedef struct report {
    rdzv_news news; /* without its pointers: who looks gets those to what follows */
    char reason[1024];
    round_state now;
} report;

struct rdzv_queue {
    int news_fd, wake_fd; /* eventfds: for the owner, for the thread */
    _Atomic int64_t valid_until_ns;

    pthread_mutex_t lock; /* of these */
    rdzv_requests asked;
    report *next; /* NULL: the owner has taken the latest */

    report *given; /* the owner's */
    report *spare; /* the thread's: for the news that there is no memory for any */
};

static void departure_free(rdzv_departure *how)
{
    for (int i = 0; i < how->n_lost; i++)
        free((char *)how->lost[i]);
    free((void *)how->lost);
    *how = (rdzv_departure){0};
}

void rdzv_requests_free(rdzv_requests *requests)
{
    departure_free(&requests->how);
}

static void report_free(report *r)
{
    if (r != NULL)
        round_state_free(&r->now);
    free(r);
}

/* Of a round: no longer true after this node has left it. */
static bool is_of_round(const report *r)
{
    return r != NULL && (r->news.phase == RDZV_RUNS || r->news.phase == RDZV_LEAVES);
}

status rdzv_queue_create(rdzv_queue **out)
{
    rdzv_queue *box = calloc(1, sizeof *box);
    if (box == NULL)
        return FAIL(STATUS_NO_MEMORY, "a rendezvous");
    status st = STATUS_OK;
    pthread_mutex_init(&box->lock, NULL);
    box->news_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    box->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (box->news_fd < 0 || box->wake_fd < 0)
        st = FAIL(STATUS_IO, "a descriptor for the rendezvous: %s", strerror(errno));
    box->given = calloc(1, sizeof *box->given);
    box->spare = calloc(1, sizeof *box->spare);
    if (box->given == NULL || box->spare == NULL)
        st = FAIL(STATUS_NO_MEMORY, "a rendezvous");
    if (st == STATUS_OK)
        *out = box;
    else
        rdzv_queue_destroy(box);
    return st;
}

void rdzv_queue_destroy(rdzv_queue *box)
{
    if (box == NULL)
        return;
    if (box->news_fd >= 0)
        close(box->news_fd);
    if (box->wake_fd >= 0)
        close(box->wake_fd);
    pthread_mutex_destroy(&box->lock);
    rdzv_requests_free(&box->asked);
    report_free(box->next);
    report_free(box->given);
    report_free(box->spare);
    free(box);
}

int rdzv_queue_wake_fd(const rdzv_queue *box)
{
    return box->wake_fd;
}

void rdzv_queue_take(rdzv_queue *box, rdzv_requests *known)
{
    eventfd_t count;
    eventfd_read(box->wake_fd, &count);
    pthread_mutex_lock(&box->lock);
    rdzv_departure how = known->how;
    if (box->asked.how.lost != NULL) {
        departure_free(&how);
        how = box->asked.how;
        box->asked.how = (rdzv_departure){0};
    }
    *known = box->asked;
    known->how = how;
    pthread_mutex_unlock(&box->lock);
}

void rdzv_queue_heard_left(rdzv_queue *box)
{
    pthread_mutex_lock(&box->lock);
    box->asked.left = false;
    pthread_mutex_unlock(&box->lock);
}

static void publish(rdzv_queue *box, report *r)
{
    pthread_mutex_lock(&box->lock);
    report *dropped = box->asked.left && is_of_round(r) ? r : box->next;
    if (dropped != r)
        box->next = r;
    pthread_mutex_unlock(&box->lock);
    report_free(dropped);
    eventfd_write(box->news_fd, 1);
}

static status make_report(const rdzv_news *news, report **out)
{
    report *r = calloc(1, sizeof *r);
    if (r == NULL)
        return FAIL(STATUS_NO_MEMORY, "news of the rendezvous");
    status st = news->now != NULL ? round_state_copy(news->now, &r->now) : STATUS_OK;
    if (st != STATUS_OK) {
        free(r);
        return st;
    }
    r->news = *news;
    r->news.reason = NULL;
    r->news.now = NULL;
    snprintf(r->reason, sizeof r->reason, "%s", news->reason);
    *out = r;
    return STATUS_OK;
}

status rdzv_queue_tell(rdzv_queue *box, const rdzv_news *news)
{
    report *r = NULL;
    status st = make_report(news, &r);
    if (st == STATUS_NO_MEMORY && box->spare != NULL) {
        r = box->spare;
        box->spare = NULL;
        r->news = (rdzv_news){.phase = RDZV_FAILED, .failure = st};
        snprintf(r->reason, sizeof r->reason, "%s", status_text());
    }
    if (r != NULL)
        publish(box, r);
    return st;
}

void rdzv_queue_extend(rdzv_queue *box, int64_t valid_until_ns)
{
    if (atomic_exchange(&box->valid_until_ns, valid_until_ns) != valid_until_ns)
        eventfd_write(box->news_fd, 1);
}

int rdzv_queue_news_fd(const rdzv_queue *box)
{
    return box->news_fd;
}

rdzv_news rdzv_queue_look(rdzv_queue *box)
{
    eventfd_t count;
    eventfd_read(box->news_fd, &count);
    pthread_mutex_lock(&box->lock);
    report *next = box->next;
    box->next = NULL;
    pthread_mutex_unlock(&box->lock);
    if (next != NULL) {
        report_free(box->given);
        box->given = next;
    }
    rdzv_news news = box->given->news;
    news.reason = box->given->reason;
    news.now = is_of_round(box->given) ? &box->given->now : NULL;
    news.valid_until_ns = atomic_load(&box->valid_until_ns);
    return news;
}

void rdzv_queue_left(rdzv_queue *box, const rdzv_departure *how)
{
    char **lost = calloc((size_t)how->n_lost + 1, sizeof *lost);
    int n_lost = 0;
    for (int i = 0; i < how->n_lost && lost != NULL; i++) {
        lost[n_lost] = strdup(how->lost[i]);
        n_lost += lost[n_lost] != NULL; /* else its lease is waited for */
    }
    report *dropped = NULL;
    pthread_mutex_lock(&box->lock);
    departure_free(&box->asked.how);
    box->asked.how = (rdzv_departure){(const char *const *)lost, n_lost, how->restarts, how->unmet};
    box->asked.left = true;
    if (is_of_round(box->next)) {
        dropped = box->next;
        box->next = NULL;
    }
    pthread_mutex_unlock(&box->lock);
    report_free(dropped);
    if (is_of_round(box->given)) {
        box->given->news.phase = RDZV_WAITS;
        box->given->reason[0] = '\0';
    }
    eventfd_write(box->wake_fd, 1);
}

void rdzv_queue_close_job(rdzv_queue *box, round_ending ending, const char *reason)
{
    pthread_mutex_lock(&box->lock);
    box->asked.close = true;
    box->asked.ending = ending;
    snprintf(box->asked.reason, sizeof box->asked.reason, "%s", reason);
    pthread_mutex_unlock(&box->lock);
    eventfd_write(box->wake_fd, 1);
}

void rdzv_queue_quit(rdzv_queue *box)
{
    pthread_mutex_lock(&box->lock);
    box->asked.quit = true;
    pthread_mutex_unlock(&box->lock);
    eventfd_write(box->wake_fd, 1);
}
