/* The part of dist/rendezvous.h that reads the environment and --init-method. */
#include "base/host.h"
#include "dist/net/socket_address.h"
#include "dist/rendezvous.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_RANKS = 1 << 20 };

static status number(const char *name, const char *text, int low, int high, int *out)
{
    char *end;
    errno = 0;
    long value = strtol(text, &end, 10);
    if (end == text || *end != '\0')
        return FAIL(STATUS_INVALID, "environment variable %s=%.40s is not a whole number", name,
                    text);
    if (errno != 0 || value < low || value > high)
        return FAIL(STATUS_INVALID, "environment variable %s=%.40s is not in %d..%d", name, text,
                    low, high);
    *out = (int)value;
    return STATUS_OK;
}

static status missing(const char *name, const char *hint)
{
    return FAIL(STATUS_INVALID,
                "environment variable %s expected, but not set: %s, or start the ranks with "
                "`mnist_ddp run` or torchrun, which set it",
                name, hint);
}

static status required(const char *name, const char *hint, int low, int high, int *out)
{
    const char *text = environment_text(name);
    return text == NULL ? missing(name, hint) : number(name, text, low, high, out);
}

static status optional(const char *name, int low, int high, int absent, int *out)
{
    const char *text = environment_text(name);
    if (text != NULL)
        return number(name, text, low, high, out);
    *out = absent;
    return STATUS_OK;
}

static status copy_text(const char *name, const char *text, size_t size_bytes, char *out)
{
    if (strlen(text) >= size_bytes)
        return FAIL(STATUS_INVALID,
                    "environment variable %s has %zu bytes: at most %zu are allowed", name,
                    strlen(text), size_bytes - 1);
    memcpy(out, text, strlen(text) + 1);
    return STATUS_OK;
}

static status read_master(rendezvous_place *place)
{
    const char *address = environment_text("MASTER_ADDR");
    if (address == NULL)
        return missing("MASTER_ADDR", "set it to the host of rank 0 (127.0.0.1 on one host)");
    TRY(copy_text("MASTER_ADDR", address, sizeof place->master_addr, place->master_addr));
    TRY(required("MASTER_PORT", "set it to a free port of that host, the same for all ranks", 1,
                 65535, &place->master_port));
    const char *agent = environment_text("TORCHELASTIC_USE_AGENT_STORE");
    place->agent_store = agent != NULL && strcmp(agent, "True") == 0;
    return STATUS_OK;
}

/* Where the store is. */
static status read_method(const rendezvous_request *asked, const init_method *method,
                          rendezvous_place *place)
{
    const char *own = asked->own_address != NULL ? asked->own_address : "";
    if (method->kind == INIT_METHOD_ENV)
        return read_master(place);
    place->master_port = method->port;
    memcpy(place->master_addr, method->host, sizeof place->master_addr);
    memcpy(place->init_file, method->path, sizeof place->init_file);
    if (method->kind != INIT_METHOD_FILE)
        return STATUS_OK;
    if (strlen(own) >= sizeof place->master_addr)
        return FAIL(STATUS_INVALID, "--local-addr: %zu bytes are too many", strlen(own));
    memcpy(place->master_addr, own, strlen(own) + 1);
    return STATUS_OK;
}

static status read_local(rendezvous_place *place)
{
    TRY(optional("LOCAL_WORLD_SIZE", 1, place->world_size, place->world_size,
                 &place->local_world_size));
    int local_rank = 0;
    if (environment_text("LOCAL_RANK") == NULL &&
        (place->init_file[0] != '\0' || socket_address_is_loopback(place->master_addr)))
        local_rank = place->rank;
    TRY(optional("LOCAL_RANK", 0, INT_MAX, local_rank, &place->local_rank));
    if (place->local_rank >= place->local_world_size)
        return FAIL(STATUS_INVALID, "LOCAL_RANK %d is not in 0..%d, as LOCAL_WORLD_SIZE says",
                    place->local_rank, place->local_world_size - 1);
    const char *node = environment_text("GROUP_RANK") != NULL ? "GROUP_RANK" : "NODE_RANK";
    return optional(node, 0, MAX_RANKS, 0, &place->node_rank);
}

