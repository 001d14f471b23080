#include "app/launch/worker_spec.h"

#include "app/common/device_list.h"
#include "app/common/exit_codes.h"
#include "app/common/local_network.h"
#include "app/common/standard_streams.h"
#include "app/common/stop_signals.h"
#include "app/launch/rdzv_config.h"
#include "app/train/run_folder.h"
#include "app/train/strategy.h"
#include "base/log.h"
#include "base/number.h"
#include "dist/net/socket_address.h"
#include "dist/store/store.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

enum {
    NOT_GIVEN = -1,
    MAX_WORLD = 65536,
    C10D_PORT = 29400, /* torchrun's, for --rdzv-backend=c10d */
    KEEP_ALIVE_MS = 5000,
    KEEP_ALIVE_MISSES = 3,
    DEFAULT_SHUTDOWN_S = 30, /* as torchrun */
    WEEK_S = 604800,
    SHOWN_BYTES = 80,
};

/* The settings as given, before they are made to fit. */
typedef struct request {
    int nproc, nnodes, node_rank, world_size, master_port; /* NOT_GIVEN */
    char master_addr[SPEC_ADDRESS_BYTES];                  /* "" */
    bool by_arrival;
    rdzv_config rdzv;
} request;

/* What the user has set: the variable if it holds this text, else the flag. */
static const char *name_of(const char *flag, const char *variable, const char *text)
{
    const char *value = getenv(variable);
    return value != NULL && strcmp(value, text) == 0 ? variable : flag;
}

static status nproc_of(const char *text, int cpu_count, int gpu_count, int *out)
{
    *out = NOT_GIVEN;
    if (text == NULL)
        return STATUS_OK;
    const char *name = name_of("--nproc-per-node", "PET_NPROC_PER_NODE", text);
    if (strcmp(text, "gpu") == 0) {
        if (gpu_count < 1)
            return FAIL(STATUS_INVALID, "%s=gpu: no usable GPU here; give a number or cpu", name);
        *out = gpu_count;
    } else if (strcmp(text, "auto") == 0) {
        *out = gpu_count > 0 ? gpu_count : cpu_count;
    } else if (strcmp(text, "cpu") == 0) {
        *out = cpu_count;
    } else if (!number_parse(text, 1, NPROC_PER_NODE_MAX, out)) {
        return FAIL(STATUS_INVALID, "%s: '%.*s' is neither 1 to %d nor auto, cpu or gpu", name,
                    SHOWN_BYTES, text, NPROC_PER_NODE_MAX);
    }
    return STATUS_OK;
}

status worker_spec_nnodes(const char *text, int *out)
{
    *out = NOT_GIVEN;
    if (text == NULL)
        return STATUS_OK;
    const char *name = name_of("--nnodes", "PET_NNODES", text);
    char low_text[16];
    int length = (int)strcspn(text, ":"), low = 0, high = 0;
    snprintf(low_text, sizeof low_text, "%.*s", length, text);
    const char *high_text = text[length] == ':' ? text + length + 1 : low_text;
    if (length >= (int)sizeof low_text || !number_parse(low_text, 1, MAX_WORLD, &low) ||
        !number_parse(high_text, 1, MAX_WORLD, &high) || low > high)
        return FAIL(STATUS_INVALID, "%s: '%.*s' is not a number of machines from 1 to %d", name,
                    SHOWN_BYTES, text, MAX_WORLD);
    if (low < high)
        return FAIL(STATUS_INVALID,
                    "%s=%d:%d: a changing number of machines (elastic) is not in this version; "
                    "give the number that will run: --nnodes=%d",
                    name, low, high, high);
    *out = low;
    return STATUS_OK;
}

/* Completes nproc and nnodes. Ranks of this node, if --nproc-per-node is not given: world_size /
 * nnodes; else the number of GPUs, if it divides world_size; else all, on node 0 without a
 * master_addr or with one of this machine; else the user has to give --nnodes. */
