#include "app/common/run_files.h"

#include "app/common/json_value.h"
#include "base/file.h"
#include "base/host.h"
#include "base/json_text.h"
#include "base/log.h"
#include "base/text.h"
#include "model/checkpoint.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

enum { MAX_NAMESAKES = 1000 }; /* made in the same second */

status runs_folder_make(const char *what, char *path)
{
    time_t now = time(NULL);
    struct tm local;
    char stamp[32];
    bool made = false;
    strftime(stamp, sizeof stamp, "%Y%m%d-%H%M%S", localtime_r(&now, &local));
    for (int i = 1; i <= MAX_NAMESAKES && !made; i++) {
        int length = snprintf(path, FILE_PATH_BYTES, "runs/%s-%.64s", stamp, what);
        if (i > 1)
            snprintf(path + length, FILE_PATH_BYTES - (size_t)length, "-%d", i);
        TRY(file_make_new_folder(path, &made));
    }
    return made ? STATUS_OK
                : FAIL(STATUS_IO, "%s is there already, and %d like it", path, MAX_NAMESAKES);
}

/* Of two files of the same instant, the one in the folder whose name is the later one. */
static bool is_newer(const struct stat *file, const char *folder, const struct stat *newest,
                     const char *newest_folder)
{
    const struct timespec a = file->st_mtim, b = newest->st_mtim;
    if (a.tv_sec != b.tv_sec)
        return a.tv_sec > b.tv_sec;
    return a.tv_nsec != b.tv_nsec ? a.tv_nsec > b.tv_nsec : strcmp(folder, newest_folder) > 0;
}

status runs_folder_newest(const char *file, char *path, bool *found)
{
    struct stat newest = {0};
    *found = false;
    DIR *folder = opendir("runs");
    if (folder == NULL)
        return errno == ENOENT ? STATUS_OK : FAIL(STATUS_IO, "runs: %s", strerror(errno));
    for (struct dirent *entry = readdir(folder); entry != NULL; entry = readdir(folder)) {
        char run[FILE_PATH_BYTES], inside[FILE_PATH_BYTES];
        struct stat info;
        if (entry->d_name[0] == '.')
            continue;
        snprintf(run, sizeof run, "runs/%s", entry->d_name);
        if (file_join(run, file, inside) != STATUS_OK || stat(inside, &info) != 0 ||
            !S_ISREG(info.st_mode) || (*found && !is_newer(&info, run, &newest, path)))
            continue;
        newest = info;
        strcpy(path, run);
        *found = true;
    }
    closedir(folder);
    return STATUS_OK;
}

status runs_folder_model(const char *named, char *path)
{
    bool found = false;
    if (named != NULL && strlen(named) >= FILE_PATH_BYTES)
        return FAIL(STATUS_INVALID, "%.80s...: the path is too long", named);
    if (named != NULL) {
        strcpy(path, named);
        return STATUS_OK;
    }
    TRY(runs_folder_newest(CHECKPOINT_MODEL, path, &found));
    if (!found)
        return FAIL(STATUS_INVALID,
                    "no folder in ./runs has a model yet: train one (mnist_ddp --epochs=1), or "
                    "name one by its folder or safetensors file: predict RUN, eval RUN, "
                    "serve RUN");
    LOG_V("the newest model: %s", path);
    return STATUS_OK;
}

enum {
    FORMAT = 1,
    LIMIT_BYTES = 1 << 20,
    NUMBER_BYTES = 32,
    EXACT_DIGITS = 17, /* enough for any double */
};

void run_config_date(char out[RUN_CONFIG_DATE_BYTES])
{
    struct tm utc;
    time_t now = time(NULL);
    strftime(out, RUN_CONFIG_DATE_BYTES, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&now, &utc));
}

json_t *run_config_command(const options *opts)
{
    json_t *words = json_array();
    for (char **word = opts->command_line; word != NULL && *word != NULL; word++)
        json_array_append_new(words, json_value_text(*word));
    return words;
}

/* The fewest digits, but not under 15, that give the same double back. */
static int digits_of(double value)
{
    char text[NUMBER_BYTES];
    int digits = 15;
    for (; digits < EXACT_DIGITS; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, value);
        double back = strtod(text, NULL);
        if (back >= value && back <= value)
            break;
    }
    return digits;
}

/* The key of a flag: "batch_size". */
static void name_key(const char *name, char out[OPTION_NAME_BYTES])
{
    snprintf(out, OPTION_NAME_BYTES, "%s", name);
    for (char *c = out; *c != '\0'; c++)
        *c = *c == '-' ? '_' : *c;
}

