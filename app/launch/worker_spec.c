#include "app/launch/worker_spec.h"

#include "app/common/device_list.h"
#include "app/common/exit_codes.h"
#include "app/common/machine.h"
#include "app/common/stop_signals.h"
#include "app/options/options_table.h"
#include "app/train/rank_context.h"
#include "app/train/run_folder.h"
#include "app/train/strategy.h"
#include "base/host.h"
#include "base/log.h"
#include "base/text.h"
#include "dist/net/socket.h"
#include "dist/store/store.h"

#include <errno.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/random.h>
#include <unistd.h>

enum {
    NOT_GIVEN = -1,
    MAX_WORLD = 65536,
    MAX_COUNTED = 64,        /* nodes that count themselves */
    DEFAULT_SHUTDOWN_S = 30, /* as torchrun */
    WEEK_S = 604800,
    SHOWN_BYTES = 80,
    SHOWN_PATH_BYTES = 200,
    SCRIPT_BYTES = 1 << 20,
    WORD_BYTES = ETCD_FILE_BYTES, /* a pair of --rdzv-conf has, so that a file's path fits */
    MAX_MISSES = 1000,
    C10D_PORT = 29400, /* torchrun's, for an endpoint without one */
    ETCD_PORT = 2379,
};

/* The settings as given, before they are made to fit. Numbers may be NOT_GIVEN. */
typedef struct request {
    worker_spec spec;                 /* what it becomes */
    rdzv_backend asked;               /* --rdzv-backend */
    char address[SPEC_ADDRESS_BYTES]; /* the endpoint's, etcd's first one's; or --master-addr; "" */
    int port;                         /* likewise */
    int is_https;                     /* --rdzv-conf's protocol, for endpoints that do not say it */
    int is_host; /* 0 or 1: whether this node serves the store; NOT_GIVEN: nobody says */
} request;

/* --rdzv-conf, --rdzv-backend and --rdzv-endpoint. */

typedef enum key_kind {
    KEY_NOTHING, /* torchrun's backends have it; means nothing here */
    KEY_MS,      /* int64_t, and so many seconds as it is given */
    KEY_COUNT,   /* int */
    KEY_TRUTH,   /* int: 0 or 1; "http" and "https" likewise */
    KEY_FILE,    /* a path in etcd_access */
} key_kind;

#define AT(field) offsetof(request, field)

static const struct {
    const char *name;
    key_kind kind;
    size_t at;
} KEYS[] = {
    {"join_timeout", KEY_MS, AT(spec.rdzv.join_ms)},
    {"timeout", KEY_MS, AT(spec.rdzv.join_ms)},
    {"last_call_timeout", KEY_MS, AT(spec.rdzv.last_call_ms)},
    {"read_timeout", KEY_MS, AT(spec.rdzv.read_ms)},
    {"keep_alive_interval", KEY_MS, AT(spec.rdzv.keep_alive_ms)},
    {"keep_alive_max_attempt", KEY_COUNT, AT(spec.rdzv.keep_alive_misses)},
    {"is_host", KEY_TRUTH, AT(is_host)},
    {"protocol", KEY_TRUTH, AT(is_https)},
    {"cacert", KEY_FILE, AT(spec.access.cacert)},
    {"cert", KEY_FILE, AT(spec.access.cert)},
    {"key", KEY_FILE, AT(spec.access.key)},
    {"close_timeout", KEY_NOTHING, 0},
    {"store_type", KEY_NOTHING, 0},
    {"use_libuv", KEY_NOTHING, 0},
    {"rank", KEY_NOTHING, 0},
    {"heartbeat_timeout", KEY_NOTHING, 0},
};

static status ms_of(const char *key, const char *value, int64_t *out)
{
    const char *at = value;
    double seconds = 0.0;
    if (!number_next_real(&at, &seconds) || *at != '\0' || !(seconds > 0.0) || seconds > WEEK_S)
        return FAIL(STATUS_INVALID, "--rdzv-conf: %s=%.40s is not a number of seconds", key, value);
    *out = (int64_t)(seconds * 1e3) > 0 ? (int64_t)(seconds * 1e3) : 1;
    return STATUS_OK;
}

static status truth_of(const char *key, const char *value, int *out)
{
    static const char *const words[][2] = {{"0", "1"},    {"false", "true"}, {"f", "t"},
                                           {"no", "yes"}, {"n", "y"},        {"http", "https"}};
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
        for (int truth = 0; truth < 2; truth++)
            if (strcasecmp(value, words[i][truth]) == 0) {
                *out = truth;
                return STATUS_OK;
            }
    return FAIL(STATUS_INVALID, "--rdzv-conf: %s=%.40s is neither %s", key, value,
                key[0] == 'p' ? "http nor https" : "true nor false");
}

