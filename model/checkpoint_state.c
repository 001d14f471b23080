#include "model/checkpoint_state.h"

#include "base/digest.h"
#include "base/json_text.h"

#include <ctype.h>
#include <errno.h>
#include <float.h>
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FORMAT = 2, FORMAT_OF_BEFORE = 1, MAX_FILE_BYTES = 1 << 16, HEX_BYTES = 17 };

/* The text after the hashed bytes. */
#define TAIL ",\n  \"hash\": \"%016" PRIx64 "\"\n}\n"
enum { TAIL_BYTES = sizeof ",\n  \"hash\": \"0123456789abcdef\"\n}\n" - 1 };

static const double MOST_COUNT = 9007199254740992.0; /* 2^53, exact in a double */

/* The fields that are plain numbers, in the file's order. */
typedef struct field {
    const char *key;
    size_t offset;
    double least, most;
    bool optional; /* 0 if the file has none */
    bool rare;     /* the file has none if it is 0 */
} field;

#define INTEGER(name, least, most, optional) \
    { \
#name, offsetof(checkpoint_state, name), least, most, optional, false \
    }
static const field INTEGERS[] = {
    INTEGER(epoch, 0, INT32_MAX, false),
    INTEGER(step_in_epoch, 0, INT32_MAX, false),
    INTEGER(step, 0, MOST_COUNT, false),
    INTEGER(world_size, 1, INT32_MAX, false),
    INTEGER(batch_size, 1, INT32_MAX, false),
    INTEGER(accum, 1, INT32_MAX, false),
    INTEGER(optimizer_steps, 0, MOST_COUNT, false),
    INTEGER(loss_good_steps, 0, INT32_MAX, true),
    INTEGER(loss_skipped_steps, 0, MOST_COUNT, true),
    INTEGER(loss_overflow, 0, UINT32_MAX, true),
    INTEGER(epoch_samples, 0, MOST_COUNT, true),
    {"epoch_first", offsetof(checkpoint_state, epoch_first), 0, UINT32_MAX, true, true},
    {"world_changes", offsetof(checkpoint_state, world_changes), 0, INT32_MAX, true, true},
    {"tested_images", offsetof(checkpoint_state, test.images), 0, UINT32_MAX, true, true},
    {"tested_correct", offsetof(checkpoint_state, test.correct), 0, UINT32_MAX, true, true},
};

static const field REALS[] = {
    {"lr", offsetof(checkpoint_state, lr), 0, DBL_MAX, false, false},
    {"gamma", offsetof(checkpoint_state, gamma), 0, DBL_MAX, false, false},
    {"momentum", offsetof(checkpoint_state, momentum), 0, DBL_MAX, false, false},
    {"weight_decay", offsetof(checkpoint_state, weight_decay), 0, DBL_MAX, false, false},
    {"loss_scale", offsetof(checkpoint_state, loss_scale), 0, (double)FLT_MAX, true, false},
    {"tested_loss", offsetof(checkpoint_state, test.loss), 0, DBL_MAX, true, true},
};

enum {
    N_INTEGERS = sizeof INTEGERS / sizeof INTEGERS[0],
    N_REALS = sizeof REALS / sizeof REALS[0],
};

static int64_t integer_of(const checkpoint_state *state, const field *f)
{
    int64_t value = 0;
    memcpy(&value, (const char *)state + f->offset, sizeof value);
    return value;
}

static double real_of(const checkpoint_state *state, const field *f)
{
    double value = 0.0;
    memcpy(&value, (const char *)state + f->offset, sizeof value);
    return value;
}

static status out_of_range(const char *path, const field *f, double value)
{
    return FAIL(STATUS_INVALID, "%s: \"%s\" is %.17g, which is not in %.17g to %.17g", path, f->key,
                value, f->least, f->most);
}

/* The largest loss of a sample in float32. A loss that is not finite is of a run that has diverged;
 * its state can be saved nevertheless. */
static bool loss_is_possible(const checkpoint_state *state)
{
    double most = 2.0 * (double)FLT_MAX * (double)state->epoch_samples;
    return isfinite(state->epoch_loss) ? fabs(state->epoch_loss) <= most : state->epoch_samples > 0;
}