/* A number without a default is negative if it was not given. */
static json_t *value_of(const option_row *row, const options *opts)
{
    const char *field = (const char *)opts + row->offset;
    const char *text;
    int64_t integer;
    double real;
    switch (row->kind) {
    case OPTION_INTEGER:
        integer = *(const int64_t *)(const void *)field;
        return integer < 0 && row->initial == NULL ? json_null() : json_integer(integer);
    case OPTION_REAL:
        real = *(const double *)(const void *)field;
        return real < 0 && row->initial == NULL ? json_null() : json_real(real);
    case OPTION_SWITCH:
        return json_boolean(*(const bool *)field);
    case OPTION_TEXT:
    case OPTION_WORD:
    case OPTION_MODE:
        text = *(char *const *)(const void *)field;
        if (row->offset == offsetof(options, rdzv_endpoint) && text != NULL && strchr(text, '@'))
            text = strrchr(text, '@') + 1; /* no password */
        return text != NULL ? json_value_text(text) : json_null();
    case OPTION_REFUSED:
    case OPTION_HELP:
    case OPTION_VERSION:
        break;
    }
    return NULL;
}

/* One line: a key and its value. */
static status write_member(FILE *out, const char *key, const json_t *value, int digits)
{
    char *text = NULL;
    TRY(json_text_print(value, JSON_COMPACT | JSON_ENCODE_ANY | JSON_REAL_PRECISION((size_t)digits),
                        &text));
    fprintf(out, " \"%s\": %s", key, text);
    free(text);
    return STATUS_OK;
}

static status write_setting(FILE *out, const option_row *row, const options *opts)
{
    char key[OPTION_NAME_BYTES];
    name_key(row->name, key);
    json_t *setting = json_object(), *value = value_of(row, opts);
    int digits = json_is_real(value) ? digits_of(json_real_value(value)) : EXACT_DIGITS;
    option_source origin = (option_source)opts->given[row - options_table];
    json_object_set_new(setting, "value", value);
    json_object_set_new(setting, "origin", json_string(options_value_source_name(origin)));
    status st = write_member(out, key, setting, digits);
    json_decref(setting);
    return st;
}

static status write_settings(FILE *out, const options *opts)
{
    const char *between = "";
    fputs(" \"settings\": {\n", out);
    for (size_t i = 0; i < options_table_count; i++) {
        const option_row *row = &options_table[i];
        if ((row->commands & FOR_TRAIN) == 0 || row->kind >= OPTION_REFUSED)
            continue;
        fputs(between, out);
        TRY(write_setting(out, row, opts));
        between = ",\n";
    }
    fputs("}", out);
    return STATUS_OK;
}

/* Those that the file has, and this one. */
static status list_starts(const char *folder, const run_start *start, json_t **out)
{
    run_config before = {0};
    status st = start->step > 0 ? run_config_read(folder, &before) : STATUS_OK;
    if (st == STATUS_NO_MEMORY)
        return st;
    json_t *list = json_array(), *this_one = json_object();
    json_array_extend(list, json_object_get(before.document, "starts"));
    run_config_close(&before);
    json_object_set_new(this_one, "date", json_string(start->date));
    json_object_set_new(this_one, "step", json_integer(start->step));
    json_array_append_new(list, this_one);
    *out = list;
    return STATUS_OK;
}

static status write_document(FILE *out, const char *folder, const run_start *start)
{
    enum { N = 4 };
    const char *const keys[N] = {"date", "command", "starts", "run"};
    json_t *starts = NULL;
    TRY(list_starts(folder, start, &starts));
    json_t *values[N] = {json_string(start->date), run_config_command(start->opts), starts,
                         json_deep_copy(start->run)};
    status st = STATUS_OK;
    fprintf(out, "{\"format\": %d", FORMAT);
    for (int i = 0; i < N && st == STATUS_OK; i++) {
        fputs(",\n", out);
        st = write_member(out, keys[i], values[i], 10);
    }
    fputs(",\n", out);
    if (st == STATUS_OK)
        st = write_settings(out, start->opts);
    fputs("}\n", out);
    for (int i = 0; i < N; i++)
        json_decref(values[i]);
    return st;
}

status run_config_write(const char *folder, const run_start *start)
{
    char path[FILE_PATH_BYTES];
    text_stream stream;
    TRY(file_join(folder, RUN_FILE_CONFIG, path));
    TRY(text_stream_open(&stream));
    return text_stream_save(&stream, write_document(stream.file, folder, start), path);
}

status run_config_read(const char *folder, run_config *out)
{
    char path[FILE_PATH_BYTES];
    json_t *document = NULL;
    TRY(file_join(folder, RUN_FILE_CONFIG, path));
    *out = (run_config){0};
    if (!file_exists(path))
        return STATUS_OK;
    TRY(json_text_read(path, LIMIT_BYTES, &document));
    if (json_integer_value(json_object_get(document, "format")) != FORMAT ||
        !json_is_object(json_object_get(document, "settings"))) {
        json_decref(document);
        return FAIL(STATUS_INVALID, "%s: no settings of a run, in the format %d", path, FORMAT);
    }
    out->document = document;
    return STATUS_OK;
}

