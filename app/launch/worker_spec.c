#include "app/launch/worker_spec.h"

#include "app/common/device_list.h"
#include "app/common/exit_codes.h"
#include "app/common/local_network.h"
#include "app/common/standard_streams.h"
#include "app/common/stop_signals.h"
#include "app/train/rank_context.h"
#include "app/train/run_folder.h"
#include "app/train/strategy.h"
#include "base/log.h"
#include "base/text.h"
#include "dist/net/socket_address.h"
#include "dist/store/store.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

enum {
    NOT_GIVEN = -1,
    MAX_WORLD = 65536,
    MAX_COUNTED = 64,        /* nodes that count themselves */
    DEFAULT_SHUTDOWN_S = 30, /* as torchrun */
    WEEK_S = 604800,
    SHOWN_BYTES = 80,
};

/* The settings as given, before they are made to fit. */
typedef struct request {
    int nproc, min_nodes, nnodes, node_rank, world_size, master_port; /* NOT_GIVEN */
    bool counts_nodes;
    char master_addr[SPEC_ADDRESS_BYTES]; /* "" */
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

status worker_spec_nnodes(const char *text, int *min, int *max)
{
    *min = *max = NOT_GIVEN;
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
    *min = low;
    *max = high;
    return STATUS_OK;
}

/* Whether node 0's address is one that other machines can reach. */
static bool is_elsewhere(const request *want)
{
    return want->master_addr[0] != '\0' && !socket_address_says_loopback(want->master_addr);
}

/* As many nodes as come share the ranks: two at least. */
static status count_nodes(request *want)
{
    want->counts_nodes = true;
    want->nproc = want->world_size / 2;
    want->nnodes = want->world_size < MAX_COUNTED ? want->world_size : MAX_COUNTED;
    return STATUS_OK;
}

/* Completes nproc and nnodes. Ranks of this node, if --nproc-per-node is not given: world_size /
 * nnodes; else the number of GPUs, if it divides world_size; else all, on node 0 without a
 * master_addr or with one of this machine; else the nodes count themselves. */
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
        else if (first && !is_elsewhere(want))
            want->nproc = world;
        else if (want->node_rank >= 0 && is_elsewhere(want) && world > 1)
            return count_nodes(want);
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
    if (want->rdzv.backend == RDZV_ETCD && want->rdzv.endpoints[0] == '\0')
        return FAIL(STATUS_INVALID,
                    "--rdzv-backend=etcd: where is it? Give --rdzv-endpoint=HOST:PORT");
    if (want->nnodes == 1)
        return STATUS_OK;
    if (want->rdzv.backend == RDZV_STATIC && want->min_nodes < want->nnodes)
        return FAIL(STATUS_INVALID,
                    "--nnodes=%d:%d: machines that come and go (elastic) need --rdzv-backend=c10d "
                    "or etcd, and --rdzv-endpoint=HOST:PORT; else give the number that will run: "
                    "--nnodes=%d",
                    want->min_nodes, want->nnodes, want->nnodes);
    if (want->rdzv.backend != RDZV_STATIC && want->rdzv.endpoints[0] == '\0')
        return FAIL(STATUS_INVALID,
                    "--rdzv-backend=%s with %d machines: where do they meet? Give "
                    "--rdzv-endpoint=HOST:PORT, the same on all",
                    want->rdzv.backend == RDZV_C10D ? "c10d" : "etcd", want->nnodes);
    if (want->node_rank > 0 && want->master_addr[0] == '\0')
        return FAIL(STATUS_INVALID,
                    "--node-rank=%d of %d machines: where is machine 0? Give "
                    "--master-addr=ADDRESS, its address",
                    want->node_rank, want->nnodes);
    if (want->master_port == 0 && want->min_nodes > 1)
        return FAIL(STATUS_INVALID,
                    "%s%s (a free port) cannot be known to %d machines; "
                    "give the same port on all, or none for %d",
                    want->rdzv.endpoints[0] != '\0' ? "--rdzv-endpoint=" : "--master-port=0",
                    want->rdzv.endpoints, want->min_nodes, rdzv_config_port(want->rdzv.backend));
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
    TRY(rdzv_config_read(opts, &want->rdzv));
    if (want->rdzv.endpoints[0] != '\0') {
        memcpy(want->master_addr, want->rdzv.address, sizeof want->master_addr);
        want->master_port = want->rdzv.port;
        return STATUS_OK;
    }
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
                    .master_port = NOT_GIVEN,
                    .rdzv = rdzv_config_none()};
    TRY(nproc_of(opts->nproc_per_node, cpu_count, gpu_count, &want.nproc));
    if (want.nproc == NOT_GIVEN && want.world_size != NOT_GIVEN && opts->local_world_size >= 0)
        want.nproc = (int)opts->local_world_size;
    bool may_spread = !strategy_of(opts)->is_one_process;
    if (want.nproc == NOT_GIVEN && want.world_size == NOT_GIVEN && may_spread &&
        device_list_named(opts) > 1)
        want.nproc = device_list_named(opts); /* --devices=0,3: a rank each */
    TRY(worker_spec_nnodes(opts->nnodes, &want.min_nodes, &want.nnodes));
    if (!opts->standalone)
        TRY(request_rdzv(opts, &want));
    if (want.rdzv.backend != RDZV_STATIC && want.node_rank > 0)
        LOG_W("--node-rank=%d is not used with --rdzv-backend=%s: nodes are numbered as they come",
              want.node_rank, opts->rdzv_backend);
    if (want.rdzv.backend != RDZV_STATIC)
        want.node_rank = NOT_GIVEN;
    if (opts->standalone) { /* as torchrun: whatever address and port were given */
        if (want.nnodes > 1 || want.node_rank > 0)
            return FAIL(STATUS_INVALID, "--standalone means one machine; leave it out, or give "
                                        "neither --nnodes nor --node-rank");
        want.nnodes = 1;
        want.rdzv = rdzv_config_none();
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

bool worker_spec_owns(const worker_spec *spec, const char *address)
{
    return strcmp(spec->local_addr, address) == 0 || local_network_owns(address);
}

/* Who serves the store, on which address and port. */
static void place_store(const request *want, worker_spec *spec)
{
    bool one = spec->nnodes == 1 && spec->rdzv == RDZV_STATIC, given = want->master_addr[0] != '\0';
    /* The ranks of one machine need no other address than this, whatever was given. */
    snprintf(spec->master_addr, sizeof spec->master_addr, "%s",
             one || !given ? "127.0.0.1" : want->master_addr);
    spec->store_on_loopback = one || (given && socket_address_says_loopback(want->master_addr));
    if (want->master_port != NOT_GIVEN)
        spec->master_port = want->master_port;
    else
        spec->master_port = one ? 0 : rdzv_config_port(want->rdzv.backend);
    if (one || (spec->rdzv == RDZV_STATIC && spec->node_rank == 0))
        spec->server = RDZV_HOST_HERE;
    else if (spec->rdzv != RDZV_C10D || want->rdzv.is_host == 0)
        spec->server = RDZV_HOST_ELSEWHERE;
    else if (want->rdzv.is_host == 1 || spec->master_port == 0)
        spec->server = RDZV_HOST_HERE;
    else
        spec->server =
            worker_spec_owns(spec, spec->master_addr) ? RDZV_HOST_FIRST : RDZV_HOST_ELSEWHERE;
}

/* One machine, too, asks the service that was named, unless it would serve that itself. */
static rdzv_backend backend_for(const request *want, const worker_spec *spec)
{
    const rdzv_config *rdzv = &want->rdzv;
    bool here = rdzv->backend == RDZV_C10D && rdzv->is_host != 0 &&
                (rdzv->is_host == 1 || worker_spec_owns(spec, rdzv->address));
    bool asks = want->nnodes > 1 || (rdzv->endpoints[0] != '\0' && !here);
    return asks ? rdzv->backend : RDZV_STATIC;
}

static void set_times(const options *opts, const rdzv_config *rdzv, worker_spec *spec)
{
    bool own_join = options_given(opts, "join-timeout") || rdzv->join_ms < 0;
    spec->join_ms = own_join ? opts->join_timeout * 1000 : rdzv->join_ms;
    if (spec->max_nodes == 1 && !options_given(opts, "join-timeout") && rdzv->join_ms < 0)
        spec->join_ms = rdzv->read_ms; /* nobody else is to come */
    spec->monitor_ms = (int64_t)(opts->monitor_interval * 1e3);
    spec->last_call_ms = rdzv->last_call_ms;
    spec->read_ms = rdzv->read_ms;
    spec->keep_alive_ms = rdzv->keep_alive_ms;
    spec->keep_alive_misses = rdzv->keep_alive_misses;
}

status worker_spec_count_gpus(const options *opts, int *out)
{
    const char *nproc = opts->nproc_per_node;
    bool matters = nproc == NULL ? opts->world_size >= 0
                                 : strcmp(nproc, "gpu") == 0 || strcmp(nproc, "auto") == 0;
    *out = 0;
    return matters ? device_list_count(opts, out) : STATUS_OK;
}

/* The flag, else torch's variable. As torch does, goes on without if that is no port. */
static int health_check_port(const options *opts)
{
    const char *text = getenv("TORCHELASTIC_HEALTH_CHECK_PORT");
    int port = -1;
    if (opts->health_check_port >= 0)
        return (int)opts->health_check_port;
    if (text != NULL && !number_parse(text, 0, 65535, &port))
        LOG_W("TORCHELASTIC_HEALTH_CHECK_PORT=%.*s is no port: nothing says over HTTP whether this "
              "launcher lives",
              SHOWN_BYTES, text);
    return port;
}

status worker_spec_read(const options *opts, int cpu_count, int gpu_count, worker_spec *out)
{
    request want = {0};
    TRY(request_read(opts, cpu_count, gpu_count, &want));
    TRY(fit(&want, gpu_count));
    if (want.min_nodes == NOT_GIVEN)
        want.min_nodes = want.nnodes;
    TRY(check_nodes(&want));
    if (want.nproc == want.world_size && want.node_rank == 0 && opts->nproc_per_node == NULL &&
        opts->nnodes == NULL && want.nproc > 1 && !is_elsewhere(&want))
        LOG_I("--world-size=%d, and no --master-addr that other machines reach: this is taken as "
              "the only one, and runs all ranks",
              want.world_size);
    if (opts->local_world_size >= 0 && opts->local_world_size != want.nproc)
        return FAIL(
            STATUS_INVALID,
            "--local-world-size=%d, but --nproc-per-node=%d: they are the same; give one of "
            "them",
            (int)opts->local_world_size, want.nproc);
    worker_spec spec = {.opts = opts,
                        .counts_nodes = want.counts_nodes,
                        .nproc = want.nproc,
                        .nnodes = want.nnodes,
                        .node_rank = want.node_rank > 0 ? want.node_rank : 0,
                        .world_size =
                            want.counts_nodes ? want.world_size : want.nproc * want.nnodes,
                        .min_nodes = want.min_nodes,
                        .max_nodes = want.nnodes,
                        .max_restarts = (int)opts->max_restarts,
                        .health_check_port = health_check_port(opts),
                        .run_id = "none",
                        .role = "default"};
    if (opts->local_addr != NULL)
        TRY(copy_text("--local-addr", opts->local_addr, spec.local_addr, sizeof spec.local_addr));
    memcpy(spec.endpoints, want.rdzv.endpoints, sizeof spec.endpoints);
    spec.access = want.rdzv.access;
    spec.rdzv = backend_for(&want, &spec);
    place_store(&want, &spec);
    set_times(opts, &want.rdzv, &spec);
    if (worker_spec_is_elastic(&spec))
        spec.node_rank = NOT_GIVEN;
    if (opts->rdzv_id != NULL && !opts->standalone)
        TRY(copy_text("--rdzv-id", opts->rdzv_id, spec.run_id, sizeof spec.run_id));
    else if (spec.rdzv == RDZV_ETCD && spec.max_nodes > 1)
        return FAIL(STATUS_INVALID,
                    "--rdzv-backend=etcd: which job is this? Others may meet there, "
                    "too; give --rdzv-id=ID, the same on all machines and no other "
                    "job's");
    else if (spec.max_nodes == 1 && (spec.master_port == 0 || worker_spec_is_elastic(&spec)))
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
    bool is_given = options_given(opts, "run-dir"), is_found = opts->run_dir != NULL && !is_given;
    if (is_given || (opts->resume != NULL && !is_found) || opts->dry_run || spec->node_rank > 0)
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
    spec->port_busy = opts->command == COMMAND_TRAIN && opts->inject != NULL &&
                      strstr(opts->inject, "port-busy") != NULL;
    spec->virtual_local_rank = opts->virtual_local_rank;
    spec->event_log = opts->event_log;
    spec->stdout_has_result = standard_streams_carry_result(opts);
    if (spec->virtual_local_rank)
        TRY(check_virtual(spec));
    TRY(set_shutdown(opts, &spec->policy));
    spec->policy.keeps =
        worker_spec_is_elastic(spec) && spec->policy.listens && rank_context_outlives_rounds(opts);
    if (spec->policy.listens && (worker_spec_is_elastic(spec) || spec->nnodes > 1))
        TRY(agreement_of_node(opts, worker_spec_is_elastic(spec), spec->alike));
    TRY(worker_logs_read(opts, spec->nproc, &spec->logs));
    spec->logs.outlive = spec->policy.keeps;
    if (!spec->policy.own) {
        spec->name_is_loopback = (spec->nnodes > 1 || worker_spec_is_elastic(spec)) &&
                                 socket_address_own_name_is_loopback();
        return entrypoint_find(opts, &spec->program);
    }
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

void worker_spec_free(worker_spec *spec)
{
    entrypoint_free(&spec->program);
}