static status take_value(size_t i, const char *value, request *want)
{
    void *field = (char *)want + KEYS[i].at;
    if (KEYS[i].kind == KEY_MS)
        return ms_of(KEYS[i].name, value, field);
    if (KEYS[i].kind == KEY_TRUTH)
        return truth_of(KEYS[i].name, value, field);
    if (KEYS[i].kind == KEY_FILE)
        strcpy(field, value); /* a pair's value always fits */
    if (KEYS[i].kind == KEY_COUNT && !number_parse(value, 1, MAX_MISSES, field))
        return FAIL(STATUS_INVALID, "--rdzv-conf: %s=%.40s is not a whole number from 1 to %d",
                    KEYS[i].name, value, MAX_MISSES);
    return STATUS_OK;
}

static status take_pair(const char *key, const char *value, request *want)
{
    nearest search;
    nearest_init(&search, key);
    for (size_t i = 0; i < sizeof KEYS / sizeof KEYS[0]; i++) {
        if (strcmp(key, KEYS[i].name) == 0)
            return take_value(i, value, want);
        nearest_offer(&search, KEYS[i].name);
    }
    if (nearest_found(&search))
        return FAIL(STATUS_INVALID, "--rdzv-conf: no key '%.*s'; did you mean '%s'?", SHOWN_BYTES,
                    key, search.best);
    LOG_W("--rdzv-conf: '%.*s' means nothing here", SHOWN_BYTES, key);
    return STATUS_OK;
}

static status read_pairs(const char *text, request *want)
{
    const char *at = text != NULL ? text : "", *word;
    for (size_t length; (word = comma_list_next(&at, &length)) != NULL;) {
        char pair[WORD_BYTES];
        snprintf(pair, sizeof pair, "%.*s", (int)length, word);
        char *equals = strchr(pair, '=');
        if (length >= sizeof pair || equals == NULL || equals == pair || equals[1] == '\0')
            return FAIL(STATUS_INVALID,
                        "--rdzv-conf: '%.*s' is no KEY=VALUE, as in join_timeout=60,is_host=1",
                        SHOWN_BYTES, word);
        *equals = '\0';
        TRY(take_pair(pair, equals + 1, want));
    }
    return STATUS_OK;
}

const char *const RDZV_BACKEND_NAMES[] = {
    [RDZV_STATIC] = "static", [RDZV_C10D] = "c10d", [RDZV_ETCD] = "etcd"};

static status backend_of(const char *name, rdzv_backend *out)
{
    for (int i = RDZV_STATIC; i <= RDZV_ETCD; i++)
        if (strcmp(name, RDZV_BACKEND_NAMES[i]) == 0) {
            *out = (rdzv_backend)i;
            return STATUS_OK;
        }
    if (strcmp(name, "etcd-v2") == 0)
        return FAIL(STATUS_INVALID, "--rdzv-backend=etcd-v2: that API is gone from etcd; give "
                                    "--rdzv-backend=etcd for its v3 API, or --rdzv-backend=c10d "
                                    "and the first machine's --rdzv-endpoint=HOST:PORT");
    return FAIL(STATUS_INVALID, "--rdzv-backend: '%.*s' is not one of static, c10d, etcd",
                SHOWN_BYTES, name);
}

/* The port of an endpoint that names none: torchrun's. */
static int default_port(rdzv_backend backend)
{
    return backend == RDZV_STATIC ? STORE_DEFAULT_PORT
           : backend == RDZV_C10D ? C10D_PORT
                                  : ETCD_PORT;
}

/* Up to `stop`, with %XX as that byte. */
static bool take_name(const char **at, char stop, char out[ETCD_NAME_BYTES])
{
    size_t n = 0;
    for (; **at != stop; (*at)++, n++) {
        unsigned code = (unsigned char)**at;
        if (**at == '%' && (strspn(*at + 1, "0123456789abcdefABCDEF") < 2 ||
                            sscanf(*at, "%%%2x", &code) != 1 || code == 0))
            return false;
        if (**at == '\0' || strchr(":/@", **at) != NULL || n + 1 == ETCD_NAME_BYTES)
            return false;
        *at += **at == '%' ? 2 : 0;
        out[n] = (char)code;
    }
    out[n] = '\0';
    (*at)++;
    return n > 0;
}