static status fit(request *want, int gpu_count)
{
    int world = want->world_size;
    if (world == NOT_GIVEN) {
        want->nproc = want->nproc == NOT_GIVEN ? 1 : want->nproc;
        want->nnodes = want->nnodes == NOT_GIVEN ? 1 : want->nnodes;
        return STATUS_OK;
    }
    if (want->nproc == NOT_GIVEN && want->nnodes != NOT_GIVEN) {
        if (world % want->nnodes != 0)
            return FAIL(STATUS_INVALID,
                        "--world-size=%d does not divide by --nnodes=%d; every machine runs the "
                        "same number of ranks: give --world-size=%d, say",
                        world, want->nnodes, (world / want->nnodes + 1) * want->nnodes);
        want->nproc = world / want->nnodes;
    } else if (want->nproc == NOT_GIVEN) {
        bool first = want->node_rank <= 0; /* or not given */
        if (gpu_count > 0 && world % gpu_count == 0)
            want->nproc = gpu_count;
        else if (first &&
                 (want->master_addr[0] == '\0' || socket_address_says_loopback(want->master_addr)))
            want->nproc = world;
        else
            return FAIL(STATUS_INVALID,
                        "--world-size=%d: on how many machines? Give --nnodes=N too (or "
                        "--nproc-per-node=N, the ranks of each)",
                        world);
    }
    if (want->nnodes == NOT_GIVEN && world % want->nproc != 0)
        return FAIL(STATUS_INVALID,
                    "--world-size=%d does not divide by --nproc-per-node=%d; every machine runs "
                    "the same number of ranks",
                    world, want->nproc);
    if (want->nnodes == NOT_GIVEN)
        want->nnodes = world / want->nproc;
    if ((int64_t)want->nnodes * want->nproc != world)
        return FAIL(STATUS_INVALID,
                    "--world-size=%d, but %d machines with %d ranks each make %lld; leave "
                    "--world-size out",
                    world, want->nnodes, want->nproc, (long long)want->nnodes * want->nproc);
    return STATUS_OK;
}

static status check_nodes(const request *want)
{
    if ((int64_t)want->nnodes * want->nproc > MAX_WORLD || want->nproc > NPROC_PER_NODE_MAX)
        return FAIL(STATUS_INVALID,
                    "%d machines with %d ranks each: at most %d ranks, %d of them "
                    "on one machine",
                    want->nnodes, want->nproc, MAX_WORLD, NPROC_PER_NODE_MAX);
    if (want->node_rank > 0 && want->nnodes == 1)
        return FAIL(STATUS_INVALID,
                    "--node-rank=%d with 1 machine, which is number 0; leave --node-rank out, or "
                    "give --nnodes=%d or more",
                    want->node_rank, want->node_rank + 1);
    if (want->node_rank >= want->nnodes)
        return FAIL(STATUS_INVALID,
                    "--node-rank=%d with %d machines: they are numbered from 0 to %d; give "
                    "--node-rank=%d on the last one, or --nnodes=%d",
                    want->node_rank, want->nnodes, want->nnodes - 1, want->nnodes - 1,
                    want->node_rank + 1);
    if (want->nnodes == 1)
        return STATUS_OK;
    if (want->by_arrival && want->master_addr[0] == '\0')
        return FAIL(STATUS_INVALID,
                    "--rdzv-backend=c10d with %d machines: where do they meet? Give "
                    "--rdzv-endpoint=HOST:PORT, the same on all",
                    want->nnodes);
    if (want->node_rank > 0 && want->master_addr[0] == '\0')
        return FAIL(STATUS_INVALID,
                    "--node-rank=%d of %d machines: where is machine 0? Give "
                    "--master-addr=ADDRESS, its address",
                    want->node_rank, want->nnodes);
    if (want->master_port == 0)
        return FAIL(STATUS_INVALID,
                    "--master-port=0 (a free one) cannot be known to %d machines; "
                    "give the same port on all, or none for %d",
                    want->nnodes, want->by_arrival ? C10D_PORT : STORE_DEFAULT_PORT);
    return STATUS_OK;
}

