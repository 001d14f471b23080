#include "dist/elastic/rendezvous_mailbox.h"

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
    rendezvous_news news; /* without its pointers: who looks gets those to what follows */
    char reason[1024];
    round_state now;
} report;

struct rendezvous_mailbox {
    int news_fd, wake_fd; /* eventfds: for the owner, for the thread */
    _Atomic int64_t valid_until_ns;

    pthread_mutex_t lock; /* of these */
    rendezvous_requests asked;
    report *next; /* NULL: the owner has taken the latest */

    report *given; /* the owner's */
    report *spare; /* the thread's: for the news that there is no memory for any */
};

static void departure_free(round_departure *how)
{
    for (int i = 0; i < how->n_lost; i++)
        free((char *)how->lost[i]);
    free((void *)how->lost);
    *how = (round_departure){0};
}

void rendezvous_requests_free(rendezvous_requests *requests)
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
    return r != NULL && (r->news.phase == RENDEZVOUS_RUNS || r->news.phase == RENDEZVOUS_LEAVE);
}

status rendezvous_mailbox_create(rendezvous_mailbox **out)
{
    rendezvous_mailbox *box = calloc(1, sizeof *box);
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
        rendezvous_mailbox_destroy(box);
    return st;
}

void rendezvous_mailbox_destroy(rendezvous_mailbox *box)
{
    if (box == NULL)
        return;
    if (box->news_fd >= 0)
        close(box->news_fd);
    if (box->wake_fd >= 0)
        close(box->wake_fd);
    pthread_mutex_destroy(&box->lock);
    rendezvous_requests_free(&box->asked);
    report_free(box->next);
    report_free(box->given);
    report_free(box->spare);
    free(box);
}

int rendezvous_mailbox_wake_fd(const rendezvous_mailbox *box)
{
    return box->wake_fd;
}

void rendezvous_mailbox_take(rendezvous_mailbox *box, rendezvous_requests *known)
{
    eventfd_t count;
    eventfd_read(box->wake_fd, &count);
    pthread_mutex_lock(&box->lock);
    round_departure how = known->how;
    if (box->asked.how.lost != NULL) {
        departure_free(&how);
        how = box->asked.how;
        box->asked.how = (round_departure){0};
    }
    *known = box->asked;
    known->how = how;
    pthread_mutex_unlock(&box->lock);
}

void rendezvous_mailbox_heard_left(rendezvous_mailbox *box)
{
    pthread_mutex_lock(&box->lock);
    box->asked.left = false;
    pthread_mutex_unlock(&box->lock);
}

static void publish(rendezvous_mailbox *box, report *r)
{
    pthread_mutex_lock(&box->lock);
    report *dropped = box->asked.left && is_of_round(r) ? r : box->next;
    if (dropped != r)
        box->next = r;
    pthread_mutex_unlock(&box->lock);
    report_free(dropped);
    eventfd_write(box->news_fd, 1);
}

static status make_report(const rendezvous_news *news, report **out)
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

status rendezvous_mailbox_tell(rendezvous_mailbox *box, const rendezvous_news *news)
{
    report *r = NULL;
    status st = make_report(news, &r);
    if (st == STATUS_NO_MEMORY && box->spare != NULL) {
        r = box->spare;
        box->spare = NULL;
        r->news = (rendezvous_news){.phase = RENDEZVOUS_FAILED, .failure = st};
        snprintf(r->reason, sizeof r->reason, "%s", status_text());
    }
    if (r != NULL)
        publish(box, r);
    return st;
}

void rendezvous_mailbox_extend(rendezvous_mailbox *box, int64_t valid_until_ns)
{
    if (atomic_exchange(&box->valid_until_ns, valid_until_ns) != valid_until_ns)
        eventfd_write(box->news_fd, 1);
}

int rendezvous_mailbox_news_fd(const rendezvous_mailbox *box)
{
    return box->news_fd;
}

rendezvous_news rendezvous_mailbox_look(rendezvous_mailbox *box)
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
    rendezvous_news news = box->given->news;
    news.reason = box->given->reason;
    news.now = is_of_round(box->given) ? &box->given->now : NULL;
    news.valid_until_ns = atomic_load(&box->valid_until_ns);
    return news;
}

void rendezvous_mailbox_left(rendezvous_mailbox *box, const round_departure *how)
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
    box->asked.how =
        (round_departure){(const char *const *)lost, n_lost, how->restarts, how->unmet};
    box->asked.left = true;
    if (is_of_round(box->next)) {
        dropped = box->next;
        box->next = NULL;
    }
    pthread_mutex_unlock(&box->lock);
    report_free(dropped);
    if (is_of_round(box->given)) {
        box->given->news.phase = RENDEZVOUS_WAITS;
        box->given->reason[0] = '\0';
    }
    eventfd_write(box->wake_fd, 1);
}

void rendezvous_mailbox_close_job(rendezvous_mailbox *box, round_ending ending, const char *reason)
{
    pthread_mutex_lock(&box->lock);
    box->asked.close = true;
    box->asked.ending = ending;
    snprintf(box->asked.reason, sizeof box->asked.reason, "%s", reason);
    pthread_mutex_unlock(&box->lock);
    eventfd_write(box->wake_fd, 1);
}

void rendezvous_mailbox_quit(rendezvous_mailbox *box)
{
    pthread_mutex_lock(&box->lock);
    box->asked.quit = true;
    pthread_mutex_unlock(&box->lock);
    eventfd_write(box->wake_fd, 1);
}
