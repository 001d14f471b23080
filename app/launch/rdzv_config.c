#include "app/launch/rdzv_config.h"

#include "app/options/nearest.h"
#include "base/comma_list.h"
#include "base/log.h"
#include "base/number.h"
#include "dist/net/socket_address.h"
#include "dist/store/store.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

enum {
    SHOWN_BYTES = 80,
    WORD_BYTES = 128,
    WEEK_S = 604800,
    MAX_MISSES = 1000,
    C10D_PORT = 29400, /* torchrun's, of an endpoint without one */
    ETCD_PORT = 2379,
};

static status seconds_of(const char *key, const char *value, double *out)
{
    const char *at = value;
    if (!number_next_real(&at, out) || *at != '\0' || !(*out > 0.0) || *out > WEEK_S)
        return FAIL(STATUS_INVALID, "--rdzv-conf: %s=%.40s is not a number of seconds", key, value);
    return STATUS_OK;
}

static status truth_of(const char *key, const char *value, int *out)
{
    static const char *const words[][2] = {
        {"0", "1"}, {"false", "true"}, {"f", "t"}, {"no", "yes"}, {"n", "y"}};
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
        for (int truth = 0; truth < 2; truth++)
            if (strcasecmp(value, words[i][truth]) == 0) {
                *out = truth;
                return STATUS_OK;
            }
    return FAIL(STATUS_INVALID, "--rdzv-conf: %s=%.40s is neither true nor false", key, value);
}

/* Keys of torchrun's backends that mean nothing here, and those that do. */
static status check_key(const char *key)
{
    static const char *const others[] = {"close_timeout", "store_type", "use_libuv",
                                         "rank",          "protocol",   "heartbeat_timeout"};
    static const char *const ours[] = {"join_timeout",
                                       "timeout",
                                       "last_call_timeout",
                                       "read_timeout",
                                       "keep_alive_interval",
                                       "keep_alive_max_attempt",
                                       "is_host"};
    nearest search;
    nearest_init(&search, key);
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++)
        if (strcmp(key, others[i]) == 0)
            return STATUS_OK;
    for (size_t i = 0; i < sizeof ours / sizeof ours[0]; i++)
        nearest_offer(&search, ours[i]);
    if (nearest_found(&search))
        return FAIL(STATUS_INVALID, "--rdzv-conf: no key '%.*s'; did you mean '%s'?", SHOWN_BYTES,
                    key, search.best);
    LOG_W("--rdzv-conf: '%.*s' means nothing here", SHOWN_BYTES, key);
    return STATUS_OK;
}

static status take_pair(const char *key, const char *value, rdzv_config *config)
{
    double number = 0.0;
    if (strcmp(key, "join_timeout") == 0 || strcmp(key, "timeout") == 0) {
        TRY(seconds_of(key, value, &number));
        config->join_ms = (int64_t)(number * 1e3);
    } else if (strcmp(key, "last_call_timeout") == 0) {
        TRY(seconds_of(key, value, &number));
        config->last_call_ms = (int64_t)(number * 1e3);
    } else if (strcmp(key, "read_timeout") == 0) {
        TRY(seconds_of(key, value, &number));
        config->read_ms = (int64_t)(number * 1e3) > 0 ? (int64_t)(number * 1e3) : 1;
    } else if (strcmp(key, "keep_alive_interval") == 0) {
        TRY(seconds_of(key, value, &number));
        config->keep_alive_ms = (int64_t)(number * 1e3) > 0 ? (int64_t)(number * 1e3) : 1;
    } else if (strcmp(key, "keep_alive_max_attempt") == 0) {
        if (!number_parse(value, 1, MAX_MISSES, &config->keep_alive_misses))
            return FAIL(STATUS_INVALID, "--rdzv-conf: %s=%.40s is not a whole number from 1 to %d",
                        key, value, MAX_MISSES);
    } else if (strcmp(key, "is_host") == 0) {
        return truth_of(key, value, &config->is_host);
    } else {
        return check_key(key);
    }
    return STATUS_OK;
}

static status read_pairs(const char *text, rdzv_config *config)
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
        TRY(take_pair(pair, equals + 1, config));
    }
    return STATUS_OK;
}

