/* The part of dist/rendezvous.h that reads the environment. */
#include "base/environment.h"
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

static status read_local(rendezvous_place *place)
{
    TRY(optional("LOCAL_WORLD_SIZE", 1, place->world_size, place->world_size,
                 &place->local_world_size));
    int local_rank = 0;
    if (environment_text("LOCAL_RANK") == NULL && socket_address_is_loopback(place->master_addr))
        local_rank = place->rank;
    TRY(optional("LOCAL_RANK", 0, INT_MAX, local_rank, &place->local_rank));
    if (place->local_rank >= place->local_world_size)
        return FAIL(STATUS_INVALID, "LOCAL_RANK %d is not in 0..%d, as LOCAL_WORLD_SIZE says",
                    place->local_rank, place->local_world_size - 1);
    const char *node = environment_text("GROUP_RANK") != NULL ? "GROUP_RANK" : "NODE_RANK";
    return optional(node, 0, MAX_RANKS, 0, &place->node_rank);
}

status rendezvous_place_from_env(rendezvous_place *out, bool *found)
{
    if (environment_text("RANK") == NULL && environment_text("WORLD_SIZE") == NULL) {
        *found = false;
        return STATUS_OK;
    }
    rendezvous_place place = {0};
    TRY(required("WORLD_SIZE", "set it to the number of ranks", 1, MAX_RANKS, &place.world_size));
    TRY(required("RANK", "set it to this process's number, from 0", 0, INT_MAX, &place.rank));
    if (place.rank >= place.world_size)
        return FAIL(STATUS_INVALID, "RANK %d is not in 0..%d, as WORLD_SIZE says", place.rank,
                    place.world_size - 1);
    TRY(read_master(&place));
    TRY(read_local(&place));
    TRY(optional("TORCHELASTIC_RESTART_COUNT", 0, INT_MAX, 0, &place.restart_count));
    const char *run_id = environment_text("TORCHELASTIC_RUN_ID");
    TRY(copy_text("TORCHELASTIC_RUN_ID", run_id != NULL ? run_id : "none", sizeof place.run_id,
                  place.run_id));
    *out = place;
    *found = true;
    return STATUS_OK;
}
