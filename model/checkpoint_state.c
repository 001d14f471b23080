#include "model/checkpoint_state.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FORMAT = 1, MAX_FILE_BYTES = 1 << 16 };

/* The fields that are plain numbers, in the file's order. */
typedef struct field {
    const char *key;
    size_t offset;
    int64_t least; /* of an integer */
    bool optional; /* 0 where the file has none */
} field;

static const field INTEGERS[] = {
    {"epoch", offsetof(checkpoint_state, epoch), 0, false},
    {"step_in_epoch", offsetof(checkpoint_state, step_in_epoch), 0, false},
    {"sample_offset", offsetof(checkpoint_state, sample_offset), 0, false},
    {"step", offsetof(checkpoint_state, step), 0, false},
    {"world_size", offsetof(checkpoint_state, world_size), 1, false},
    {"batch_size", offsetof(checkpoint_state, batch_size), 1, false},
    {"accum", offsetof(checkpoint_state, accum), 1, false},
    {"optimizer_steps", offsetof(checkpoint_state, optimizer_steps), 0, false},
    {"loss_good_steps", offsetof(checkpoint_state, loss_good_steps), 0, true},
    {"loss_skipped_steps", offsetof(checkpoint_state, loss_skipped_steps), 0, true},
    {"loss_overflow", offsetof(checkpoint_state, loss_overflow), 0, true},
    {"epoch_samples", offsetof(checkpoint_state, epoch_samples), 0, true},
};

static const field REALS[] = {
    {"lr", offsetof(checkpoint_state, lr), 0, false},
    {"gamma", offsetof(checkpoint_state, gamma), 0, false},
    {"momentum", offsetof(checkpoint_state, momentum), 0, false},
    {"weight_decay", offsetof(checkpoint_state, weight_decay), 0, false},
    {"loss_scale", offsetof(checkpoint_state, loss_scale), 0, true},
    {"epoch_loss", offsetof(checkpoint_state, epoch_loss), 0, true},
};

enum {
    N_INTEGERS = sizeof INTEGERS / sizeof INTEGERS[0],
    N_REALS = sizeof REALS / sizeof REALS[0],
};

static bool is_hex(const char *text)
{
    while (isxdigit((unsigned char)*text))
        text++;
    return *text == '\0';
}

/* Fills the object; false where a value cannot be written or memory is short. */
static bool put_state(json_t *object, const checkpoint_state *state)
{
    const char *base = (const char *)state;
    char seed[24];
    /* A string: JSON's integers end at 2^63 - 1 here, and elsewhere at 2^53. */
    snprintf(seed, sizeof seed, "%" PRIu64, state->seed);
    bool ok = json_object_set_new(object, "format", json_integer(FORMAT)) == 0;
    const char *texts[][2] = {{"model", model_kind_name(state->model)},
                              {"optimizer", optimizer_kind_name(state->optimizer)},
                              {"seed", seed},
                              {"config_hash", state->config_hash}};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++)
        ok = ok && json_object_set_new(object, texts[i][0], json_string(texts[i][1])) == 0;
    if (state->job[0] != '\0')
        ok = ok && json_object_set_new(object, "job", json_string(state->job)) == 0;
    for (int i = 0; ok && i < N_INTEGERS; i++) {
        int64_t value = 0;
        memcpy(&value, base + INTEGERS[i].offset, sizeof value);
        ok = value >= INTEGERS[i].least &&
             json_object_set_new(object, INTEGERS[i].key, json_integer(value)) == 0;
    }
    for (int i = 0; ok && i < N_REALS; i++) {
        double value = 0.0;
        memcpy(&value, base + REALS[i].offset, sizeof value);
        ok = json_object_set_new(object, REALS[i].key, json_real(value)) == 0;
    }
    return ok && is_hex(state->config_hash);
}

status checkpoint_state_write(const char *path, const checkpoint_state *state)
{
    json_t *object = json_object();
    char *text = NULL;
    if (object != NULL && put_state(object, state))
        text = json_dumps(object, JSON_INDENT(2));
    json_decref(object);
    if (text == NULL)
        return FAIL(STATUS_INVALID, "%s: a number of the state is out of range, or no memory",
                    path);
    status st = file_write(path, (file_part[]){{text, strlen(text)}, {"\n", 1}}, 2);
    free(text);
    return st;
}

