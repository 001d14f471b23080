#include "model/checkpoint.h"

#include "base/digest.h"
#include "base/file.h"
#include "base/json_text.h"
#include "base/log.h"
#include "base/memory.h"
#include "model/layers.h"
#include "model/network.h"
#include "model/optimizer.h"
#include "model/safetensors.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <float.h>
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* The folder of a run's checkpoints. */

enum {
    MIN_DIGITS = 8,
    MAX_DIGITS = 18, /* any number of that many digits fits in an int64_t */
    MAX_ASIDE = 100, /* temporary names of one step; leftovers may hold some */
    TEMPORARY_BYTES = 64,
};
static const char TEMPORARY[] = ".tmp";

status checkpoint_folder_path(const char *folder, int64_t step, char *out)
{
    char name[48];
    snprintf(name, sizeof name, "%08" PRId64, step);
    return file_join(folder, name, out);
}

/* "00000938.tmp", or "00000938.<i>.tmp". */
static void temporary_name(int64_t step, int i, char out[TEMPORARY_BYTES])
{
    if (i == 0)
        snprintf(out, TEMPORARY_BYTES, "%08" PRId64 "%s", step, TEMPORARY);
    else
        snprintf(out, TEMPORARY_BYTES, "%08" PRId64 ".%d%s", step, i, TEMPORARY);
}

static status temporary_path(const char *folder, int64_t step, int i, char *out)
{
    char name[TEMPORARY_BYTES];
    temporary_name(step, i, name);
    return file_join(folder, name, out);
}

/* Is `name` a step as we write it? */
static bool parse_step(const char *name, int64_t *step)
{
    size_t digits = strspn(name, "0123456789");
    if (digits < MIN_DIGITS || digits > MAX_DIGITS || name[digits] != '\0')
        return false;
    *step = strtoll(name, NULL, 10);
    return digits == MIN_DIGITS || name[0] != '0';
}

/* Is `name` one that temporary_name makes? Other folders must not be deleted. */
static bool is_temporary(const char *name)
{
    char ours[TEMPORARY_BYTES];
    int64_t step = 0;
    int i = 0;
    if (sscanf(name, "%18" SCNd64 ".%2d", &step, &i) < 1)
        return false;
    temporary_name(step, i, ours);
    return step >= 0 && strcmp(name, ours) == 0;
}

static int is_checkpoint(const struct dirent *entry)
{
    int64_t step = 0;
    return parse_step(entry->d_name, &step);
}

static int newest_first(const struct dirent **a, const struct dirent **b)
{
    int64_t left = 0, right = 0;
    (void)parse_step((*a)->d_name, &left);
    (void)parse_step((*b)->d_name, &right);
    return (left < right) - (left > right);
}

/* The steps of the checkpoints in `folder`, newest first, in memory that the caller frees; n = 0 if
 * there is no such folder. */
static status checkpoint_folder_list(const char *folder, int64_t **out, size_t *n_out)
{
    struct dirent **names = NULL;
    int n = scandir(folder, &names, is_checkpoint, newest_first);
    if (n < 0 && errno != ENOENT)
        return FAIL(errno == ENOMEM ? STATUS_NO_MEMORY : STATUS_IO, "read folder %s: %s", folder,
                    strerror(errno));
    size_t count = n > 0 ? (size_t)n : 0;
    int64_t *steps = calloc(count + 1, sizeof *steps);
    for (size_t i = 0; i < count; i++) {
        if (steps != NULL)
            (void)parse_step(names[i]->d_name, &steps[i]);
        free(names[i]);
    }
    free(names);
    if (steps == NULL)
        return FAIL(STATUS_NO_MEMORY, "%zu names in %s", count, folder);
    *out = steps;
    *n_out = count;
    return STATUS_OK;
}

/* Deletes a folder of plain files. */
static status checkpoint_folder_remove(const char *path)
{
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    DIR *dir = fd < 0 ? NULL : fdopendir(fd);
    if (dir == NULL) {
        status st = FAIL(STATUS_IO, "open folder %s: %s", path, strerror(errno));
        if (fd >= 0)
            close(fd);
        return st;
    }
    for (const struct dirent *entry = readdir(dir); entry != NULL; entry = readdir(dir))
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
            unlinkat(fd, entry->d_name, 0); /* rmdir fails if one stays */
    closedir(dir);
    if (rmdir(path) != 0)
        return FAIL(STATUS_IO, "delete folder %s: %s", path, strerror(errno));
    return STATUS_OK;
}

/* Deletes the leftovers of interrupted saves and deletions. What cannot be deleted is logged and
 * does no harm. */
static void checkpoint_folder_clean(const char *folder)
{
    char path[FILE_PATH_BYTES];
    DIR *dir = opendir(folder);
    if (dir == NULL)
        return;
    unlinkat(dirfd(dir), CHECKPOINT_BEST_DRAFT, 0);
    for (const struct dirent *entry = readdir(dir); entry != NULL; entry = readdir(dir)) {
        if (!is_temporary(entry->d_name))
            continue;
        status st = file_join(folder, entry->d_name, path);
        if (st == STATUS_OK)
            st = checkpoint_folder_remove(path);
        if (st != STATUS_OK)
            LOG_W("a leftover stays: %s", status_text());
    }
    closedir(dir);
}