/* One of the list, which gets it with its port. etcd's may say how to speak to it, and as whom. */
static status add_endpoint(const char *text, request *want)
{
    char address[SPEC_ADDRESS_BYTES], name[SOCKET_ADDRESS_BYTES];
    size_t used = strlen(want->spec.endpoints);
    bool is_etcd = want->asked == RDZV_ETCD;
    const char *scheme = is_etcd && strncmp(text, "https://", 8) == 0  ? "https://"
                         : is_etcd && strncmp(text, "http://", 7) == 0 ? "http://"
                         : is_etcd && want->is_https == 1              ? "https://"
                                                                       : "";
    int port = -1;
    text += strncmp(text, scheme, strlen(scheme)) == 0 ? strlen(scheme) : 0;
    if (strchr(text, '@') != NULL &&
        (!is_etcd || (used > 0 && want->spec.access.user[0] == '\0') ||
         !take_name(&text, ':', want->spec.access.user) ||
         !take_name(&text, '@', want->spec.access.password) || strchr(text, '@') != NULL))
        return FAIL(STATUS_INVALID, "a name and a password");
    TRY(status_context(
        socket_address_parse(text, default_port(want->asked), address, sizeof address, &port),
        "--rdzv-endpoint"));
    socket_address_name(address, port, name);
    if (used > 0 && want->asked == RDZV_STATIC)
        return FAIL(STATUS_INVALID, "--rdzv-endpoint: several need --rdzv-backend=etcd");
    if (used > 0 && want->asked == RDZV_C10D)
        return FAIL(STATUS_INVALID,
                    "--rdzv-endpoint: c10d meets at one store, %s; several do not replicate: for "
                    "a rendezvous that survives its host give --rdzv-backend=etcd",
                    want->spec.endpoints);
    if (used + strlen(scheme) + strlen(name) + 2 > sizeof want->spec.endpoints)
        return FAIL(STATUS_INVALID, "--rdzv-endpoint: longer than %zu letters",
                    sizeof want->spec.endpoints - 1);
    sprintf(want->spec.endpoints + used, "%s%s%s", used > 0 ? "," : "", scheme, name);
    if (used == 0) {
        memcpy(want->address, address, sizeof address);
        want->port = port;
    }
    return STATUS_OK;
}

static status read_endpoints(const char *text, request *want)
{
    const char *at = text != NULL ? text : "", *word;
    for (size_t length; (word = comma_list_next(&at, &length)) != NULL;) {
        char one[SPEC_ADDRESS_BYTES + 16];
        if (length >= sizeof one)
            return FAIL(STATUS_INVALID, "--rdzv-endpoint: '%.*s' is no HOST:PORT", SHOWN_BYTES,
                        word);
        snprintf(one, sizeof one, "%.*s", (int)length, word);
        TRY(add_endpoint(one, want));
    }
    return STATUS_OK;
}

static void hide(char *text, const char *endpoints)
{
    char *at = strstr(text, endpoints);
    if (at != NULL)
        memset(at, 'x', (size_t)(strrchr(at, '@') - at));
}

void worker_spec_hide(const options *opts, int argc, char **argv)
{
    if (opts->rdzv_endpoint == NULL || strchr(opts->rdzv_endpoint, '@') == NULL)
        return;
    for (int i = 1; i < argc; i++)
        hide(argv[i], opts->rdzv_endpoint);
    for (char **variable = environ; *variable != NULL; variable++)
        hide(*variable, opts->rdzv_endpoint);
}

/* torchrun's other keys of --rdzv-conf are accepted and mean nothing here; an unknown one is a
 * warning. STATUS_INVALID, with what to type. */
static status read_rdzv(const options *opts, request *want)
{
    TRY(backend_of(opts->rdzv_backend, &want->asked));
    TRY(read_pairs(opts->rdzv_conf, want));
    status st = read_endpoints(opts->rdzv_endpoint, want);
    if (st != STATUS_OK && strchr(opts->rdzv_endpoint, '@') != NULL)
        return FAIL(STATUS_INVALID,
                    "--rdzv-endpoint, which is not shown as it may hold a password: expected "
                    "[https://][USER:PASSWORD@]HOST:PORT, a user for etcd alone, and in its name "
                    "and password %%2C for a comma, likewise of : / @ and %%");
    return st;
}

/* How many workers. */

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
    return want->address[0] != '\0' && !socket_address_says_loopback(want->address);
}

/* As many nodes as come share the ranks: two at least. */
static status count_nodes(worker_spec *spec)
{
    spec->counts_nodes = true;
    spec->nproc = spec->world_size / 2;
    spec->nnodes = spec->world_size < MAX_COUNTED ? spec->world_size : MAX_COUNTED;
    return STATUS_OK;
}