/* What holds for the state of any run. */
static status check_state(const char *path, const checkpoint_state *state)
{
    for (int i = 0; i < N_INTEGERS; i++) {
        double value = (double)integer_of(state, &INTEGERS[i]);
        if (value < INTEGERS[i].least || value > INTEGERS[i].most)
            return out_of_range(path, &INTEGERS[i], value);
    }
    for (int i = 0; i < N_REALS; i++) {
        double value = real_of(state, &REALS[i]);
        if (!(value >= REALS[i].least && value <= REALS[i].most))
            return out_of_range(path, &REALS[i], value);
    }
    double global_batch =
        (double)state->world_size * (double)state->batch_size * (double)state->accum;
    if (state->step_in_epoch > state->step || state->optimizer_steps > state->step)
        return FAIL(STATUS_INVALID,
                    "%s: \"step\" is %" PRId64 ", less than \"step_in_epoch\", %" PRId64
                    ", or \"optimizer_steps\", %" PRId64,
                    path, state->step, state->step_in_epoch, state->optimizer_steps);
    /* Of those before epoch_first less than a round of ranks was repeated. */
    double most = global_batch * (double)state->step_in_epoch + 2.0 * (double)state->epoch_first;
    if ((double)state->epoch_samples > most)
        return FAIL(STATUS_INVALID,
                    "%s: \"epoch_samples\" is %" PRId64 ", more than %" PRId64
                    " steps of %.0f samples",
                    path, state->epoch_samples, state->step_in_epoch, global_batch);
    if (state->total_steps < 0 || (double)state->total_steps > MOST_COUNT)
        return FAIL(STATUS_INVALID, "%s: \"total_steps\" is %" PRId64, path, state->total_steps);
    if (state->test.correct > state->test.images)
        return FAIL(STATUS_INVALID, "%s: \"tested_correct\" is %" PRId64 ", of %" PRId64 " images",
                    path, state->test.correct, state->test.images);
    if (!loss_is_possible(state))
        return FAIL(STATUS_INVALID, "%s: \"epoch_loss\" is %g, of %" PRId64 " samples", path,
                    state->epoch_loss, state->epoch_samples);
    return STATUS_OK;
}

static bool is_hex(const char *text)
{
    while (isxdigit((unsigned char)*text))
        text++;
    return *text == '\0';
}

static bool put_text(json_t *object, const char *key, const char *text)
{
    return json_object_set_new(object, key, json_string(text)) == 0;
}

static bool put_rare(json_t *object, const char *key, const char *text)
{
    return text[0] == '\0' || put_text(object, key, text);
}

static void get_rare(const json_t *object, const char *key, char *out, size_t size_bytes)
{
    const char *text = json_string_value(json_object_get(object, key));
    snprintf(out, size_bytes, "%s", text != NULL ? text : "");
}

static bool put_real(json_t *object, const field *f, double value)
{
    bool is_zero = !(value > 0 || value < 0);
    return (f->rare && is_zero) || json_object_set_new(object, f->key, json_real(value)) == 0;
}

/* JSON has only finite numbers; others are written as strings. */
static bool put_loss(json_t *object, double loss)
{
    if (isfinite(loss))
        return json_object_set_new(object, "epoch_loss", json_real(loss)) == 0;
    return put_text(object, "epoch_loss", isnan(loss) ? "nan" : loss > 0 ? "inf" : "-inf");
}

/* Nothing for the schedule of files of before, which have none. */
static bool put_schedule(json_t *object, const checkpoint_state *state)
{
    return state->schedule == SCHEDULE_STEP ||
           (put_text(object, "schedule", schedule_kind_name(state->schedule)) &&
            json_object_set_new(object, "total_steps", json_integer(state->total_steps)) == 0);
}

