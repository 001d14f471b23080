#include "app/device_list.h"
#include "app/launch/launch.h"
#include "dist/store/store.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NOT_GIVEN = -1, MAX_WORLD = 65536, SHOWN_BYTES = 80 };

/* The settings as given, before they are made to fit. */
typedef struct request {
    int nproc, nnodes, node_rank, world_size, master_port; /* NOT_GIVEN */
    const char *master_addr;                               /* NULL */
} request;

/* A variable of torchrun's; unset and empty are the same. */
static const char *variable(const char *name)
{
    const char *value = getenv(name);
    return value != NULL && value[0] != '\0' ? value : NULL;
}

static bool parse_int(const char *text, int low, int high, int *out)
{
    char *end = NULL;
    if (text[0] < '0' || text[0] > '9')
        return false;
    errno = 0;
    long value = strtol(text, &end, 10);
    if (errno != 0 || *end != '\0' || value < low || value > high)
        return false;
    *out = (int)value;
    return true;
}

static status number_of(int64_t flag, const char *name, int high, int *out)
{
    *out = (int)flag;
    const char *text = variable(name);
    if (flag >= 0 || text == NULL)
        return STATUS_OK;
    if (!parse_int(text, 0, high, out))
        return FAIL(STATUS_INVALID, "%s: '%.*s' is not a number from 0 to %d", name, SHOWN_BYTES,
                    text, high);
    return STATUS_OK;
}

static status nproc_of(const char *flag, int cpu_count, int gpu_count, int *out)
{
    const char *text = flag != NULL ? flag : variable("PET_NPROC_PER_NODE");
    const char *name = flag != NULL ? "--nproc-per-node" : "PET_NPROC_PER_NODE";
    *out = NOT_GIVEN;
    if (text == NULL)
        return STATUS_OK;
    if (strcmp(text, "gpu") == 0) {
        if (gpu_count < 1)
            return FAIL(STATUS_INVALID, "%s=gpu: no usable GPU here; give a number or cpu", name);
        *out = gpu_count;
    } else if (strcmp(text, "auto") == 0) {
        *out = gpu_count > 0 ? gpu_count : cpu_count;
    } else if (strcmp(text, "cpu") == 0) {
        *out = cpu_count;
    } else if (!parse_int(text, 1, LAUNCH_MAX_NPROC, out)) {
        return FAIL(STATUS_INVALID, "%s: '%.*s' is neither 1 to %d nor auto, cpu or gpu", name,
                    SHOWN_BYTES, text, LAUNCH_MAX_NPROC);
    }
    return STATUS_OK;
}

static status nnodes_of(const char *flag, int *out)
{
    const char *text = flag != NULL ? flag : variable("PET_NNODES");
    const char *name = flag != NULL ? "--nnodes" : "PET_NNODES";
    *out = NOT_GIVEN;
    if (text == NULL)
        return STATUS_OK;
    char low_text[16];
    int length = (int)strcspn(text, ":"), low = 0, high = 0;
    snprintf(low_text, sizeof low_text, "%.*s", length, text);
    const char *high_text = text[length] == ':' ? text + length + 1 : low_text;
    if (length >= (int)sizeof low_text || !parse_int(low_text, 1, MAX_WORLD, &low) ||
        !parse_int(high_text, 1, MAX_WORLD, &high) || low > high)
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

static bool is_loopback(const char *addr)
{
    return strcmp(addr, "localhost") == 0 || strncmp(addr, "127.", 4) == 0 ||
           strcmp(addr, "::1") == 0;
}

/* How many ranks run here: "--nproc_per_node, else PET_NPROC_PER_NODE, else world_size / nnodes,
 * else the GPU count where it divides world_size, else (node_rank 0 and no or a local master_addr)
 * all here, else an error that says to give --nnodes." Completes nproc and nnodes. */
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
        else if (first && (want->master_addr == NULL || is_loopback(want->master_addr)))
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
    if ((int64_t)want->nnodes * want->nproc > MAX_WORLD || want->nproc > LAUNCH_MAX_NPROC)
        return FAIL(STATUS_INVALID,
                    "%d machines with %d ranks each: at most %d ranks, %d of them "
                    "on one machine",
                    want->nnodes, want->nproc, MAX_WORLD, LAUNCH_MAX_NPROC);
    if (want->node_rank >= want->nnodes)
        return FAIL(STATUS_INVALID,
                    "--node-rank=%d with %d machine%s: they are numbered from 0 to %d; give "
                    "--node-rank=%d on the last one, or --nnodes=%d",
                    want->node_rank, want->nnodes, want->nnodes == 1 ? "" : "s", want->nnodes - 1,
                    want->nnodes - 1, want->node_rank + 1);
    if (want->nnodes == 1)
        return STATUS_OK;
    if (want->node_rank > 0 && want->master_addr == NULL)
        return FAIL(STATUS_INVALID,
                    "--node-rank=%d of %d machines: where is machine 0? Give "
                    "--master-addr=ADDRESS, its address",
                    want->node_rank, want->nnodes);
    if (want->master_port == 0)
        return FAIL(STATUS_INVALID,
                    "--master-port=0 (a free one) cannot be known to %d machines; "
                    "give the same port on all, or none for %d",
                    want->nnodes, STORE_DEFAULT_PORT);
    return STATUS_OK;
}