static status backend_of(const char *name, rdzv_backend *out)
{
    static const char *const names[] = {
        [RDZV_STATIC] = "static", [RDZV_C10D] = "c10d", [RDZV_ETCD] = "etcd"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (strcmp(name, names[i]) == 0) {
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

int rdzv_config_port(rdzv_backend backend)
{
    return backend == RDZV_STATIC ? STORE_DEFAULT_PORT
           : backend == RDZV_C10D ? C10D_PORT
                                  : ETCD_PORT;
}

/* One of the list, which gets it with its port. etcd's may say how to speak to it. */
static status add_endpoint(const char *text, rdzv_config *config)
{
    char address[RDZV_ADDRESS_BYTES], name[SOCKET_ADDRESS_BYTES];
    size_t used = strlen(config->endpoints);
    bool is_etcd = config->backend == RDZV_ETCD;
    const char *scheme = is_etcd && strncmp(text, "https://", 8) == 0  ? "https://"
                         : is_etcd && strncmp(text, "http://", 7) == 0 ? "http://"
                                                                       : "";
    int port = -1;
    text += strlen(scheme);
    TRY(status_context(socket_address_parse(text, rdzv_config_port(config->backend), address,
                                            sizeof address, &port),
                       "--rdzv-endpoint"));
    socket_address_name(address, port, name);
    if (used > 0 && config->backend == RDZV_STATIC)
        return FAIL(STATUS_INVALID, "--rdzv-endpoint: several need --rdzv-backend=etcd");
    if (used > 0 && config->backend == RDZV_C10D)
        return FAIL(STATUS_INVALID,
                    "--rdzv-endpoint: c10d meets at one store, %s; several do not replicate: for "
                    "a rendezvous that survives its host give --rdzv-backend=etcd",
                    config->endpoints);
    if (used + strlen(scheme) + strlen(name) + 2 > sizeof config->endpoints)
        return FAIL(STATUS_INVALID, "--rdzv-endpoint: longer than %zu letters",
                    sizeof config->endpoints - 1);
    sprintf(config->endpoints + used, "%s%s%s", used > 0 ? "," : "", scheme, name);
    if (used == 0) {
        memcpy(config->address, address, sizeof address);
        config->port = port;
    }
    return STATUS_OK;
}

static status read_endpoints(const char *text, rdzv_config *config)
{
    const char *at = text != NULL ? text : "", *word;
    for (size_t length; (word = comma_list_next(&at, &length)) != NULL;) {
        char one[RDZV_ADDRESS_BYTES + 16];
        if (length >= sizeof one)
            return FAIL(STATUS_INVALID, "--rdzv-endpoint: '%.*s' is no HOST:PORT", SHOWN_BYTES,
                        word);
        snprintf(one, sizeof one, "%.*s", (int)length, word);
        TRY(add_endpoint(one, config));
    }
    return STATUS_OK;
}

void rdzv_config_each(const char *endpoints, rdzv_endpoint_fn *use, void *ctx)
{
    const char *at = endpoints, *word;
    for (size_t length; (word = comma_list_next(&at, &length)) != NULL;) {
        char one[RDZV_ADDRESS_BYTES + 16], address[RDZV_ADDRESS_BYTES];
        int port = -1;
        snprintf(one, sizeof one, "%.*s", (int)length, word);
        const char *scheme_end = strstr(one, "://");
        if (socket_address_parse(scheme_end != NULL ? scheme_end + 3 : one, 0, address,
                                 sizeof address, &port) == STATUS_OK &&
            !use(ctx, address, port))
            return;
    }
}

rdzv_config rdzv_config_none(void)
{
    return (rdzv_config){.port = -1,
                         .join_ms = -1,
                         .last_call_ms = 30000,
                         .read_ms = 60000,
                         .keep_alive_ms = 5000,
                         .keep_alive_misses = 3,
                         .is_host = -1};
}

status rdzv_config_read(const options *opts, rdzv_config *out)
{
    rdzv_config config = rdzv_config_none();
    TRY(backend_of(opts->rdzv_backend, &config.backend));
    TRY(read_pairs(opts->rdzv_conf, &config));
    TRY(read_endpoints(opts->rdzv_endpoint, &config));
    *out = config;
    return STATUS_OK;
}
