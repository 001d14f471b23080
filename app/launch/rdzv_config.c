#include "app/launch/rdzv_config.h"

#include "app/options/command_table.h"
#include "base/log.h"
#include "base/text.h"
#include "dist/net/socket_address.h"
#include "dist/store/store.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

enum {
    SHOWN_BYTES = 80,
    WORD_BYTES = ETCD_FILE_BYTES, /* of a pair, so that a file of it has room */
    WEEK_S = 604800,
    MAX_MISSES = 1000,
    C10D_PORT = 29400, /* torchrun's, of an endpoint without one */
    ETCD_PORT = 2379,
};

typedef enum key_kind {
    KEY_NOTHING, /* of torchrun's backends; means nothing here */
    KEY_MS,      /* int64_t, and so many seconds as it is given */
    KEY_COUNT,   /* int */
    KEY_TRUTH,   /* int: 0 or 1; "http" and "https" likewise */
    KEY_FILE,    /* of etcd_access */
} key_kind;

#define AT(field) offsetof(rdzv_config, field)

static const struct {
    const char *name;
    key_kind kind;
    size_t at;
} KEYS[] = {
    {"join_timeout", KEY_MS, AT(join_ms)},
    {"timeout", KEY_MS, AT(join_ms)},
    {"last_call_timeout", KEY_MS, AT(last_call_ms)},
    {"read_timeout", KEY_MS, AT(read_ms)},
    {"keep_alive_interval", KEY_MS, AT(keep_alive_ms)},
    {"keep_alive_max_attempt", KEY_COUNT, AT(keep_alive_misses)},
    {"is_host", KEY_TRUTH, AT(is_host)},
    {"protocol", KEY_TRUTH, AT(is_https)},
    {"cacert", KEY_FILE, AT(access.cacert)},
    {"cert", KEY_FILE, AT(access.cert)},
    {"key", KEY_FILE, AT(access.key)},
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

static status take_value(size_t i, const char *value, rdzv_config *config)
{
    void *field = (char *)config + KEYS[i].at;
    if (KEYS[i].kind == KEY_MS)
        return ms_of(KEYS[i].name, value, field);
    if (KEYS[i].kind == KEY_TRUTH)
        return truth_of(KEYS[i].name, value, field);
    if (KEYS[i].kind == KEY_FILE)
        strcpy(field, value); /* of a pair, so it has room */
    if (KEYS[i].kind == KEY_COUNT && !number_parse(value, 1, MAX_MISSES, field))
        return FAIL(STATUS_INVALID, "--rdzv-conf: %s=%.40s is not a whole number from 1 to %d",
                    KEYS[i].name, value, MAX_MISSES);
    return STATUS_OK;
}

static status take_pair(const char *key, const char *value, rdzv_config *config)
{
    nearest search;
    nearest_init(&search, key);
    for (size_t i = 0; i < sizeof KEYS / sizeof KEYS[0]; i++) {
        if (strcmp(key, KEYS[i].name) == 0)
            return take_value(i, value, config);
        nearest_offer(&search, KEYS[i].name);
    }
    if (nearest_found(&search))
        return FAIL(STATUS_INVALID, "--rdzv-conf: no key '%.*s'; did you mean '%s'?", SHOWN_BYTES,
                    key, search.best);
    LOG_W("--rdzv-conf: '%.*s' means nothing here", SHOWN_BYTES, key);
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
static status add_endpoint(const char *text, rdzv_config *config)
{
    char address[RDZV_ADDRESS_BYTES], name[SOCKET_ADDRESS_BYTES];
    size_t used = strlen(config->endpoints);
    bool is_etcd = config->backend == RDZV_ETCD;
    const char *scheme = is_etcd && strncmp(text, "https://", 8) == 0  ? "https://"
                         : is_etcd && strncmp(text, "http://", 7) == 0 ? "http://"
                         : is_etcd && config->is_https == 1            ? "https://"
                                                                       : "";
    int port = -1;
    text += strncmp(text, scheme, strlen(scheme)) == 0 ? strlen(scheme) : 0;
    if (strchr(text, '@') != NULL &&
        (!is_etcd || (used > 0 && config->access.user[0] == '\0') ||
         !take_name(&text, ':', config->access.user) ||
         !take_name(&text, '@', config->access.password) || strchr(text, '@') != NULL))
        return FAIL(STATUS_INVALID, "a name and a password");
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

static void hide(char *text, const char *endpoints)
{
    char *at = strstr(text, endpoints);
    if (at != NULL)
        memset(at, 'x', (size_t)(strrchr(at, '@') - at));
}

void rdzv_config_hide(const options *opts, int argc, char **argv)
{
    if (opts->rdzv_endpoint == NULL || strchr(opts->rdzv_endpoint, '@') == NULL)
        return;
    for (int i = 1; i < argc; i++)
        hide(argv[i], opts->rdzv_endpoint);
    for (char **variable = environ; *variable != NULL; variable++)
        hide(*variable, opts->rdzv_endpoint);
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
    status st = read_endpoints(opts->rdzv_endpoint, &config);
    if (st != STATUS_OK && strchr(opts->rdzv_endpoint, '@') != NULL)
        return FAIL(STATUS_INVALID,
                    "--rdzv-endpoint, which is not shown as it may hold a password: expected "
                    "[https://][USER:PASSWORD@]HOST:PORT, a user for etcd alone, and in its name "
                    "and password %%2C for a comma, likewise of : / @ and %%");
    TRY(st);
    *out = config;
    return STATUS_OK;
}
