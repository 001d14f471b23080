#include "app/launch/health_check.h"

#include "app/common/http_server_ops.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/module.h"
#include "base/thread.h"
#include "dist/net/socket.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { CONNECTIONS = 16, REQUEST_MS = 5000, LOOK_MS = 200, BODY_BYTES = 1024, ANSWER_BYTES = 256 };

struct health_check {
    const http_server_ops *ops;
    http_server_options options;
    void *server;
    pthread_t thread;
    atomic_bool ends;
    int64_t late_ns;

    pthread_mutex_t lock; /* of what the agent has said: */
    const char *state;
    int64_t round, seen_ns;
    int world_size;

    char text[ANSWER_BYTES]; /* of the thread */
};

static void answer(void *ctx, const http_request *request, http_answer *out)
{
    health_check *self = ctx;
    out->type = "application/json";
    if (strcmp(request->method, "GET") != 0 && strcmp(request->method, "HEAD") != 0) {
        out->code = 405;
        return;
    }
    pthread_mutex_lock(&self->lock);
    int64_t age_ns = clock_now_ns() - self->seen_ns;
    int length =
        snprintf(self->text, sizeof self->text,
                 "{\"state\":\"%s\",\"round\":%lld,\"world_size\":%d,\"age_s\":%.1f}\n",
                 self->state, (long long)self->round, self->world_size, clock_seconds(age_ns));
    pthread_mutex_unlock(&self->lock);
    out->code = age_ns > self->late_ns ? 503 : 200;
    out->body = self->text;
    out->body_bytes = (size_t)length;
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

static status start(health_check *self, int port)
{
    static const char *const headers[] = {"Cache-Control", "no-store", NULL};
    const module *http = NULL;
    int fd = -1;
    TRY(module_open("microhttpd", &http));
    if (http->http_server == NULL)
        return FAIL(STATUS_INVALID,
                    "--health-check-port: module microhttpd is another module; what "
                    "does MNIST_DDP_MICROHTTPD_MODULE name?");
    TRY(socket_listen(NULL, port, &fd, &port));
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
        LOG_V("health check: http://0.0.0.0:%d/", port);
    else
        self->ops->close(self->server);
    return st;
}

status health_check_open(int port, int64_t late_ms, health_check **out)
{
    *out = NULL;
    if (port < 0)
        return STATUS_OK;
    health_check *self = calloc(1, sizeof *self);
    if (self == NULL)
        return FAIL(STATUS_NO_MEMORY, "a health check");
    pthread_mutex_init(&self->lock, NULL);
    self->late_ns = late_ms * 1000000;
    health_check_beat(self, "starts", 0, 0);
    status st = start(self, port);
    if (st == STATUS_OK)
        *out = self;
    else
        free(self);
    return st;
}

void health_check_beat(health_check *check, const char *state, int64_t round, int world_size)
{
    if (check == NULL)
        return;
    pthread_mutex_lock(&check->lock);
    check->state = state;
    check->round = round;
    check->world_size = world_size;
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
    free(check);
}