static status copy_text(const char *flag, const char *text, char *out, size_t size_bytes)
{
    if (strlen(text) >= size_bytes)
        return FAIL(STATUS_INVALID, "%s: longer than %zu letters", flag, size_bytes - 1);
    memcpy(out, text, strlen(text) + 1);
    return STATUS_OK;
}

/* The backend, and the address of the store. */
static status request_rdzv(const options *opts, request *want)
{
    const char *backend = opts->rdzv_backend;
    want->by_arrival = strcmp(backend, "c10d") == 0;
    if (strncmp(backend, "etcd", 4) == 0)
        return FAIL(STATUS_INVALID,
                    "--rdzv-backend=%.*s: etcd is not in this version; give --rdzv-backend=c10d "
                    "and the first machine's --rdzv-endpoint=HOST:PORT",
                    SHOWN_BYTES, backend);
    if (!want->by_arrival && strcmp(backend, "static") != 0)
        return FAIL(STATUS_INVALID, "--rdzv-backend: '%.*s' is not one of static, c10d",
                    SHOWN_BYTES, backend);
    TRY(rdzv_config_read(opts->rdzv_conf, &want->rdzv));
    if (opts->rdzv_endpoint != NULL)
        return status_context(
            socket_address_parse(opts->rdzv_endpoint,
                                 want->by_arrival ? C10D_PORT : STORE_DEFAULT_PORT,
                                 want->master_addr, sizeof want->master_addr, &want->master_port),
            "--rdzv-endpoint");
    if (opts->master_addr != NULL)
        TRY(copy_text("--master-addr", opts->master_addr, want->master_addr,
                      sizeof want->master_addr));
    want->master_port = (int)opts->master_port;
    return STATUS_OK;
}

static status request_read(const options *opts, int cpu_count, int gpu_count, request *out)
{
    request want = {.world_size = (int)opts->world_size,
                    .node_rank = (int)opts->node_rank,
                    .master_port = NOT_GIVEN};
    TRY(nproc_of(opts->nproc_per_node, cpu_count, gpu_count, &want.nproc));
    bool may_spread = !strategy_of(opts)->is_one_process;
    if (want.nproc == NOT_GIVEN && want.world_size == NOT_GIVEN && may_spread &&
        device_list_named(opts) > 1)
        want.nproc = device_list_named(opts); /* --devices=0,3: a rank each */
    TRY(worker_spec_nnodes(opts->nnodes, &want.nnodes));
    if (!opts->standalone)
        TRY(request_rdzv(opts, &want));
    if (want.by_arrival && want.node_rank > 0)
        LOG_W("--node-rank=%d is not used with --rdzv-backend=c10d: nodes are numbered as they "
              "come",
              want.node_rank);
    if (want.by_arrival)
        want.node_rank = NOT_GIVEN;
    if (opts->standalone) { /* as torchrun: whatever address and port were given */
        if (want.nnodes > 1 || want.node_rank > 0)
            return FAIL(STATUS_INVALID, "--standalone means one machine; leave it out, or give "
                                        "neither --nnodes nor --node-rank");
        want.nnodes = 1;
        want.rdzv = (rdzv_config){-1, -1, -1, -1};
    }
    *out = want;
    return STATUS_OK;
}

/* A random UUID. torchrun too takes one for a launch on one machine. */
static void make_run_id(char out[SPEC_RUN_ID_BYTES])
{
    unsigned char b[16] = {0};
    if (getrandom(b, sizeof b, GRND_NONBLOCK) < 0)
        b[0] = 1;
    snprintf(out, SPEC_RUN_ID_BYTES,
             "%02x%02x%02x%02x-%02x%02x-4%x%02x-%x%x%02x-%02x%02x%02x%02x%02x%02x", b[0], b[1],
             b[2], b[3], b[4], b[5], b[6] & 15u, b[7], 8u | (b[8] & 3u), b[8] >> 4, b[9], b[10],
             b[11], b[12], b[13], b[14], b[15]);
}

