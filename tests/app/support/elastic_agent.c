#include "tests/app/support/elastic_agent.h"

#include "base/clock.h"
#include "base/file.h"
#include "tests/app/support/test_folder.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { VARIABLES = 12, VARIABLE_BYTES = 64 };

void elastic_agent_open(const char *const *flags, elastic_agent *out)
{
    *out = (elastic_agent){.flags = flags};
    ck_assert_int_eq(store_server_create("127.0.0.1", 0, &out->server), STATUS_OK);
    ck_assert_int_eq(round_fence_create(&out->fence), STATUS_OK);
    round_fence_set(out->fence, INT64_MAX);
}

void elastic_agent_close(elastic_agent *agent)
{
    for (int i = 0; i < agent->n; i++) {
        if (agent->ranks[i].fd >= 0) {
            kill(agent->ranks[i].p.pid, SIGKILL);
            elastic_agent_await_end(agent, i);
        }
        program_close(&agent->ranks[i].p);
    }
    round_fence_close(agent->fence);
    store_server_destroy(agent->server);
}

static int fence_fd;

static int keep_open(int fd)
{
    return fcntl(fd, F_SETFD, 0) != 0 || fcntl(fence_fd, F_SETFD, 0) != 0;
}

static void start(elastic_agent *agent, elastic_agent_rank *rank, int number, int world_size)
{
    int ends[2], n = 0;
    char variables[VARIABLES][VARIABLE_BYTES];
    const char *argv[MAX_WORDS] = {"env"};
    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
    const struct {
        const char *name;
        int value;
    } all[] = {{"RANK", number},
               {"WORLD_SIZE", world_size},
               {"LOCAL_RANK", number},
               {"LOCAL_WORLD_SIZE", world_size},
               {"MASTER_PORT", store_server_port(agent->server)},
               {ELASTIC_ROUND_VARIABLE, (int)agent->round},
               {ELASTIC_FD_VARIABLE, ends[1]},
               {ROUND_FENCE_VARIABLE, round_fence_fd(agent->fence)}};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++, n++)
        snprintf(variables[n], VARIABLE_BYTES, "%s=%d", all[i].name, all[i].value);
    snprintf(variables[n++], VARIABLE_BYTES, "MASTER_ADDR=127.0.0.1");
    snprintf(variables[n++], VARIABLE_BYTES, "MNIST_DDP_LAUNCHED=%lld", (long long)clock_now_ns());
    snprintf(variables[n++], VARIABLE_BYTES, "TORCHELASTIC_USE_AGENT_STORE=True");
    for (int i = 0; i < n; i++)
        argv[1 + i] = variables[i];
    argv[++n] = program_mnist_ddp();
    for (const char *const *flag = agent->flags; *flag != NULL; flag++)
        argv[++n] = *flag;
    fence_fd = round_fence_fd(agent->fence);
    rank->p = program_start_after(argv, keep_open, ends[1]);
    rank->fd = ends[0];
    close(ends[1]);
}

void elastic_agent_begin(elastic_agent *agent, const int *who, int n)
{
    agent->round++;
    for (int number = 0; number < n; number++) {
        elastic_agent_rank *rank = &agent->ranks[who[number]];
        if (who[number] >= agent->n) {
            start(agent, rank, number, n);
            agent->n = who[number] + 1;
            continue;
        }
        elastic_message message = {.word = ELASTIC_JOIN, .round = agent->round};
        message.place = (elastic_place){.round = agent->round,
                                        .rank = number,
                                        .world_size = n,
                                        .local_rank = number,
                                        .local_world_size = n,
                                        .nnodes = 1,
                                        .master_port = store_server_port(agent->server)};
        strcpy(message.place.master_addr, "127.0.0.1");
        ck_assert_int_eq(elastic_link_send(rank->fd, &message), STATUS_OK);
    }
}

void elastic_agent_say(elastic_agent *agent, int i, elastic_word word)
{
    elastic_message message = {.word = word, .round = agent->round};
    ck_assert_int_eq(elastic_link_send(agent->ranks[i].fd, &message), STATUS_OK);
}

void elastic_agent_await_left(elastic_agent *agent, int i)
{
    elastic_agent_rank *rank = &agent->ranks[i];
    struct pollfd entry = {.fd = rank->fd, .events = POLLIN};
    elastic_message message = {0};
    bool came = false;
    int ready = poll(&entry, 1, RUN_S * 1000);
    status st = ready == 1 ? elastic_link_receive(rank->fd, &message, &came) : STATUS_TIMEOUT;
    if (st != STATUS_OK || !came) {
        char *said = program_peek(&rank->p);
        ck_abort_msg("rank %d has not left: %s", i, said);
    }
    ck_assert_int_eq(message.word, ELASTIC_LEFT);
    ck_assert_int_eq(message.round, agent->round);
    rank->step = message.step;
}

void elastic_agent_await_end(elastic_agent *agent, int i)
{
    elastic_agent_rank *rank = &agent->ranks[i];
    program_wait(&rank->p, RUN_S);
    close(rank->fd);
    rank->fd = -1;
}

void elastic_agent_await_good_ends(elastic_agent *agent, const int *who, int n)
{
    for (int i = 0; i < n; i++)
        elastic_agent_await_end(agent, who[i]);
    for (int i = 0; i < n; i++)
        ASSERT_EXIT(agent->ranks[who[i]].p, 0);
}

void elastic_agent_begin_paused(elastic_agent *agent, const int *who, int n)
{
    elastic_agent_begin(agent, who, n);
    for (int i = 0; i < n; i++)
        elastic_agent_say(agent, who[i], ELASTIC_PAUSE);
}

void elastic_agent_pause(elastic_agent *agent, const int *who, int n)
{
    elastic_agent_begin_paused(agent, who, n);
    for (int i = 0; i < n; i++)
        elastic_agent_await_left(agent, who[i]);
}

void elastic_agent_end_well(elastic_agent *agent, const int *who, int n)
{
    elastic_agent_begin(agent, who, n);
    elastic_agent_await_good_ends(agent, who, n);
}

double elastic_agent_timed_images(const elastic_agent *agent, int i)
{
    double took_s = 0, rate = 0;
    char *text = NULL;
    size_t bytes;
    test_folder_require(file_read("part/result.json", 1 << 16, &text, &bytes));
    const char *times = strstr(text, "\"train_s\":["),
               *line = strstr(agent->ranks[i].p.err, "epoch 1/2:");
    ck_assert(times != NULL && sscanf(times, "\"train_s\":[%lf", &took_s) == 1);
    ck_assert(line != NULL && sscanf(line, "epoch 1/2: %*f s, %lf images/s", &rate) == 1);
    free(text);
    return took_s * rate;
}