/* Fills the object; false if memory is short. */
static bool put_state(json_t *object, const checkpoint_state *state)
{
    char seed[24], model_hash[HEX_BYTES], optimizer_hash[HEX_BYTES];
    /* Strings: JSON integers are limited to 2^63 - 1 here, and to 2^53 in other readers. */
    snprintf(seed, sizeof seed, "%" PRIu64, state->seed);
    snprintf(model_hash, sizeof model_hash, "%016" PRIx64, state->model_hash);
    snprintf(optimizer_hash, sizeof optimizer_hash, "%016" PRIx64, state->optimizer_hash);
    bool ok = json_object_set_new(object, "format", json_integer(FORMAT)) == 0 &&
              put_text(object, "model", model_kind_name(state->model)) &&
              put_text(object, "optimizer", optimizer_kind_name(state->optimizer)) &&
              put_text(object, "seed", seed) && put_text(object, "config_hash", state->config_hash);
    ok = ok && put_rare(object, "job", state->launch) && put_rare(object, "data", state->data) &&
         put_rare(object, "sums", state->sums);
    for (int i = 0; ok && i < N_INTEGERS; i++) {
        int64_t value = integer_of(state, &INTEGERS[i]);
        ok = (INTEGERS[i].rare && value == 0) ||
             json_object_set_new(object, INTEGERS[i].key, json_integer(value)) == 0;
    }
    for (int i = 0; ok && i < N_REALS; i++)
        ok = put_real(object, &REALS[i], real_of(state, &REALS[i]));
    return ok && put_schedule(object, state) && put_loss(object, state->epoch_loss) &&
           put_text(object, "model_hash", model_hash) &&
           put_text(object, "optimizer_hash", optimizer_hash);
}

status checkpoint_state_write(const char *path, const checkpoint_state *state)
{
    char *text = NULL, tail[TAIL_BYTES + 1];
    TRY(check_state(path, state));
    if (!is_hex(state->config_hash))
        return FAIL(STATUS_INVALID, "%s: \"config_hash\" is not hex digits", path);
    json_t *object = json_object();
    if (object != NULL && put_state(object, state))
        text = json_dumps(object, JSON_INDENT(2));
    json_decref(object);
    if (text == NULL)
        return FAIL(STATUS_NO_MEMORY, "%s: a run's state", path);
    size_t hashed_bytes = strlen(text) - strlen("\n}");
    snprintf(tail, sizeof tail, TAIL, fnv1a(FNV1A_START, text, hashed_bytes));
    status st = file_write(path, (file_part[]){{text, hashed_bytes}, {tail, TAIL_BYTES}}, 2);
    free(text);
    return st;
}

/* Whether the last line is the hash of the bytes before it. */
static bool tail_is_right(const char *text, size_t size_bytes)
{
    char tail[TAIL_BYTES + 1];
    if (size_bytes < TAIL_BYTES)
        return false;
    size_t hashed_bytes = size_bytes - TAIL_BYTES;
    snprintf(tail, sizeof tail, TAIL, fnv1a(FNV1A_START, text, hashed_bytes));
    return memcmp(text + hashed_bytes, tail, TAIL_BYTES) == 0;
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
    get_rare(object, "job", out->launch, sizeof out->launch);
    get_rare(object, "data", out->data, sizeof out->data);
    get_rare(object, "sums", out->sums, sizeof out->sums);
    if (!parse_seed(json_string_value(json_object_get(object, "seed")), &out->seed))
        return FAIL(STATUS_INVALID, "%s: \"seed\" is not a string of decimal digits", path);
    return STATUS_OK;
}

/* check_state checks their ranges. */
static status get_numbers(const char *path, const json_t *object, checkpoint_state *out)
{
    char *base = (char *)out;
    for (int i = 0; i < N_INTEGERS; i++) {
        const json_t *value = json_object_get(object, INTEGERS[i].key);
        if (value == NULL && INTEGERS[i].optional)
            continue;
        int64_t number = json_integer_value(value);
        if (!json_is_integer(value))
            return FAIL(STATUS_INVALID, "%s: \"%s\" is not an integer", path, INTEGERS[i].key);
        memcpy(base + INTEGERS[i].offset, &number, sizeof number);
    }
    for (int i = 0; i < N_REALS; i++) {
        const json_t *value = json_object_get(object, REALS[i].key);
        if (value == NULL && REALS[i].optional)
            continue;
        double number = json_number_value(value);
        if (!json_is_number(value))
            return FAIL(STATUS_INVALID, "%s: \"%s\" is not a number", path, REALS[i].key);
        memcpy(base + REALS[i].offset, &number, sizeof number);
    }
    return STATUS_OK;
}