/* Who serves the store, on which address and port. */
static void place_store(const request *want, worker_spec *spec)
{
    bool one = spec->nnodes == 1, given = want->master_addr[0] != '\0';
    /* The ranks of one machine need no other address than this, whatever was given. */
    snprintf(spec->master_addr, sizeof spec->master_addr, "%s",
             one || !given ? "127.0.0.1" : want->master_addr);
    spec->store_on_loopback = one || (given && socket_address_says_loopback(want->master_addr));
    if (want->master_port != NOT_GIVEN)
        spec->master_port = want->master_port;
    else
        spec->master_port = one ? 0 : want->by_arrival ? C10D_PORT : STORE_DEFAULT_PORT;
    if (one || (!want->by_arrival && spec->node_rank == 0))
        spec->server = RDZV_HOST_HERE;
    else if (!want->by_arrival || want->rdzv.is_host == 0)
        spec->server = RDZV_HOST_ELSEWHERE;
    else if (want->rdzv.is_host == 1)
        spec->server = RDZV_HOST_HERE;
    else if (strcmp(spec->local_addr, spec->master_addr) == 0 ||
             local_network_owns(spec->master_addr))
        spec->server = RDZV_HOST_FIRST;
    else
        spec->server = RDZV_HOST_ELSEWHERE;
}

static void set_times(const options *opts, const rdzv_config *rdzv, worker_spec *spec)
{
    bool own_join = options_given(opts, "join-timeout") || rdzv->join_ms < 0;
    spec->join_ms = own_join ? opts->join_timeout * 1000 : rdzv->join_ms;
    spec->monitor_ms = (int64_t)(opts->monitor_interval * 1e3);
    spec->keep_alive_ms = rdzv->keep_alive_ms > 0 ? rdzv->keep_alive_ms : KEEP_ALIVE_MS;
    spec->keep_alive_misses =
        rdzv->keep_alive_misses > 0 ? rdzv->keep_alive_misses : KEEP_ALIVE_MISSES;
}

status worker_spec_count_gpus(const options *opts, int *out)
{
    const char *nproc = opts->nproc_per_node;
    bool matters = nproc == NULL ? opts->world_size >= 0
                                 : strcmp(nproc, "gpu") == 0 || strcmp(nproc, "auto") == 0;
    *out = 0;
    return matters ? device_list_count(opts, out) : STATUS_OK;
}

status worker_spec_read(const options *opts, int cpu_count, int gpu_count, worker_spec *out)
{
    request want = {0};
    TRY(request_read(opts, cpu_count, gpu_count, &want));
    TRY(fit(&want, gpu_count));
    TRY(check_nodes(&want));
    worker_spec spec = {.nproc = want.nproc,
                        .nnodes = want.nnodes,
                        .node_rank = want.node_rank > 0 ? want.node_rank : 0,
                        .world_size = want.nproc * want.nnodes,
                        .by_arrival = want.by_arrival && want.nnodes > 1,
                        .max_restarts = (int)opts->max_restarts,
                        .run_id = "none",
                        .role = "default"};
    if (opts->local_addr != NULL)
        TRY(copy_text("--local-addr", opts->local_addr, spec.local_addr, sizeof spec.local_addr));
    place_store(&want, &spec);
    set_times(opts, &want.rdzv, &spec);
    if (spec.by_arrival)
        spec.node_rank = spec.server == RDZV_HOST_HERE ? 0 : NOT_GIVEN;
    if (opts->rdzv_id != NULL && !opts->standalone)
        TRY(copy_text("--rdzv-id", opts->rdzv_id, spec.run_id, sizeof spec.run_id));
    else if (spec.master_port == 0)
        make_run_id(spec.run_id);
    if (opts->role != NULL)
        TRY(copy_text("--role", opts->role, spec.role, sizeof spec.role));
    *out = spec;
    return STATUS_OK;
}

/* With --virtual-local-rank every worker takes one GPU of $CUDA_VISIBLE_DEVICES. */
static status check_virtual(const worker_spec *spec)
{
    const char *list = getenv("CUDA_VISIBLE_DEVICES");
    int listed = 1;
    if (list == NULL)
        return STATUS_OK;
    for (const char *c = list; *c != '\0'; c++)
        listed += *c == ',';
    if (spec->nproc > listed)
        return FAIL(STATUS_INVALID,
                    "--virtual-local-rank: %d ranks, but CUDA_VISIBLE_DEVICES=%.80s names %d GPU%s",
                    spec->nproc, list, listed, listed == 1 ? "" : "s");
    return STATUS_OK;
}