/* Completes nproc and nnodes. Ranks of this node, if --nproc-per-node is not given: world_size /
 * nnodes; else the number of GPUs, if it divides world_size; else all, on node 0 without a
 * master_addr or with one of this machine; else the nodes count themselves. */
static status fit(request *want, int gpu_count)
{
    worker_spec *spec = &want->spec;
    int world = spec->world_size;
    if (world == NOT_GIVEN) {
        spec->nproc = spec->nproc == NOT_GIVEN ? 1 : spec->nproc;
        spec->nnodes = spec->nnodes == NOT_GIVEN ? 1 : spec->nnodes;
        return STATUS_OK;
    }
    if (spec->nproc == NOT_GIVEN && spec->nnodes != NOT_GIVEN) {
        if (world % spec->nnodes != 0)
            return FAIL(STATUS_INVALID,
                        "--world-size=%d does not divide by --nnodes=%d; every machine runs the "
                        "same number of ranks: give --world-size=%d, say",
                        world, spec->nnodes, (world / spec->nnodes + 1) * spec->nnodes);
        spec->nproc = world / spec->nnodes;
    } else if (spec->nproc == NOT_GIVEN) {
        bool first = spec->node_rank <= 0; /* or not given */
        if (gpu_count > 0 && world % gpu_count == 0)
            spec->nproc = gpu_count;
        else if (first && !is_elsewhere(want))
            spec->nproc = world;
        else if (spec->node_rank >= 0 && is_elsewhere(want) && world > 1)
            return count_nodes(spec);
        else
            return FAIL(STATUS_INVALID,
                        "--world-size=%d: on how many machines? Give --nnodes=N too (or "
                        "--nproc-per-node=N, the ranks of each)",
                        world);
    }
    if (spec->nnodes == NOT_GIVEN && world % spec->nproc != 0)
        return FAIL(STATUS_INVALID,
                    "--world-size=%d does not divide by --nproc-per-node=%d; every machine runs "
                    "the same number of ranks",
                    world, spec->nproc);
    if (spec->nnodes == NOT_GIVEN)
        spec->nnodes = world / spec->nproc;
    if ((int64_t)spec->nnodes * spec->nproc != world)
        return FAIL(STATUS_INVALID,
                    "--world-size=%d, but %d machines with %d ranks each make %lld; leave "
                    "--world-size out",
                    world, spec->nnodes, spec->nproc, (long long)spec->nnodes * spec->nproc);
    return STATUS_OK;
}

static status check_nodes(const request *want)
{
    const worker_spec *spec = &want->spec;
    if ((int64_t)spec->nnodes * spec->nproc > MAX_WORLD || spec->nproc > NPROC_PER_NODE_MAX)
        return FAIL(STATUS_INVALID,
                    "%d machines with %d ranks each: at most %d ranks, %d of them "
                    "on one machine",
                    spec->nnodes, spec->nproc, MAX_WORLD, NPROC_PER_NODE_MAX);
    if (spec->node_rank > 0 && spec->nnodes == 1)
        return FAIL(STATUS_INVALID,
                    "--node-rank=%d with 1 machine, which is number 0; leave --node-rank out, or "
                    "give --nnodes=%d or more",
                    spec->node_rank, spec->node_rank + 1);
    if (spec->node_rank >= spec->nnodes)
        return FAIL(STATUS_INVALID,
                    "--node-rank=%d with %d machines: they are numbered from 0 to %d; give "
                    "--node-rank=%d on the last one, or --nnodes=%d",
                    spec->node_rank, spec->nnodes, spec->nnodes - 1, spec->nnodes - 1,
                    spec->node_rank + 1);
    if (want->asked == RDZV_ETCD && spec->endpoints[0] == '\0')
        return FAIL(STATUS_INVALID,
                    "--rdzv-backend=etcd: where is it? Give --rdzv-endpoint=HOST:PORT");
    if (spec->nnodes == 1)
        return STATUS_OK;
    if (want->asked == RDZV_STATIC && spec->rdzv.min_nodes < spec->nnodes)
        return FAIL(STATUS_INVALID,
                    "--nnodes=%d:%d: machines that come and go (elastic) need --rdzv-backend=c10d "
                    "or etcd, and --rdzv-endpoint=HOST:PORT; else give the number that will run: "
                    "--nnodes=%d",
                    spec->rdzv.min_nodes, spec->nnodes, spec->nnodes);
    if (want->asked != RDZV_STATIC && spec->endpoints[0] == '\0')
        return FAIL(STATUS_INVALID,
                    "--rdzv-backend=%s with %d machines: where do they meet? Give "
                    "--rdzv-endpoint=HOST:PORT, the same on all",
                    RDZV_BACKEND_NAMES[want->asked], spec->nnodes);
    if (spec->node_rank > 0 && want->address[0] == '\0')
        return FAIL(STATUS_INVALID,
                    "--node-rank=%d of %d machines: where is machine 0? Give "
                    "--master-addr=ADDRESS, its address",
                    spec->node_rank, spec->nnodes);
    if (want->port == 0 && spec->rdzv.min_nodes > 1)
        return FAIL(STATUS_INVALID,
                    "%s%s (a free port) cannot be known to %d machines; "
                    "give the same port on all, or none for %d",
                    spec->endpoints[0] != '\0' ? "--rdzv-endpoint=" : "--master-port=0",
                    spec->endpoints, spec->rdzv.min_nodes, default_port(want->asked));
    return STATUS_OK;
}