static status get_loss(const char *path, const json_t *object, double *out)
{
    static const struct {
        const char *text;
        double loss;
    } others[] = {{"nan", (double)NAN}, {"inf", HUGE_VAL}, {"-inf", -HUGE_VAL}};
    const json_t *value = json_object_get(object, "epoch_loss");
    const char *text = json_string_value(value);
    for (size_t i = 0; text != NULL && i < sizeof others / sizeof others[0]; i++)
        if (strcmp(text, others[i].text) == 0) {
            *out = others[i].loss;
            return STATUS_OK;
        }
    *out = json_number_value(value); /* 0 if there is none */
    return value == NULL || json_is_number(value)
               ? STATUS_OK
               : FAIL(STATUS_INVALID, "%s: \"epoch_loss\" is not a number", path);
}

static status get_schedule(const char *path, const json_t *object, checkpoint_state *out)
{
    const json_t *name = json_object_get(object, "schedule");
    const json_t *steps = json_object_get(object, "total_steps");
    const char *text = json_string_value(name);
    if (name == NULL)
        return STATUS_OK;
    if (text == NULL || schedule_kind_parse(text, &out->schedule) != STATUS_OK)
        return FAIL(STATUS_INVALID, "%s: \"schedule\" is not the name of a schedule", path);
    out->total_steps = json_integer_value(steps);
    return json_is_integer(steps)
               ? STATUS_OK
               : FAIL(STATUS_INVALID, "%s: \"total_steps\" is not an integer", path);
}

static status get_hash(const char *path, const json_t *object, const char *key, uint64_t *out)
{
    const char *text = json_string_value(json_object_get(object, key));
    if (text == NULL || strlen(text) != HEX_BYTES - 1 || !is_hex(text))
        return FAIL(STATUS_INVALID, "%s: \"%s\" is not a string of %d hex digits", path, key,
                    HEX_BYTES - 1);
    *out = strtoull(text, NULL, 16);
    return STATUS_OK;
}

static status get_state(const char *path, const json_t *object, checkpoint_state *out)
{
    out->has_hashes = json_integer_value(json_object_get(object, "format")) == FORMAT;
    TRY(get_texts(path, object, out));
    TRY(get_numbers(path, object, out));
    TRY(get_schedule(path, object, out));
    TRY(get_loss(path, object, &out->epoch_loss));
    if (out->has_hashes) {
        TRY(get_hash(path, object, "model_hash", &out->model_hash));
        TRY(get_hash(path, object, "optimizer_hash", &out->optimizer_hash));
    }
    return check_state(path, out);
}

/* STATUS_INVALID unless the text is a state of a known format and its hash is right. */
static status check_text(const char *path, const json_t *object, const char *text,
                         size_t size_bytes)
{
    json_int_t format = json_integer_value(json_object_get(object, "format"));
    if (format != FORMAT && format != FORMAT_OF_BEFORE)
        return FAIL(STATUS_INVALID,
                    "%s: \"format\" is neither %d nor %d: written by another version", path,
                    FORMAT_OF_BEFORE, FORMAT);
    if (format == FORMAT && !tail_is_right(text, size_bytes))
        return FAIL(STATUS_INVALID, "%s: damaged or edited: its hash is not that of its text",
                    path);
    return STATUS_OK;
}

status checkpoint_state_read(const char *path, checkpoint_state *out)
{
    char *text = NULL;
    size_t size_bytes = 0;
    TRY(file_read(path, MAX_FILE_BYTES, &text, &size_bytes));
    json_error_t error;
    json_t *object = json_text_parse(text, size_bytes, JSON_REJECT_DUPLICATES, &error);
    checkpoint_state state = {0};
    status st = STATUS_OK;
    if (object == NULL && json_error_code(&error) == json_error_out_of_memory)
        st = FAIL(STATUS_NO_MEMORY, "%s", path);
    else if (!json_is_object(object))
        st = FAIL(STATUS_INVALID, "%s: not a JSON object (line %d)", path, error.line);
    if (st == STATUS_OK)
        st = check_text(path, object, text, size_bytes);
    if (st == STATUS_OK)
        st = get_state(path, object, &state);
    json_decref(object);
    free(text);
    if (st == STATUS_OK)
        *out = state;
    return st;
}
