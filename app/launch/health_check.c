#include "app/launch/health_check.h"

#include "app/common/http_server_ops.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/module.h"
#include "base/text.h"
#include "base/thread.h"
#include "dist/health/rank_status.h"
#include "dist/net/socket.h"

#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { CONNECTIONS = 16, REQUEST_MS = 2000, LOOK_MS = 200, BODY_BYTES = 1024 };

struct health_check {
    const http_server_ops *ops;
    http_server_options options;
    void *server;
    pthread_t thread;
    atomic_bool ends;
    int64_t late_ns;

    pthread_mutex_t lock; /* guards what the agent has said, the next two */
    health_facts facts;
    int64_t seen_ns;

    char *text; /* the last answer's; the thread's own */
};

#define HEAD(name, type, help) \
    "# HELP mnist_ddp_" name " " help "\n# TYPE mnist_ddp_" name " " type "\n"
#define METRIC(name, type, help, value) HEAD(name, type, help) "mnist_ddp_" name " " value "\n"

/* Of the ranks that have a status page. Only rank 0 knows its loss and the job's rate. */
static void write_ranks(const rank_snapshot *ranks, int n, FILE *out)
{
    fputs(HEAD("epoch", "gauge", "that the rank is in, from 1"), out);
    for (int i = 0; i < n; i++)
        fprintf(out, "mnist_ddp_epoch{rank=\"%d\"} %" PRId64 "\n", ranks[i].rank,
                ranks[i].epoch + 1);
    fputs(HEAD("steps_total", "counter", "steps of the run that the rank has begun"), out);
    for (int i = 0; i < n; i++)
        fprintf(out, "mnist_ddp_steps_total{rank=\"%d\"} %" PRId64 "\n", ranks[i].rank,
                ranks[i].step);
    if (n == 0 || ranks[0].images_per_s <= 0)
        return;
    fprintf(out, METRIC("loss", "gauge", "of rank 0 in training, as last logged", "%g"),
            ranks[0].loss);
    fprintf(out, METRIC("images_per_second", "gauge", "of all ranks in the epoch so far", "%.10g"),
            ranks[0].images_per_s);
}

static void write_metrics(const health_facts *job, double age_s, FILE *out)
{
    rank_snapshot *ranks = calloc((size_t)job->nproc + 1, sizeof *ranks);
    int n = 0;
    for (int i = 0; i < job->nproc && ranks != NULL && job->pages[0] != '\0'; i++)
        n += rank_status_read(job->pages, job->first_rank + i, &ranks[n]) == STATUS_OK;
    fprintf(out, METRIC("launcher_age_seconds", "gauge", "since its loop was seen", "%.1f"), age_s);
    fprintf(out, METRIC("round", "gauge", "the attempt, or round", "%" PRId64), job->round);
    fprintf(out, METRIC("restarts_total", "counter", "starts after a failure", "%d"),
            job->restarts);
    fprintf(out, METRIC("world_size", "gauge", "ranks of the job", "%d"), job->world_size);
    write_ranks(ranks, n, out);
    free(ranks);
}

static void answer(void *ctx, const http_request *request, http_answer *out)
{
    health_check *self = ctx;
    const char *path = request->path;
    text_stream stream;
    bool metrics = strcmp(path, "/metrics") == 0;
    bool probe =
        strcmp(path, "/") == 0 || strcmp(path, "/health") == 0 || strcmp(path, "/healthz") == 0;
    if (strcmp(request->method, "GET") != 0 && strcmp(request->method, "HEAD") != 0) {
        out->code = 405;
        return;
    }
    if (!metrics && !probe) {
        *out = (http_answer){404, "text/plain", "not found\n", strlen("not found\n")};
        return;
    }
    pthread_mutex_lock(&self->lock);
    health_facts job = self->facts;
    int64_t age_ns = clock_now_ns() - self->seen_ns;
    pthread_mutex_unlock(&self->lock);
    free(self->text);
    self->text = NULL;
    if (text_stream_open(&stream) != STATUS_OK)
        return; /* 500 */
    if (metrics)
        write_metrics(&job, clock_seconds(age_ns), stream.file);
    else
        fprintf(stream.file, "{\"state\":\"%s\",\"round\":%lld,\"world_size\":%d,\"age_s\":%.1f}\n",
                job.state, (long long)job.round, job.world_size, clock_seconds(age_ns));
    if (text_stream_close(&stream, &self->text, NULL) != STATUS_OK)
        return;
    out->type = metrics ? "text/plain; version=0.0.4; charset=utf-8" : "application/json";
    out->code = age_ns > self->late_ns && !metrics ? 503 : 200;
    out->body = self->text;
    out->body_bytes = strlen(self->text);
}

static void *serve(void *arg)
{
    health_check *self = arg;
    while (!self->ends)
        if (self->ops->run(self->server, LOOK_MS) != STATUS_OK) {
            LOG_W("--health-check-port: no further answers: %s", status_text());
            break;
        }
    return NULL;
}

static status start(health_check *self, const char *host, int port)
{
    static const char *const headers[] = {"Cache-Control", "no-store", NULL};
    const module *http = NULL;
    char own[SOCKET_ADDRESS_BYTES], ignored[SOCKET_ADDRESS_BYTES + 80];
    bool binds = host[0] != '\0' && socket_address_home(host, own, ignored);
    int fd = -1;
    TRY(status_context(module_open("microhttpd", &http), "--health-check-port"));
    TRY(socket_listen(binds ? own : NULL, port, &fd, &port));
    self->ops = http->http_server;
    self->options = (http_server_options){.listen_fd = fd,
                                          .body_limit_bytes = BODY_BYTES,
                                          .connections = CONNECTIONS,
                                          .request_ms = REQUEST_MS,
                                          .headers = headers,
                                          .answer = answer,
                                          .ctx = self};
    status st = self->ops->open(&self->options, &self->server);
    if (st != STATUS_OK) {
        close(fd);
        return st;
    }
    st = thread_start(serve, self, "the health check's", &self->thread);
    if (st == STATUS_OK)
        LOG_V("health check: http://%s:%d/", binds ? own : "0.0.0.0", port);
    else
        self->ops->close(self->server);
    return st;
}

status health_check_open(const char *host, int port, int64_t late_ms, health_check **out)
{
    *out = NULL;
    if (port < 0)
        return STATUS_OK;
    health_check *self = calloc(1, sizeof *self);
    if (self == NULL)
        return FAIL(STATUS_NO_MEMORY, "a health check");
    pthread_mutex_init(&self->lock, NULL);
    self->late_ns = late_ms * 1000000;
    health_check_beat(self, &(health_facts){.state = "starts"});
    status st = start(self, host, port);
    if (st == STATUS_OK)
        *out = self;
    else
        free(self);
    return st;
}

void health_check_beat(health_check *check, const health_facts *facts)
{
    if (check == NULL)
        return;
    pthread_mutex_lock(&check->lock);
    check->facts = *facts;
    check->seen_ns = clock_now_ns();
    pthread_mutex_unlock(&check->lock);
}

int health_check_wait_ms(const health_check *check, int wait_ms)
{
    bool is_long = wait_ms < 0 || wait_ms > HEALTH_CHECK_BEAT_MS;
    return check != NULL && is_long ? HEALTH_CHECK_BEAT_MS : wait_ms;
}

void health_check_close(health_check *check)
{
    if (check == NULL)
        return;
    check->ends = true;
    pthread_join(check->thread, NULL);
    check->ops->close(check->server);
    pthread_mutex_destroy(&check->lock);
    free(check->text);
    free(check);
}