static status copy_text(const char *flag, const char *text, char *out, size_t size_bytes)
{
    if (strlen(text) >= size_bytes)
        return FAIL(STATUS_INVALID, "%s: longer than %zu letters", flag, size_bytes - 1);
    memcpy(out, text, strlen(text) + 1);
    return STATUS_OK;
}

static status request_read(const options *opts, int cpu_count, int gpu_count, request *want)
{
    worker_spec *spec = &want->spec;
    TRY(nproc_of(opts->nproc_per_node, cpu_count, gpu_count, &spec->nproc));
    if (spec->nproc == NOT_GIVEN && spec->world_size != NOT_GIVEN && opts->local_world_size >= 0)
        spec->nproc = (int)opts->local_world_size;
    bool may_spread = !strategy_of(opts)->is_one_process;
    if (spec->nproc == NOT_GIVEN && spec->world_size == NOT_GIVEN && may_spread &&
        device_list_named(opts) > 1)
        spec->nproc = device_list_named(opts); /* --devices=0,3: a rank each */
    TRY(worker_spec_nnodes(opts->nnodes, &spec->rdzv.min_nodes, &spec->nnodes));
    if (!opts->standalone)
        TRY(read_rdzv(opts, want));
    if (!opts->standalone && spec->endpoints[0] == '\0') {
        if (opts->master_addr != NULL)
            TRY(copy_text("--master-addr", opts->master_addr, want->address, sizeof want->address));
        want->port = (int)opts->master_port;
    }
    if (want->asked != RDZV_STATIC && spec->node_rank > 0)
        LOG_W("--node-rank=%d is not used with --rdzv-backend=%s: nodes are numbered as they come",
              spec->node_rank, opts->rdzv_backend);
    if (want->asked != RDZV_STATIC)
        spec->node_rank = NOT_GIVEN;
    if (opts->standalone) { /* as torchrun: whatever address and port were given */
        if (spec->nnodes > 1 || spec->node_rank > 0)
            return FAIL(STATUS_INVALID, "--standalone means one machine; leave it out, or give "
                                        "neither --nnodes nor --node-rank");
        spec->nnodes = 1;
    }
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

/* Whether `address` is this machine, as --local-addr or its network says. */
static bool is_own(const worker_spec *spec, const char *address)
{
    return strcmp(spec->local_addr, address) == 0 || local_network_owns(address);
}

/* Who serves the store, on which address and port. */
static void place_store(request *want)
{
    worker_spec *spec = &want->spec;
    bool one = spec->nnodes == 1 && spec->backend == RDZV_STATIC, given = want->address[0] != '\0';
    /* The ranks of one machine need no other address than this, whatever was given. */
    snprintf(spec->master_addr, sizeof spec->master_addr, "%s",
             one || !given ? "127.0.0.1" : want->address);
    spec->store_on_loopback = one || (given && socket_address_says_loopback(want->address));
    if (want->port != NOT_GIVEN)
        spec->master_port = want->port;
    else
        spec->master_port = one ? 0 : default_port(want->asked);
    if (one || (spec->backend == RDZV_STATIC && spec->node_rank == 0))
        spec->server = RDZV_HOST_HERE;
    else if (spec->backend != RDZV_C10D || want->is_host == 0)
        spec->server = RDZV_HOST_ELSEWHERE;
    else if (want->is_host == 1 || spec->master_port == 0)
        spec->server = RDZV_HOST_HERE;
    else
        spec->server = is_own(spec, spec->master_addr) ? RDZV_HOST_FIRST : RDZV_HOST_ELSEWHERE;
}

/* One machine, too, asks the service that was named, unless it would serve that itself. */
static rdzv_backend backend_for(const request *want)
{
    const worker_spec *spec = &want->spec;
    bool here = want->asked == RDZV_C10D && want->is_host != 0 &&
                (want->is_host == 1 || is_own(spec, want->address));
    bool asks = spec->nnodes > 1 || (spec->endpoints[0] != '\0' && !here);
    return asks ? want->asked : RDZV_STATIC;
}

/* --join-timeout, else --rdzv-conf's, else the flag's default; but on one machine nobody else is to
 * come. */
static void set_join_time(const options *opts, worker_spec *spec)
{
    bool is_given = options_given(opts, "join-timeout");
    if (is_given || spec->rdzv.join_ms < 0)
        spec->rdzv.join_ms =
            spec->rdzv.max_nodes == 1 && !is_given ? spec->rdzv.read_ms : opts->join_timeout * 1000;
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
    /* torch's defaults of --rdzv-conf */
    request want = {.spec = {.opts = opts,
                             .world_size = (int)opts->world_size,
                             .node_rank = (int)opts->node_rank,
                             .rdzv = {.join_ms = NOT_GIVEN,
                                      .last_call_ms = 30000,
                                      .read_ms = 60000,
                                      .keep_alive_ms = 5000,
                                      .keep_alive_misses = 3},
                             .monitor_ms = (int64_t)(opts->monitor_interval * 1e3),
                             .max_restarts = (int)opts->max_restarts,
                             .health_check_port = health_check_port(opts),
                             .run_id = "none",
                             .role = "default"},
                    .port = NOT_GIVEN,
                    .is_host = NOT_GIVEN};
    worker_spec *spec = &want.spec;
    TRY(request_read(opts, cpu_count, gpu_count, &want));
    TRY(fit(&want, gpu_count));
    if (spec->rdzv.min_nodes == NOT_GIVEN)
        spec->rdzv.min_nodes = spec->nnodes;
    TRY(check_nodes(&want));
    if (spec->nproc == spec->world_size && spec->node_rank == 0 && opts->nproc_per_node == NULL &&
        opts->nnodes == NULL && spec->nproc > 1 && !is_elsewhere(&want))
        LOG_I("--world-size=%d, and no --master-addr that other machines reach: this is taken as "
              "the only one, and runs all ranks",
              spec->world_size);
    if (opts->local_world_size >= 0 && opts->local_world_size != spec->nproc)
        return FAIL(
            STATUS_INVALID,
            "--local-world-size=%d, but --nproc-per-node=%d: they are the same; give one of "
            "them",
            (int)opts->local_world_size, spec->nproc);
    spec->node_rank = spec->node_rank > 0 ? spec->node_rank : 0;
    spec->world_size = spec->counts_nodes ? spec->world_size : spec->nproc * spec->nnodes;
    spec->rdzv.max_nodes = spec->nnodes;
    if (opts->local_addr != NULL)
        TRY(copy_text("--local-addr", opts->local_addr, spec->local_addr, sizeof spec->local_addr));
    spec->backend = backend_for(&want);
    place_store(&want);
    set_join_time(opts, spec);
    if (worker_spec_is_elastic(spec))
        spec->node_rank = NOT_GIVEN;
    if (opts->rdzv_id != NULL && !opts->standalone)
        TRY(copy_text("--rdzv-id", opts->rdzv_id, spec->run_id, sizeof spec->run_id));
    else if (spec->backend == RDZV_ETCD && spec->rdzv.max_nodes > 1)
        return FAIL(STATUS_INVALID,
                    "--rdzv-backend=etcd: which job is this? Others may meet there, "
                    "too; give --rdzv-id=ID, the same on all machines and no other "
                    "job's");
    else if (spec->rdzv.max_nodes == 1 && (spec->master_port == 0 || worker_spec_is_elastic(spec)))
        make_run_id(spec->run_id);
    if (opts->run.role != NULL)
        TRY(copy_text("--role", opts->run.role, spec->role, sizeof spec->role));
    *out = want.spec;
    return STATUS_OK;
}

status worker_spec_check_mode(const worker_spec *spec, const options *opts)
{
    int least = spec->rdzv.min_nodes, most = spec->rdzv.max_nodes;
    TRY(strategy_check(opts, spec->world_size));
    if (least >= most)
        return STATUS_OK;
    return status_context(strategy_check(opts, least * spec->nproc),
                          "--nnodes=%d:%d: %d would not do: give --nnodes=%d, or see to this",
                          least, most, least, most);
}

/* What a worker executes. */

static const char MACRO[] = "${local_rank}";

/* As runpy does it for torchrun's --run-path. */
static const char RUN_PATH[] = "import runpy, sys; sys.argv = sys.argv[1:]; "
                               "runpy.run_path(sys.argv[0], run_name='__main__')";

void entrypoint_word(FILE *words, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    vfprintf(words, fmt, args);
    va_end(args);
    fputc('\0', words);
}

static void add_word(entrypoint *program, FILE *words, const char *word)
{
    entrypoint_word(words, "%s", word);
    program->count++;
}

/* How the script itself spells the flag: torch.distributed.launch passes --local-rank since 2.0,
 * --local_rank before. */
static const char *local_rank_flag(const char *script)
{
    char *text = NULL;
    size_t size_bytes = 0;
    bool old = file_read(script, SCRIPT_BYTES, &text, &size_bytes) == STATUS_OK &&
               strstr(text, "--local_rank") != NULL && strstr(text, "--local-rank") == NULL;
    free(text);
    return old ? "--local_rank" : "--local-rank";
}

static status add_python(const options *opts, entrypoint *program, FILE *words)
{
    const char *name = opts->program[0];
    if (!opts->run.module && access(name, R_OK) != 0)
        return FAIL(STATUS_INVALID, "%.*s: %s; a script is looked for in this folder",
                    SHOWN_PATH_BYTES, name, strerror(errno));
    const char *named = environment_text("PYTHON_EXEC");
    if (named != NULL && !executable_find(named, program->path))
        return FAIL(STATUS_INVALID, "PYTHON_EXEC=%.*s: no such executable", SHOWN_PATH_BYTES,
                    named);
    if (named == NULL && !executable_find("python3", program->path) &&
        !executable_find("python", program->path))
        return FAIL(STATUS_INVALID, "no python3 in PATH to run a script; name one with "
                                    "PYTHON_EXEC=/path/to/python3");
    add_word(program, words, program->path);
    add_word(program, words, "-u");
    if (opts->run.module || opts->run.run_path)
        add_word(program, words, opts->run.module ? "-m" : "-c");
    if (opts->run.run_path)
        add_word(program, words, RUN_PATH);
    return STATUS_OK;
}

/* The interpreter or executable, then PROGRAM ARGS. */
static status find_program(const options *opts, entrypoint *program, FILE *words)
{
    char *const *given = opts->program;
    bool direct = opts->run.no_python && !opts->run.run_path;
    const char *ending = strrchr(given[0], '.');
    bool is_script = ending != NULL && ending > given[0] && strcmp(ending, ".py") == 0;
    bool python = opts->run.module || opts->run.run_path || is_script;
    if (!direct && !python) /* whatever can be executed is; the rest is a script without ".py" */
        direct = executable_find(given[0], program->path) || access(given[0], R_OK) != 0;
    if (direct && !executable_find(given[0], program->path))
        return FAIL(STATUS_INVALID, "%.*s: no such executable%s", SHOWN_PATH_BYTES, given[0],
                    strchr(given[0], '/') == NULL ? " in PATH; for one in this folder give ./"
                    : access(given[0], F_OK) == 0 ? "; make it one with chmod +x"
                                                  : "");
    if (!direct)
        TRY(add_python(opts, program, words));
    add_word(program, words, given[0]);
    if (!opts->run.use_env) {
        program->local_rank_at = program->count;
        program->local_rank_flag = opts->run.module ? "--local-rank" : local_rank_flag(given[0]);
    }
    for (int i = 1; given[i] != NULL; i++)
        add_word(program, words, given[i]);
    return STATUS_OK;
}

status entrypoint_list(text_stream *words, char ***out)
{
    char *text = NULL;
    size_t size_bytes = 0, n = 0;
    TRY(text_stream_close(words, &text, &size_bytes));
    for (size_t i = 0; i < size_bytes; i++)
        n += text[i] == '\0';
    char **block = malloc((n + 1) * sizeof *block + size_bytes);
    if (block == NULL) {
        free(text);
        return FAIL(STATUS_NO_MEMORY, "%zu words", n);
    }
    char *at = memcpy(block + n + 1, text, size_bytes);
    free(text);
    for (size_t i = 0; i < n; i++, at += strlen(at) + 1)
        block[i] = at;
    block[n] = NULL;
    *out = block;
    return STATUS_OK;
}

status entrypoint_find(const options *opts, entrypoint *out)
{
    text_stream words;
    if (opts->program == NULL || opts->program[0] == NULL)
        return FAIL(STATUS_INVALID,
                    "run: which program? As in: mnist_ddp run --nproc-per-node=2 train.py");
    if (opts->run.no_python && opts->run.module)
        return FAIL(STATUS_INVALID, "--no-python and --module: give one of them");
    if (opts->run.run_path && opts->run.module)
        return FAIL(STATUS_INVALID, "--run-path and --module: give one of them");
    TRY(text_stream_open(&words));
    *out = (entrypoint){.own_session = true, .local_rank_at = -1};
    status st = find_program(opts, out, words.file);
    status listed = entrypoint_list(&words, &out->words);
    return st != STATUS_OK ? st : listed;
}

static status find_self(int argc, char **argv, entrypoint *out)
{
    text_stream words;
    TRY(text_stream_open(&words));
    *out = (entrypoint){.path = "/proc/self/exe", .local_rank_at = -1};
    for (int i = 0; i < argc; i++)
        add_word(out, words.file, argv[i]);
    return entrypoint_list(&words, &out->words);
}

status entrypoint_argv(const entrypoint *program, int local_rank, char ***out)
{
    text_stream words;
    TRY(text_stream_open(&words));
    for (int i = 0; i <= program->count; i++) {
        if (i == program->local_rank_at)
            entrypoint_word(words.file, "%s=%d", program->local_rank_flag, local_rank);
        const char *word = i < program->count ? program->words[i] : NULL;
        for (const char *at; word != NULL && (at = strstr(word, MACRO)) != NULL;
             word = at + sizeof MACRO - 1)
            fprintf(words.file, "%.*s%d", (int)(at - word), word, local_rank);
        if (word != NULL)
            entrypoint_word(words.file, "%s", word);
    }
    return status_context(entrypoint_list(&words, out), "arguments of local rank %d", local_rank);
}

/* The rest of the spec. */

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

static status set_shutdown(const options *opts, shutdown_policy *out)
{
    bool own = opts->command != COMMAND_RUN;
    const char *text = getenv("TORCH_ELASTIC_SHUTDOWN_TIMEOUT"); /* as torchrun: after the flag */
    int seconds = DEFAULT_SHUTDOWN_S;
    if (text != NULL)
        (void)number_parse(text, 0, WEEK_S, &seconds);
    int64_t timeout_ms =
        opts->shutdown_timeout >= 0 ? opts->shutdown_timeout * 1000 : (int64_t)seconds * 1000;
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
    spec->virtual_local_rank = opts->run.virtual_local_rank;
    spec->event_log = opts->event_log;
    spec->stdout_has_result = standard_streams_carry_result(opts);
    if (spec->virtual_local_rank)
        TRY(check_virtual(spec));
    TRY(set_shutdown(opts, &spec->policy));
    spec->policy.keeps =
        worker_spec_is_elastic(spec) && spec->policy.listens && rank_context_outlives_rounds(opts);
    if (spec->policy.listens && (worker_spec_is_elastic(spec) || spec->nnodes > 1))
        TRY(rank_context_agreement_of_node(opts, worker_spec_is_elastic(spec), spec->alike));
    TRY(worker_logs_read(opts, spec->nproc, &spec->logs));
    spec->logs.outlive = spec->policy.keeps;
    if (!spec->policy.own) {
        spec->name_is_loopback = (spec->nnodes > 1 || worker_spec_is_elastic(spec)) &&
                                 socket_address_own_name_is_loopback();
        return entrypoint_find(opts, &spec->program);
    }
    if (opts->command == COMMAND_TRAIN)
        TRY(choose_run_dir(opts, spec, spec->run_dir));
    return find_self(argc, argv, &spec->program);
}

void worker_spec_free(worker_spec *spec)
{
    free(spec->program.words);
    round_state_free(&spec->now);
}

int worker_spec_ranks_of(const worker_spec *spec, int node)
{
    return node < spec->now.n ? spec->now.members[node].nproc : spec->nproc;
}

int worker_spec_first_rank(const worker_spec *spec, int node)
{
    int first = 0;
    for (int i = 0; i < node; i++)
        first += worker_spec_ranks_of(spec, i);
    return first;
}

const char *worker_spec_ranks(const worker_spec *spec, char out[SPEC_RANKS_BYTES])
{
    int first = worker_spec_first_rank(spec, spec->node_rank);
    if (spec->nproc == 1)
        snprintf(out, SPEC_RANKS_BYTES, "rank %d of %d", first, spec->world_size);
    else
        snprintf(out, SPEC_RANKS_BYTES, "ranks %d to %d of %d", first, first + spec->nproc - 1,
                 spec->world_size);
    return out;
}