/* The folder must be the same one for all attempts, so it cannot be named by the time of each.
 * Rank 0 is on node 0. */
static status choose_run_dir(const options *opts, const worker_spec *spec, char *out)
{
    out[0] = '\0';
    if (opts->run_dir != NULL || opts->resume != NULL || opts->dry_run || spec->node_rank > 0)
        return STATUS_OK;
    return run_folder_choose(opts, out);
}

/* As torchrun: the flag, else the variable, else 30 s. */
static int64_t shutdown_timeout_ms(const options *opts)
{
    const char *text = getenv("TORCH_ELASTIC_SHUTDOWN_TIMEOUT");
    int seconds = DEFAULT_SHUTDOWN_S;
    if (opts->shutdown_timeout >= 0)
        return opts->shutdown_timeout * 1000;
    if (text != NULL)
        (void)number_parse(text, 0, WEEK_S, &seconds);
    return (int64_t)seconds * 1000;
}

static status set_shutdown(const options *opts, shutdown_policy *out)
{
    bool own = opts->command != COMMAND_RUN;
    int64_t timeout_ms = shutdown_timeout_ms(opts);
    *out = (shutdown_policy){.own = own,
                             .listens = opts->command == COMMAND_TRAIN,
                             .saves = run_folder_takes_checkpoints(opts),
                             .torchrun_code = strcmp(opts->exit_code, "torchrun") == 0,
                             .save_ms = timeout_ms,
                             .stop_ms = own ? SHUTDOWN_STOP_MS : timeout_ms,
                             .signal_ms = own ? SHUTDOWN_SIGNAL_MS : timeout_ms};
    TRY(copy_text("--signals-to-handle", opts->signals_to_handle, out->signal_names,
                  sizeof out->signal_names));
    TRY(stop_signals_parse(out->signal_names, &out->signals));
    if (own)
        sigaddset(&out->signals, SIGUSR1);
    return STATUS_OK;
}

status worker_spec_complete(const options *opts, int argc, char **argv, worker_spec *spec)
{
    spec->port_busy = opts->inject != NULL && strstr(opts->inject, "port-busy") != NULL;
    spec->virtual_local_rank = opts->virtual_local_rank;
    spec->stdout_has_result = standard_streams_carry_result(opts);
    if (spec->virtual_local_rank)
        TRY(check_virtual(spec));
    TRY(set_shutdown(opts, &spec->policy));
    TRY(worker_logs_read(opts, spec->nproc, &spec->logs));
    if (!spec->policy.own)
        return entrypoint_find(opts, &spec->program);
    if (opts->command == COMMAND_TRAIN)
        TRY(choose_run_dir(opts, spec, spec->run_dir));
    return entrypoint_self(argc, argv, &spec->program);
}

bool worker_spec_saves_on(const worker_spec *spec, int signal)
{
    return spec->policy.listens &&
           (signal == SIGTERM || signal == SIGINT || signal == SIGHUP || signal == SIGUSR1);
}

bool worker_spec_may_restart(const worker_spec *spec, int code)
{
    return !spec->policy.own ||
           (code != EXIT_CODE_USAGE && code != EXIT_CODE_DATA && code != EXIT_CODE_CHECKPOINT &&
            code != EXIT_CODE_PREEMPTED && code != EXIT_CODE_DIVERGED);
}

void worker_spec_ranks(const worker_spec *spec, char out[SPEC_RANKS_BYTES])
{
    int first = spec->node_rank * spec->nproc;
    if (spec->nproc == 1)
        snprintf(out, SPEC_RANKS_BYTES, "rank %d of %d", first, spec->world_size);
    else
        snprintf(out, SPEC_RANKS_BYTES, "ranks %d to %d of %d", first, first + spec->nproc - 1,
                 spec->world_size);
}

void worker_spec_free(worker_spec *spec)
{
    entrypoint_free(&spec->program);
}