/* Rank or world size, by flag, query and variable: those that say it have to agree. */
typedef struct number_sources {
    const char *flag, *key, *variable; /* their names */
    int by_flag, by_query;             /* -1: not there */
    const char *hint;                  /* what to set the variable to */
    int low, high;
} number_sources;

static status read_number(const number_sources *from, int *out)
{
    int by_variable = -1;
    TRY(optional(from->variable, from->low, from->high, -1, &by_variable));
    int value = from->by_flag >= 0 ? from->by_flag : from->by_query;
    if (value < 0)
        return required(from->variable, from->hint, from->low, from->high, out);
    if (from->by_query >= 0 && from->by_query != value)
        return FAIL(STATUS_INVALID, "--%s=%d, but --init-method says %s=%d: give it once",
                    from->flag, value, from->key, from->by_query);
    if (by_variable >= 0 && by_variable != value)
        return FAIL(STATUS_INVALID, "%s is %d, but the environment has %s=%d: they have to agree",
                    from->key, value, from->variable, by_variable);
    *out = value;
    return STATUS_OK;
}

static status read_rank(const rendezvous_request *asked, const init_method *method,
                        rendezvous_place *place)
{
    bool is_env = method->kind == INIT_METHOD_ENV;
    /* Else --world-size is a launcher's. */
    bool is_flag = !is_env || asked->rank >= 0 || method->rank >= 0;
    const number_sources size = {.flag = "world-size",
                                 .key = "world_size",
                                 .variable = "WORLD_SIZE",
                                 .by_flag = is_flag ? asked->world_size : -1,
                                 .by_query = method->world_size,
                                 .hint = is_env ? "set it to the number of ranks"
                                                : "give --world-size=N, or set it to the number "
                                                  "of ranks",
                                 .low = 1,
                                 .high = MAX_RANKS};
    const number_sources rank = {.flag = "rank",
                                 .key = "rank",
                                 .variable = "RANK",
                                 .by_flag = asked->rank,
                                 .by_query = method->rank,
                                 .hint = is_env ? "set it to this process's number, from 0"
                                                : "give --rank=R, or set it to this process's "
                                                  "number, from 0",
                                 .low = 0,
                                 .high = INT_MAX};
    TRY(read_number(&size, &place->world_size));
    TRY(read_number(&rank, &place->rank));
    if (place->rank >= place->world_size)
        return FAIL(STATUS_INVALID, "RANK %d is not in 0..%d, as WORLD_SIZE says", place->rank,
                    place->world_size - 1);
    return STATUS_OK;
}

status rendezvous_place_read(const rendezvous_request *asked, rendezvous_place *out, bool *found)
{
    init_method method;
    rendezvous_place place = {0};
    TRY(init_method_parse(asked->init_method != NULL ? asked->init_method : "env://", &method));
    bool is_named = environment_text("RANK") != NULL || environment_text("WORLD_SIZE") != NULL ||
                    asked->rank >= 0 || method.rank >= 0 || method.world_size >= 0;
    if (!is_named && method.kind == INIT_METHOD_ENV) {
        *found = false;
        return STATUS_OK;
    }
    TRY(read_rank(asked, &method, &place));
    TRY(read_method(asked, &method, &place));
    TRY(read_local(&place));
    int round = 0;
    TRY(optional("TORCHELASTIC_RESTART_COUNT", 0, INT_MAX, 0, &place.restart_count));
    TRY(optional("MNIST_DDP_ROUND", 0, INT_MAX, 0, &round));
    place.round = round;
    const char *run_id = environment_text("TORCHELASTIC_RUN_ID");
    TRY(copy_text("TORCHELASTIC_RUN_ID", run_id != NULL ? run_id : "none", sizeof place.run_id,
                  place.run_id));
    *out = place;
    *found = true;
    return STATUS_OK;
}

status rendezvous_place_from_env(rendezvous_place *out, bool *found)
{
    return rendezvous_place_read(&(rendezvous_request){.rank = -1, .world_size = -1}, out, found);
}