/* Makes a new folder for the checkpoint of this step, "00000938.tmp" or one beside it if that name
 * is taken; its path into `temporary` (FILE_PATH_BYTES). */
static status checkpoint_folder_begin(const char *folder, int64_t step, char *temporary)
{
    for (int i = 0; i < MAX_ASIDE; i++) {
        TRY(temporary_path(folder, step, i, temporary));
        if (mkdir(temporary, 0777) == 0)
            return STATUS_OK;
        if (errno != EEXIST)
            break;
    }
    return FAIL(STATUS_IO, "make folder %s: %s", temporary, strerror(errno));
}

/* Gives a checkpoint a temporary name that nothing has; sets `aside` to it. */
static status move_aside(const char *folder, int64_t step, const char *path, char *aside)
{
    for (int i = 0; i < MAX_ASIDE; i++) {
        TRY(temporary_path(folder, step, i, aside));
        if (rename(path, aside) == 0)
            return STATUS_OK;
        if (errno != ENOTEMPTY && errno != EEXIST && errno != ENOTDIR)
            break;
    }
    return FAIL(STATUS_IO, "rename %s to %s: %s", path, aside, strerror(errno));
}

/* Exchanges old and new in one rename if the file system can. Otherwise the old one moves aside
 * first, and a crash between the two renames leaves this step without a checkpoint. */
static status replace(const char *folder, int64_t step, const char *from, const char *to)
{
    char aside[FILE_PATH_BYTES];
    if (renameat2(AT_FDCWD, from, AT_FDCWD, to, RENAME_EXCHANGE) == 0)
        return STATUS_OK;
    TRY(move_aside(folder, step, to, aside));
    return rename(from, to) == 0
               ? STATUS_OK
               : FAIL(STATUS_IO, "replace %s by %s: %s", to, from, strerror(errno));
}

/* Turns such a folder into the checkpoint, atomically, and makes that durable. An earlier one of
 * the same step is replaced. */
static status checkpoint_folder_commit(const char *folder, int64_t step, const char *temporary)
{
    char to[FILE_PATH_BYTES];
    TRY(checkpoint_folder_path(folder, step, to));
    if (rename(temporary, to) == 0)
        return file_sync_folder(folder);
    if (errno != ENOTEMPTY && errno != EEXIST)
        return FAIL(STATUS_IO, "rename %s to %s: %s", temporary, to, strerror(errno));
    TRY(replace(folder, step, temporary, to));
    TRY(file_sync_folder(folder));
    checkpoint_folder_clean(folder);
    return STATUS_OK;
}

/* Deletes a checkpoint: it is gone at once or not at all. */
static status checkpoint_folder_delete(const char *folder, int64_t step)
{
    char path[FILE_PATH_BYTES], aside[FILE_PATH_BYTES];
    TRY(checkpoint_folder_path(folder, step, path));
    TRY(move_aside(folder, step, path, aside));
    return checkpoint_folder_remove(aside);
}

/* state.json. */

enum { FORMAT = 2, FORMAT_OF_BEFORE = 1, MAX_FILE_BYTES = 1 << 16, HEX_BYTES = 17 };

/* The text after the hashed bytes. */
#define TAIL ",\n  \"hash\": \"%016" PRIx64 "\"\n}\n"
enum { TAIL_BYTES = sizeof ",\n  \"hash\": \"0123456789abcdef\"\n}\n" - 1 };

static const double MOST_COUNT = 9007199254740992.0; /* 2^53, exact in a double */

enum { INTEGER = false, REAL = true };
typedef enum presence { ALWAYS, OFTEN, RARE } presence;

/* The fields that are plain numbers, in the file's order. */
typedef struct field {
    const char *key;
    size_t offset;
    bool is_real;      /* a double; else an int64_t */
    presence presence; /* OFTEN: 0 if the file has none; RARE: the file has none if it is 0 */
    double least, most;
} field;

#define FIELD(key, member, ...) \
    { \
        key, offsetof(checkpoint_state, member), __VA_ARGS__ \
    }
static const field FIELDS[] = {
    FIELD("epoch", at.epoch, INTEGER, ALWAYS, 0, INT32_MAX),
    FIELD("step_in_epoch", at.step_in_epoch, INTEGER, ALWAYS, 0, INT32_MAX),
    FIELD("step", at.step, INTEGER, ALWAYS, 0, MOST_COUNT),
    FIELD("world_size", world.size, INTEGER, ALWAYS, 1, INT32_MAX),
    FIELD("batch_size", world.batch_size, INTEGER, ALWAYS, 1, INT32_MAX),
    FIELD("accum", world.accum, INTEGER, ALWAYS, 1, INT32_MAX),
    FIELD("optimizer_steps", optimizer_steps, INTEGER, ALWAYS, 0, MOST_COUNT),
    FIELD("loss_good_steps", loss_good_steps, INTEGER, OFTEN, 0, INT32_MAX),
    FIELD("loss_skipped_steps", loss_skipped_steps, INTEGER, OFTEN, 0, MOST_COUNT),
    FIELD("loss_overflow", loss_overflow, INTEGER, OFTEN, 0, UINT32_MAX),
    FIELD("epoch_samples", at.epoch_samples, INTEGER, OFTEN, 0, MOST_COUNT),
    FIELD("epoch_first", at.epoch_first, INTEGER, RARE, 0, UINT32_MAX),
    FIELD("world_changes", at.world_changes, INTEGER, RARE, 0, INT32_MAX),
    FIELD("tested_images", test.images, INTEGER, RARE, 0, UINT32_MAX),
    FIELD("tested_correct", test.correct, INTEGER, RARE, 0, UINT32_MAX),
    FIELD("lr", world.lr, REAL, ALWAYS, 0, DBL_MAX),
    FIELD("gamma", gamma, REAL, ALWAYS, 0, DBL_MAX),
    FIELD("momentum", momentum, REAL, ALWAYS, 0, DBL_MAX),
    FIELD("weight_decay", weight_decay, REAL, ALWAYS, 0, DBL_MAX),
    FIELD("loss_scale", loss_scale, REAL, OFTEN, 0, (double)FLT_MAX),
    FIELD("tested_loss", test.loss, REAL, RARE, 0, DBL_MAX),
};