/* Decimal digits of a 64-bit number. */
static bool parse_seed(const char *text, uint64_t *out)
{
    char *end = NULL;
    if (text == NULL || !isdigit((unsigned char)text[0]))
        return false;
    errno = 0;
    *out = strtoull(text, &end, 10);
    return errno == 0 && *end == '\0';
}

static status get_texts(const char *path, const json_t *object, checkpoint_state *out)
{
    const char *model = json_string_value(json_object_get(object, "model"));
    const char *kind = json_string_value(json_object_get(object, "optimizer"));
    const char *hash = json_string_value(json_object_get(object, "config_hash"));
    if (model == NULL || model_kind_parse(model, &out->model) != STATUS_OK)
        return FAIL(STATUS_INVALID, "%s: \"model\" is not the name of a model", path);
    if (kind == NULL || optimizer_kind_parse(kind, &out->optimizer) != STATUS_OK)
        return FAIL(STATUS_INVALID, "%s: \"optimizer\" is not the name of an optimizer", path);
    if (hash == NULL || strlen(hash) >= sizeof out->config_hash || !is_hex(hash))
        return FAIL(STATUS_INVALID, "%s: \"config_hash\" is not a string of at most %zu hex digits",
                    path, sizeof out->config_hash - 1);
    strcpy(out->config_hash, hash);
    const char *job = json_string_value(json_object_get(object, "job"));
    snprintf(out->job, sizeof out->job, "%s", job != NULL ? job : "");
    if (!parse_seed(json_string_value(json_object_get(object, "seed")), &out->seed))
        return FAIL(STATUS_INVALID, "%s: \"seed\" is not a string of decimal digits", path);
    return STATUS_OK;
}

static status get_numbers(const char *path, const json_t *object, checkpoint_state *out)
{
    char *base = (char *)out;
    for (int i = 0; i < N_INTEGERS; i++) {
        const json_t *value = json_object_get(object, INTEGERS[i].key);
        if (value == NULL && INTEGERS[i].optional)
            continue;
        int64_t number = json_integer_value(value);
        if (!json_is_integer(value) || number < INTEGERS[i].least)
            return FAIL(STATUS_INVALID, "%s: \"%s\" is not an integer of at least %" PRId64, path,
                        INTEGERS[i].key, INTEGERS[i].least);
        memcpy(base + INTEGERS[i].offset, &number, sizeof number);
    }
    for (int i = 0; i < N_REALS; i++) {
        const json_t *value = json_object_get(object, REALS[i].key);
        if (value == NULL && REALS[i].optional)
            continue;
        double number = json_number_value(value);
        if (!json_is_number(value) || !isfinite(number))
            return FAIL(STATUS_INVALID, "%s: \"%s\" is not a number", path, REALS[i].key);
        memcpy(base + REALS[i].offset, &number, sizeof number);
    }
    return STATUS_OK;
}

status checkpoint_state_read(const char *path, checkpoint_state *out)
{
    char *text = NULL;
    size_t size_bytes = 0;
    TRY(file_read(path, MAX_FILE_BYTES, &text, &size_bytes));
    json_error_t error;
    json_t *object = json_loadb(text, size_bytes, JSON_REJECT_DUPLICATES, &error);
    free(text);
    checkpoint_state state = {0};
    status st = STATUS_OK;
    if (!json_is_object(object))
        st = FAIL(STATUS_INVALID, "%s: not a JSON object (line %d)", path, error.line);
    if (st == STATUS_OK && json_integer_value(json_object_get(object, "format")) != FORMAT)
        st = FAIL(STATUS_INVALID, "%s: \"format\" is not %d: written by another version", path,
                  FORMAT);
    if (st == STATUS_OK)
        st = get_texts(path, object, &state);
    if (st == STATUS_OK)
        st = get_numbers(path, object, &state);
    json_decref(object);
    if (st == STATUS_OK)
        *out = state;
    return st;
}
