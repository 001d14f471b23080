#include "app/launch/rdzv_config.h"

#include "app/options/nearest.h"
#include "base/comma_list.h"
#include "base/log.h"
#include "base/number.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

enum { SHOWN_BYTES = 80, WORD_BYTES = 128, WEEK_S = 604800, MAX_MISSES = 1000 };

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
    static const char *const others[] = {"last_call_timeout", "close_timeout",    "read_timeout",
                                         "store_type",        "use_libuv",        "rank",
                                         "protocol",          "heartbeat_timeout"};
    static const char *const ours[] = {"join_timeout", "timeout", "keep_alive_interval",
                                       "keep_alive_max_attempt", "is_host"};
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

status rdzv_config_read(const char *text, rdzv_config *out)
{
    rdzv_config config = {-1, -1, -1, -1};
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
        TRY(take_pair(pair, equals + 1, &config));
    }
    *out = config;
    return STATUS_OK;
}