enum { N_FIELDS = sizeof FIELDS / sizeof FIELDS[0] };

typedef union number {
    int64_t integer;
    double real;
} number;

static number number_of(const checkpoint_state *state, const field *f)
{
    number n;
    memcpy(&n, (const char *)state + f->offset, sizeof n);
    return n;
}

/* The largest loss of a sample in float32. A loss that is not finite is of a run that has diverged;
 * its state can be saved nevertheless. */
static bool loss_is_possible(const checkpoint_state *state)
{
    double most = 2.0 * (double)FLT_MAX * (double)state->at.epoch_samples;
    return isfinite(state->at.epoch_loss) ? fabs(state->at.epoch_loss) <= most
                                          : state->at.epoch_samples > 0;
}

/* What holds for the state of any run. */
static status check_state(const char *path, const checkpoint_state *state)
{
    for (int i = 0; i < N_FIELDS; i++) {
        const field *f = &FIELDS[i];
        double value = f->is_real ? number_of(state, f).real : (double)number_of(state, f).integer;
        if (!(value >= f->least && value <= f->most))
            return FAIL(STATUS_INVALID, "%s: \"%s\" is %.17g, which is not in %.17g to %.17g", path,
                        f->key, value, f->least, f->most);
    }
    double global_batch =
        (double)state->world.size * (double)state->world.batch_size * (double)state->world.accum;
    double updates = (double)state->at.step * (double)state->world.size; /* each rank's, at most */
    if (state->at.step_in_epoch > state->at.step || (double)state->optimizer_steps > updates)
        return FAIL(STATUS_INVALID,
                    "%s: \"step\" is %" PRId64 ", less than \"step_in_epoch\", %" PRId64
                    ", or too few for \"optimizer_steps\", %" PRId64,
                    path, state->at.step, state->at.step_in_epoch, state->optimizer_steps);
    /* Of those before epoch_first less than a round of ranks was repeated. */
    double most =
        global_batch * (double)state->at.step_in_epoch + 2.0 * (double)state->at.epoch_first;
    if ((double)state->at.epoch_samples > most)
        return FAIL(STATUS_INVALID,
                    "%s: \"epoch_samples\" is %" PRId64 ", more than %" PRId64
                    " steps of %.0f samples",
                    path, state->at.epoch_samples, state->at.step_in_epoch, global_batch);
    if (state->total_steps < 0 || (double)state->total_steps > MOST_COUNT)
        return FAIL(STATUS_INVALID, "%s: \"total_steps\" is %" PRId64, path, state->total_steps);
    if (state->test.correct > state->test.images)
        return FAIL(STATUS_INVALID, "%s: \"tested_correct\" is %" PRId64 ", of %" PRId64 " images",
                    path, state->test.correct, state->test.images);
    if (!loss_is_possible(state))
        return FAIL(STATUS_INVALID, "%s: \"epoch_loss\" is %g, of %" PRId64 " samples", path,
                    state->at.epoch_loss, state->at.epoch_samples);
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

static bool put_number(json_t *object, const field *f, number n)
{
    bool is_zero = f->is_real ? !(n.real > 0) : n.integer == 0;
    return (f->presence == RARE && is_zero) ||
           json_object_set_new(object, f->key,
                               f->is_real ? json_real(n.real) : json_integer(n.integer)) == 0;
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
    for (int i = 0; ok && i < N_FIELDS; i++)
        ok = put_number(object, &FIELDS[i], number_of(state, &FIELDS[i]));
    return ok && put_schedule(object, state) && put_loss(object, state->at.epoch_loss) &&
           put_text(object, "model_hash", model_hash) &&
           put_text(object, "optimizer_hash", optimizer_hash);
}

/* Writes a new file, synced. STATUS_INVALID names the number that is out of range: a file that
 * could not be read is not written. */
static status checkpoint_state_write(const char *path, const checkpoint_state *state)
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
    for (int i = 0; i < N_FIELDS; i++) {
        const field *f = &FIELDS[i];
        const json_t *value = json_object_get(object, f->key);
        if (value == NULL && f->presence != ALWAYS)
            continue;
        if (!(f->is_real ? json_is_number(value) : json_is_integer(value)))
            return FAIL(STATUS_INVALID, "%s: \"%s\" is not %s", path, f->key,
                        f->is_real ? "a number" : "an integer");
        number n = {.integer = json_integer_value(value)};
        if (f->is_real)
            n.real = json_number_value(value);
        memcpy((char *)out + f->offset, &n, sizeof n);
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
    TRY(get_loss(path, object, &out->at.epoch_loss));
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
    json_t *object = NULL;
    checkpoint_state state = {0};
    status st = json_text_value(text, size_bytes, path, &object);
    if (st == STATUS_OK && !json_is_object(object))
        st = FAIL(STATUS_INVALID, "%s: not a JSON object", path);
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

/* Whose arenas a checkpoint is about. */
typedef struct holder {
    network *net;
    optimizer *opt;                  /* NULL: of the parameters alone */
    const checkpoint_access *access; /* NULL: all of them are here */
} holder;

/* Arenas as a safetensors file: the parameters, or the optimizer's states. Arena a's tensor of a
 * parameter is named "<prefixes[a]>.<parameter>", or just "<parameter>" if the prefix is "". */
typedef struct checkpoint_arenas {
    size_t first; /* as checkpoint_access numbers them */
    size_t n;     /* at most OPTIMIZER_MAX_STATES */
    const char *prefixes[OPTIMIZER_MAX_STATES];
} checkpoint_arenas;

static const checkpoint_arenas PARAMETERS = {0, 1, {""}};

static checkpoint_arenas states_of(const holder *of)
{
    float *arenas[OPTIMIZER_MAX_STATES];
    checkpoint_arenas states = {.first = 1};
    ASSERT(of->access != NULL || optimizer_count(of->opt) == network_model_count(of->net));
    states.n = optimizer_states(of->opt, states.prefixes, arenas);
    return states;
}

float *checkpoint_arena(network *net, optimizer *opt, size_t arena)
{
    const char *names[OPTIMIZER_MAX_STATES];
    float *states[OPTIMIZER_MAX_STATES];
    if (arena == 0)
        return network_parameters(net);
    return arena <= optimizer_states(opt, names, states) ? states[arena - 1] : NULL;
}

static status read_arena(const holder *of, size_t arena, float *host)
{
    return of->access != NULL
               ? of->access->read(of->access->ctx, arena, host)
               : network_export(of->net, checkpoint_arena(of->net, of->opt, arena), host);
}

static status write_arena(const holder *of, size_t arena, const float *host)
{
    return of->access != NULL
               ? of->access->write(of->access->ctx, arena, host)
               : network_import(of->net, host, checkpoint_arena(of->net, of->opt, arena));
}

enum { TENSOR_NAME_BYTES = 64, MAX_TENSORS = OPTIMIZER_MAX_STATES * NETWORK_MAX_PARAMETERS };

static void join_name(const char *prefix, const char *parameter_name, char *out)
{
    int length = snprintf(out, TENSOR_NAME_BYTES, prefix[0] == '\0' ? "%s%s" : "%s.%s", prefix,
                          parameter_name);
    ASSERT(length > 0 && length < TENSOR_NAME_BYTES);
}

/* Writes the arenas; *hash as in safetensors_write. */
static status checkpoint_arenas_write(const char *path, const holder *of,
                                      const checkpoint_arenas *what,
                                      const safetensors_entry *metadata, size_t n_metadata,
                                      uint64_t *hash)
{
    ASSERT(what->n <= OPTIMIZER_MAX_STATES);
    char names[MAX_TENSORS][TENSOR_NAME_BYTES];
    safetensors_tensor tensors[MAX_TENSORS];
    const parameter *layout = NULL;
    size_t n = network_model_layout(of->net, &layout), count = network_model_count(of->net), at = 0;
    float *host = NULL;
    TRY(memory_alloc(sizeof *host * count * what->n, (void **)&host));
    status st = STATUS_OK;
    for (size_t a = 0; a < what->n && st == STATUS_OK; a++) {
        st = read_arena(of, what->first + a, host + a * count);
        for (size_t i = 0; i < n; i++, at++) {
            join_name(what->prefixes[a], layout[i].name, names[at]);
            tensors[at] = (safetensors_tensor){.name = names[at],
                                               .rank = layout[i].rank,
                                               .data = host + a * count + layout[i].offset};
            memcpy(tensors[at].shape, layout[i].shape, sizeof layout[i].shape);
        }
    }
    if (st == STATUS_OK)
        st = safetensors_write(path, tensors, at, metadata, n_metadata, hash);
    free(host);
    return st;
}

/* Every tensor of the file must be one of the arenas'. */
static status check_surplus(const safetensors *file, const network *net,
                            const checkpoint_arenas *what)
{
    const safetensors_tensor *tensors = NULL;
    const parameter *layout = NULL;
    size_t n = network_model_layout(net, &layout), n_tensors = safetensors_list(file, &tensors);
    for (size_t t = 0; t < n_tensors; t++) {
        bool known = false;
        for (size_t i = 0; i < n * what->n && !known; i++) {
            char name[TENSOR_NAME_BYTES];
            join_name(what->prefixes[i / n], layout[i % n].name, name);
            known = strcmp(name, tensors[t].name) == 0;
        }
        if (!known)
            return FAIL(STATUS_INVALID, "%s: has a tensor '%.64s' that does not belong there",
                        safetensors_path(file), tensors[t].name);
    }
    return STATUS_OK;
}

/* Copies them into `host`, one after the other, network_model_count() floats each in PyTorch's
 * order; the arenas themselves stay as they are. STATUS_INVALID if a tensor is missing, has another
 * shape or is unexpected. */
static status checkpoint_arenas_read(const safetensors *file, const network *net,
                                     const checkpoint_arenas *what, float *host)
{
    const parameter *layout = NULL;
    size_t n = network_model_layout(net, &layout);
    for (size_t i = 0; i < n * what->n; i++) {
        const parameter *p = &layout[i % n];
        const float *data = NULL;
        char name[TENSOR_NAME_BYTES];
        join_name(what->prefixes[i / n], p->name, name);
        TRY(safetensors_find(file, name, p->rank, p->shape, &data));
        memcpy(host + i / n * network_model_count(net) + p->offset, data, sizeof *data * p->count);
    }
    return check_surplus(file, net, what);
}

/* Reading: a model of any kind, and a whole checkpoint. */

enum { NAME_BYTES = 32 };

/* The model file for a path from the user: the file itself, or the one in a run's or a checkpoint's
 * folder. */
static status model_file(const char *path, char *out)
{
    struct stat info;
    if (stat(path, &info) != 0)
        return FAIL(STATUS_IO, "%s: %s", path, strerror(errno));
    if (S_ISDIR(info.st_mode))
        return file_join(path, CHECKPOINT_MODEL, out);
    if (strlen(path) >= FILE_PATH_BYTES)
        return FAIL(STATUS_INVALID, "path too long: %.64s...", path);
    strcpy(out, path);
    return STATUS_OK;
}

/* A model of PyTorch's; what DistributedDataParallel and DataParallel put before its names is left
 * out. */
static status open_model(const char *path, safetensors **out)
{
    char name[FILE_PATH_BYTES];
    TRY(model_file(path, name));
    TRY(safetensors_open(name, out));
    safetensors_strip(*out, "module.");
    return STATUS_OK;
}

static size_t elements_of(const safetensors_tensor *tensor)
{
    size_t count = 1;
    for (int d = 0; d < tensor->rank; d++)
        count *= (size_t)tensor->shape[d];
    return count;
}

/* How many of a model's weights the file has by name, and by name and size; both 0 if it is less
 * than half of them. */
typedef struct weights_found {
    size_t names, sizes;
} weights_found;

static weights_found find_weights(const safetensors *file, model_kind kind)
{
    char name[NAME_BYTES];
    size_t n, weights = 0;
    weights_found found = {0};
    const layer_spec *layers = model_kind_layers(kind, &n);
    for (size_t i = 0; i < n; i++) {
        if (layers[i].name == NULL)
            continue;
        snprintf(name, sizeof name, "%s.weight", layers[i].name);
        weights++;
        const safetensors_tensor *tensor = safetensors_lookup(file, name);
        size_t count = (size_t)layer_fan_in(&layers[i]) * (size_t)layers[i].out;
        found.names += tensor != NULL;
        found.sizes += tensor != NULL && elements_of(tensor) == count;
    }
    return found.names * 2 >= weights ? found : (weights_found){0};
}

/* Appends " mlp (fc1 fc2 fc3)" to this thread's text. */
static void append_layers(model_kind kind)
{
    size_t n, weights = 0;
    const layer_spec *layers = model_kind_layers(kind, &n);
    status_append(" %s", model_kind_name(kind));
    for (size_t i = 0; i < n; i++)
        if (layers[i].name != NULL)
            status_append("%s%s", weights++ == 0 ? " (" : " ", layers[i].name);
    status_append(")");
}

/* The model of which the file has the most weights: by name, of equals by size. One that is missing
 * is named when it is read. */
static status kind_of(const safetensors *file, model_kind *out)
{
    weights_found most = {0};
    for (int kind = 0; kind < MODEL_COUNT; kind++) {
        weights_found found = find_weights(file, (model_kind)kind);
        if (found.names > most.names || (found.names == most.names && found.sizes > most.sizes)) {
            most = found;
            *out = (model_kind)kind;
        }
    }
    if (most.names > 0)
        return STATUS_OK;
    status st = FAIL(STATUS_INVALID,
                     "%s: not the tensors of any model; there are:", safetensors_path(file));
    for (int kind = 0; kind < MODEL_COUNT; kind++)
        append_layers((model_kind)kind);
    return st;
}

status checkpoint_model_kind(const char *path, model_kind *out)
{
    safetensors *file = NULL;
    TRY(open_model(path, &file));
    status st = kind_of(file, out);
    safetensors_close(file);
    return st;
}

/* A checkpoint's three files, read. */
typedef struct checkpoint {
    checkpoint_state state;
    safetensors *model, *optimizer;
} checkpoint;

static void close_checkpoint(checkpoint *c)
{
    safetensors_close(c->model);
    safetensors_close(c->optimizer);
    *c = (checkpoint){0};
}

/* Opens one of the two tensor files. It must be the one that state.json was written for. */
static status open_tensors(const char *folder, const char *name, const checkpoint_state *state,
                           uint64_t hash, safetensors **out)
{
    char path[FILE_PATH_BYTES], want[24];
    safetensors *file = NULL;
    TRY(file_join(folder, name, path));
    TRY(safetensors_open(path, &file));
    const char *step = safetensors_metadata(file, "step");
    snprintf(want, sizeof want, "%" PRId64, state->at.step);
    status st = STATUS_OK;
    if (step != NULL && strcmp(step, want) != 0)
        st = FAIL(STATUS_INVALID, "%s: is of step %.24s, its folder's state.json of step %s", path,
                  step, want);
    else if (state->has_hashes && hash != safetensors_hash(file))
        st = FAIL(STATUS_INVALID,
                  "%s: is not the file that its folder's state.json was written for", path);
    if (st != STATUS_OK) {
        safetensors_close(file);
        return st;
    }
    *out = file;
    return STATUS_OK;
}

/* Reads a whole checkpoint. */
static status open_checkpoint(const char *path, checkpoint *out)
{
    char name[FILE_PATH_BYTES];
    model_kind kind = MODEL_MLP;
    checkpoint c = {0};
    TRY(file_join(path, CHECKPOINT_STATE, name));
    TRY(checkpoint_state_read(name, &c.state));
    status st = open_tensors(path, CHECKPOINT_MODEL, &c.state, c.state.model_hash, &c.model);
    if (st == STATUS_OK)
        st = kind_of(c.model, &kind);
    if (st == STATUS_OK && kind != c.state.model)
        st = FAIL(STATUS_INVALID, "%s: \"model\" is %s, its tensors are a %s's", name,
                  model_kind_name(c.state.model), model_kind_name(kind));
    if (st == STATUS_OK)
        st = open_tensors(path, CHECKPOINT_OPTIMIZER, &c.state, c.state.optimizer_hash,
                          &c.optimizer);
    if (st != STATUS_OK) {
        close_checkpoint(&c);
        return st;
    }
    *out = c;
    return STATUS_OK;
}

static status check_checkpoint(const char *path, int64_t step, checkpoint_state *state)
{
    checkpoint c;
    status st = open_checkpoint(path, &c);
    if (st != STATUS_OK)
        return st;
    if (c.state.at.step != step)
        st = FAIL(STATUS_INVALID,
                  "%s/" CHECKPOINT_STATE ": \"step\" is %" PRId64 ", unlike its folder's", path,
                  c.state.at.step);
    else
        *state = c.state;
    close_checkpoint(&c);
    return st;
}

status checkpoint_find(const char *run_dir, int64_t before, bool *found, checkpoint_state *state,
                       char path[FILE_PATH_BYTES])
{
    char folder[FILE_PATH_BYTES], candidate[FILE_PATH_BYTES];
    int64_t *steps = NULL;
    size_t n = 0, broken = 0;
    bool have = false;
    TRY(file_join(run_dir, CHECKPOINT_FOLDER, folder));
    TRY(checkpoint_folder_list(folder, &steps, &n));
    status st = STATUS_OK;
    for (size_t i = 0; i < n && !have && st == STATUS_OK; i++) {
        if (steps[i] >= before)
            continue;
        st = checkpoint_folder_path(folder, steps[i], candidate);
        if (st == STATUS_OK)
            st = check_checkpoint(candidate, steps[i], state);
        have = st == STATUS_OK;
        if (have || st == STATUS_NO_MEMORY)
            break;
        LOG_W("passing over a broken checkpoint: %s", status_text());
        broken++;
        st = STATUS_OK;
    }
    free(steps);
    if (st == STATUS_OK && broken > 0 && !have)
        st = status_context(STATUS_INVALID,
                            "%s: all %zu checkpoints are broken (delete them to start anew), the "
                            "oldest so",
                            folder, broken);
    if (st != STATUS_OK)
        return st;
    if (have)
        strcpy(path, candidate);
    *found = have;
    return STATUS_OK;
}

/* Reads the parameters into host memory. An error also says which model the file was taken for. */
static status read_model(const safetensors *file, network *net, float *host)
{
    status st = checkpoint_arenas_read(file, net, &PARAMETERS, host);
    status_kept why;
    model_kind kind = MODEL_MLP;
    if (st == STATUS_OK)
        return STATUS_OK;
    status_keep(&why);
    bool known = kind_of(file, &kind) == STATUS_OK;
    status_restore(&why);
    if (!known)
        return st;
    return kind == network_kind(net)
               ? status_context(st, "taken for a %s", model_kind_name(kind))
               : status_context(st, "its tensors are those of a %s, not of a %s",
                                model_kind_name(kind), model_kind_name(network_kind(net)));
}

status checkpoint_load_model(const char *path, network *net, const checkpoint_access *access)
{
    float *host = NULL;
    safetensors *file = NULL;
    const holder to = {net, NULL, access};
    TRY(open_model(path, &file));
    status st = memory_alloc(sizeof *host * network_model_count(net), (void **)&host);
    if (st == STATUS_OK)
        st = read_model(file, net, host);
    for (size_t i = 0; access != NULL && st == STATUS_OK && i < network_model_count(net); i++)
        if (!isfinite(host[i])) /* of a part that another rank has, the caller sees nothing */
            st = FAIL(STATUS_INVALID, "%s holds a weight that is not finite: give another file",
                      path);
    if (st == STATUS_OK)
        st = write_arena(&to, 0, host);
    free(host);
    safetensors_close(file);
    return st;
}

status checkpoint_load(const char *path, network *net, optimizer *opt,
                       const checkpoint_access *access)
{
    checkpoint c;
    const holder to = {net, opt, access};
    const checkpoint_arenas states = states_of(&to);
    size_t count = network_model_count(net);
    float *host = NULL;
    TRY(open_checkpoint(path, &c));
    /* Everything is read and checked before anything is changed. */
    status st = memory_alloc(sizeof *host * count * (1 + states.n), (void **)&host);
    if (st == STATUS_OK)
        st = read_model(c.model, net, host);
    if (st == STATUS_OK)
        st = checkpoint_arenas_read(c.optimizer, net, &states, host + count);
    for (size_t a = 0; a <= states.n && st == STATUS_OK; a++)
        st = write_arena(&to, a, host + count * a);
    if (st == STATUS_OK)
        optimizer_set_steps(opt, c.state.optimizer_steps);
    free(host);
    close_checkpoint(&c);
    return st;
}

/* The best of them. */

bool best_checkpoint_is_better(const checkpoint_test *a, const checkpoint_test *b)
{
    if (a->images == 0 || !isfinite(a->loss))
        return false;
    if (b->images == 0)
        return true;
    double right[] = {(double)a->correct * (double)b->images,
                      (double)b->correct * (double)a->images};
    return right[0] > right[1] || (!(right[0] < right[1]) && a->loss < b->loss);
}

/* Makes *best the checkpoint of this step if it is whole, and as good: steps come newest first, and
 * of equals the earliest is the best. What cannot be read is not. */
static void offer(const char *run_dir, int64_t step, bool *found, checkpoint_state *best)
{
    char folder[FILE_PATH_BYTES], path[FILE_PATH_BYTES], name[FILE_PATH_BYTES];
    checkpoint_state state = {0};
    if (file_join(run_dir, CHECKPOINT_FOLDER, folder) != STATUS_OK ||
        checkpoint_folder_path(folder, step, path) != STATUS_OK ||
        file_join(path, CHECKPOINT_STATE, name) != STATUS_OK ||
        checkpoint_state_read(name, &state) != STATUS_OK || state.test.images == 0 ||
        (*found && best_checkpoint_is_better(&best->test, &state.test)))
        return;
    bool whole = false;
    if (checkpoint_find(run_dir, step + 1, &whole, &state, path) == STATUS_OK && whole &&
        state.at.step == step) {
        *best = state;
        *found = true;
    }
}

status best_checkpoint_find(const char *run_dir, int64_t step, bool *found, checkpoint_state *out)
{
    char folder[FILE_PATH_BYTES];
    int64_t *steps = NULL;
    size_t n = 0;
    TRY(file_join(run_dir, CHECKPOINT_FOLDER, folder));
    TRY(checkpoint_folder_list(folder, &steps, &n));
    *found = false;
    for (size_t i = 0; i < n; i++)
        if (steps[i] <= step)
            offer(run_dir, steps[i], found, out);
    free(steps);
    return STATUS_OK;
}

status best_checkpoint_link(const char *run_dir, int64_t step)
{
    char folder[FILE_PATH_BYTES], draft[FILE_PATH_BYTES], link[FILE_PATH_BYTES], target[48];
    char now[48] = "";
    snprintf(target, sizeof target, "%08lld", (long long)step);
    TRY(file_join(run_dir, CHECKPOINT_FOLDER, folder));
    TRY(file_join(folder, CHECKPOINT_BEST_DRAFT, draft));
    TRY(file_join(folder, CHECKPOINT_BEST, link));
    if (readlink(link, now, sizeof now - 1) > 0 && strcmp(now, target) == 0)
        return STATUS_OK;
    unlink(draft); /* a killed run may have left it */
    if (symlink(target, draft) != 0)
        return FAIL(STATUS_IO, "make link %s: %s", draft, strerror(errno));
    if (rename(draft, link) == 0)
        return file_sync_folder(folder);
    status st = FAIL(STATUS_IO, "rename %s to %s: %s", draft, link, strerror(errno));
    unlink(draft);
    return st;
}

/* Saving. */

static const size_t MAX_MODEL_BYTES = (size_t)1 << 30;

/* Writes the three files of a checkpoint into the folder `path`. */
static status write_files(const char *path, const checkpoint_state *state, const holder *of)
{
    char file[FILE_PATH_BYTES], step[24];
    const checkpoint_arenas states = states_of(of);
    checkpoint_state written = *state;
    snprintf(step, sizeof step, "%" PRId64, state->at.step);
    safetensors_entry metadata[] = {
        {"writer", "mnist_ddp"}, {"model", model_kind_name(state->model)}, {"step", step}};
    TRY(file_join(path, CHECKPOINT_MODEL, file));
    TRY(checkpoint_arenas_write(file, of, &PARAMETERS, metadata, 3, &written.model_hash));
    TRY(file_join(path, CHECKPOINT_OPTIMIZER, file));
    TRY(checkpoint_arenas_write(file, of, &states, metadata, 3, &written.optimizer_hash));
    TRY(file_join(path, CHECKPOINT_STATE, file));
    written.optimizer_steps = optimizer_steps(of->opt);
    TRY(checkpoint_state_write(file, &written));
    return file_sync_folder(path);
}

/* Do both paths hold the same bytes? A file that cannot be read holds others. Digests of both would
 * take a sixth of the time in which a killed rank is back. */
static status same_content(const char *a, const char *b, bool *same)
{
    char *data[2] = {NULL, NULL};
    size_t size_bytes[2] = {0, 0};
    status st = file_read(a, MAX_MODEL_BYTES, &data[0], &size_bytes[0]);
    if (st == STATUS_OK)
        st = file_read(b, MAX_MODEL_BYTES, &data[1], &size_bytes[1]);
    *same = st == STATUS_OK && size_bytes[0] == size_bytes[1] &&
            memcmp(data[0], data[1], size_bytes[0]) == 0;
    free(data[0]);
    free(data[1]);
    return st == STATUS_NO_MEMORY ? st : STATUS_OK;
}

status checkpoint_is_published(const char *run_dir, const char *path, bool *out)
{
    char from[FILE_PATH_BYTES], to[FILE_PATH_BYTES];
    TRY(file_join(path, CHECKPOINT_MODEL, from));
    TRY(file_join(run_dir, CHECKPOINT_MODEL, to));
    return same_content(from, to, out);
}

status checkpoint_publish(const char *run_dir, const char *path)
{
    char from[FILE_PATH_BYTES], to[FILE_PATH_BYTES];
    TRY(file_join(path, CHECKPOINT_MODEL, from));
    TRY(file_join(run_dir, CHECKPOINT_MODEL, to));
    return file_copy(from, to);
}

status checkpoint_check_published(const char *run_dir, int64_t step)
{
    char path[FILE_PATH_BYTES];
    checkpoint_state state = {0};
    bool found = false;
    TRY(checkpoint_find(run_dir, step + 1, &found, &state, path));
    if (!found || state.at.step != step)
        return FAIL(STATUS_INVALID, "%s has no whole checkpoint of step %" PRId64, run_dir, step);
    bool published = false;
    TRY(checkpoint_is_published(run_dir, path, &published));
    return published ? STATUS_OK
                     : FAIL(STATUS_INVALID, "%s/" CHECKPOINT_MODEL " is not the model of %s",
                            run_dir, path);
}

static bool is_listed(const int64_t *steps, size_t n, int64_t step)
{
    bool found = false;
    for (size_t i = 0; i < n; i++)
        found = found || steps[i] == step;
    return found;
}

/* Deletes the checkpoints before that of `state`, which is saved, until state->keep are left. A
 * newer one may be broken, so none takes the place of the one that is known to be good. A failure
 * to delete is only logged. */
static void delete_older(const char *folder, const checkpoint_state *state)
{
    int64_t *steps = NULL, room = (state->keep > 0 ? state->keep : CHECKPOINT_KEEP) - 1;
    size_t n = 0;
    status st = checkpoint_folder_list(folder, &steps, &n);
    bool keeps_good = room > 0 &&
                      state->saved_step < state->at.step && /* the last save may be again */
                      is_listed(steps, n, state->saved_step);
    if (keeps_good)
        room--;
    for (size_t i = 0; i < n && st == STATUS_OK; i++) { /* the newest first */
        if (steps[i] >= state->at.step || (keeps_good && steps[i] == state->saved_step))
            continue;
        if (room > 0)
            room--;
        else if (steps[i] != state->best_step)
            st = checkpoint_folder_delete(folder, steps[i]);
    }
    if (st != STATUS_OK)
        LOG_W("an old checkpoint stays: %s", status_text());
    free(steps);
}

status checkpoint_save(const char *run_dir, const checkpoint_state *state, network *net,
                       optimizer *opt, const checkpoint_access *access)
{
    const holder of = {net, opt, access};
    char folder[FILE_PATH_BYTES], temporary[FILE_PATH_BYTES], path[FILE_PATH_BYTES];
    TRY(file_join(run_dir, CHECKPOINT_FOLDER, folder));
    TRY(checkpoint_folder_path(folder, state->at.step, path));
    TRY(file_make_folders(folder));
    checkpoint_folder_clean(folder);
    TRY(checkpoint_folder_begin(folder, state->at.step, temporary));
    status st = write_files(temporary, state, &of);
    if (st != STATUS_OK) {
        char why[1024];
        snprintf(why, sizeof why, "%s", status_text());
        if (checkpoint_folder_remove(temporary) != STATUS_OK)
            LOG_W("%s", status_text());
        return FAIL(st, "no checkpoint of step %" PRId64 ": %s", state->at.step, why);
    }
    TRY(checkpoint_folder_commit(folder, state->at.step, temporary));
    if (state->best_step == state->at.step &&
        best_checkpoint_link(run_dir, state->at.step) != STATUS_OK)
        LOG_W("%s/" CHECKPOINT_BEST " does not name the best checkpoint: %s", folder,
              status_text());
    delete_older(folder, state); /* also makes room for the copy */
    return checkpoint_publish(run_dir, path);
}