static status request_read(const options *opts, int cpu_count, int gpu_count, request *out)
{
    request want = {.world_size = (int)opts->world_size};
    TRY(nproc_of(opts->nproc_per_node, cpu_count, gpu_count, &want.nproc));
    if (want.nproc == NOT_GIVEN && want.world_size == NOT_GIVEN && device_list_named(opts) > 1)
        want.nproc = device_list_named(opts); /* --devices=0,3: a rank each */
    TRY(nnodes_of(opts->nnodes, &want.nnodes));
    TRY(number_of(opts->node_rank, "PET_NODE_RANK", MAX_WORLD - 1, &want.node_rank));
    TRY(number_of(opts->master_port, "PET_MASTER_PORT", 65535, &want.master_port));
    want.master_addr = opts->master_addr != NULL ? opts->master_addr : variable("PET_MASTER_ADDR");
    if (opts->standalone) {
        if (want.nnodes > 1 || want.node_rank > 0)
            return FAIL(STATUS_INVALID, "--standalone means one machine; leave it out, or give "
                                        "neither --nnodes nor --node-rank");
        /* As torchrun: whatever address and port were given. */
        want.nnodes = 1;
        want.master_addr = NULL;
        want.master_port = NOT_GIVEN;
    }
    if (want.master_addr != NULL &&
        strlen(want.master_addr) >= sizeof((launch_plan *)0)->master_addr)
        return FAIL(STATUS_INVALID, "--master-addr: longer than %zu letters",
                    sizeof((launch_plan *)0)->master_addr - 1);
    *out = want;
    return STATUS_OK;
}

status launch_plan_make(const options *opts, int cpu_count, int gpu_count, launch_plan *out)
{
    request want = {0};
    TRY(request_read(opts, cpu_count, gpu_count, &want));
    TRY(fit(&want, gpu_count));
    TRY(check_nodes(&want));
    launch_plan plan = {.nproc = want.nproc,
                        .nnodes = want.nnodes,
                        .node_rank = want.node_rank > 0 ? want.node_rank : 0,
                        .world_size = want.nproc * want.nnodes,
                        .run_id = "none"};
    /* The ranks of one machine need no other address than this, whatever was given. */
    bool one = plan.nnodes == 1;
    const char *addr = one || want.master_addr == NULL ? "127.0.0.1" : want.master_addr;
    snprintf(plan.master_addr, sizeof plan.master_addr, "%s", addr);
    plan.store_on_loopback = one || (want.master_addr != NULL && is_loopback(want.master_addr));
    if (want.master_port != NOT_GIVEN)
        plan.master_port = want.master_port;
    else
        plan.master_port = one ? 0 : STORE_DEFAULT_PORT;
    *out = plan;
    return STATUS_OK;
}