status run_config_find(const char *path, char run[FILE_PATH_BYTES], run_config *out)
{
    char above[FILE_PATH_BYTES];
    struct stat info;
    if (strlen(path) >= FILE_PATH_BYTES)
        return FAIL(STATUS_INVALID, "%.80s...: the path is too long", path);
    if (stat(path, &info) == 0 && !S_ISDIR(info.st_mode))
        file_folder_of(path, run);
    else
        strcpy(run, path);
    TRY(run_config_read(run, out));
    file_folder_of(run, above);
    const char *slash = strrchr(above, '/');
    if (out->document != NULL || strcmp(slash != NULL ? slash + 1 : above, CHECKPOINT_FOLDER) != 0)
        return STATUS_OK;
    file_folder_of(above, run);
    return run_config_read(run, out);
}

void run_config_close(run_config *config)
{
    json_decref(config->document);
    *config = (run_config){0};
}

/* Returns false if it is no value of a setting. */
static bool print_value(const json_t *value, char number[NUMBER_BYTES], const char **out)
{
    *out = number;
    if (json_is_string(value))
        *out = json_string_value(value);
    else if (json_is_integer(value))
        snprintf(number, NUMBER_BYTES, "%lld", (long long)json_integer_value(value));
    else if (json_is_real(value))
        snprintf(number, NUMBER_BYTES, "%.*g", digits_of(json_real_value(value)),
                 json_real_value(value));
    else if (json_is_boolean(value))
        *out = json_is_true(value) ? "true" : "false";
    else
        *out = NULL;
    return *out != NULL || json_is_null(value);
}

status run_config_text(const option_row *row, const options *opts, char **out)
{
    char number[NUMBER_BYTES];
    const char *text = NULL;
    json_t *value = value_of(row, opts);
    bool known = print_value(value, number, &text);
    if (!known) /* else it is of a kind that has one */
        return FAIL(STATUS_NO_MEMORY, "the value of --%s", row->name);
    char *copy = text != NULL ? strdup(text) : NULL;
    json_decref(value);
    if (text != NULL && copy == NULL)
        return FAIL(STATUS_NO_MEMORY, "the value of --%s", row->name);
    *out = copy;
    return STATUS_OK;
}

static bool find_source(const char *name, option_source *out)
{
    for (int i = SOURCE_DEFAULT; name != NULL && i <= SOURCE_COMMAND_LINE; i++)
        if (strcmp(name, options_value_source_name((option_source)i)) == 0) {
            *out = (option_source)i;
            return true;
        }
    return false;
}

status run_config_setting(const run_config *config, const char *name, bool *found, char **text,
                          option_source *origin)
{
    char key[OPTION_NAME_BYTES], number[NUMBER_BYTES];
    const char *value;
    option_source source;
    name_key(name, key);
    const json_t *setting = json_object_get(json_object_get(config->document, "settings"), key);
    *found = false;
    if (setting == NULL)
        return STATUS_OK;
    if (!print_value(json_object_get(setting, "value"), number, &value) ||
        !find_source(json_string_value(json_object_get(setting, "origin")), &source))
        return FAIL(STATUS_INVALID, "%s: setting %s has no value with an origin", RUN_FILE_CONFIG,
                    key);
    char *copy = value != NULL ? strdup(value) : NULL;
    if (value != NULL && copy == NULL)
        return FAIL(STATUS_NO_MEMORY, "%s: %zu bytes", RUN_FILE_CONFIG, strlen(value));
    *found = true;
    *text = copy;
    *origin = source;
    return STATUS_OK;
}

/* The --data-dir that the run was given, else the folder that it found. */
static status find_data_folder(const run_config *config, data_source *out)
{
    bool found = false;
    option_source origin;
    TRY(run_config_setting(config, "data-dir", &found, &out->folder, &origin));
    out->is_given = out->folder != NULL;
    if (out->is_given || environment_text("MNIST_DDP_DATA") != NULL)
        return STATUS_OK;
    const char *place =
        json_string_value(json_object_get(json_object_get(config->document, "run"), "data_folder"));
    out->folder = place != NULL ? strdup(place) : NULL;
    if (place != NULL && out->folder == NULL)
        return FAIL(STATUS_NO_MEMORY, "%s: %zu bytes", RUN_FILE_CONFIG, strlen(place));
    return STATUS_OK;
}

status data_source_find(const char *path, data_source *out)
{
    run_config config = {0};
    bool found = false;
    option_source origin;
    *out = (data_source){0};
    status st = run_config_find(path, out->run, &config);
    if (st == STATUS_OK)
        st = run_config_setting(&config, "dataset", &found, &out->dataset, &origin);
    if (st == STATUS_OK)
        st = find_data_folder(&config, out);
    run_config_close(&config);
    return st;
}

void data_source_free(data_source *data)
{
    free(data->dataset);
    free(data->folder);
    *data = (data_source){0};
}
