#include "app/launch/worker_logs.h"

#include "base/log.h"
#include "base/text.h"

#include <ctype.h>
#include <errno.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

/* A word ends at the text's next zero byte. */
status line_filter_parse(const char *flag, const char *list, line_filter *out)
{
    line_filter filter = {.n = 0};
    size_t used = 0;
    if (list != NULL && strlen(list) >= sizeof filter.text - 1)
        return FAIL(STATUS_INVALID, "%s: longer than %d letters", flag, LINE_FILTER_BYTES - 2);
    for (const char *at = list; at != NULL && *at != '\0';) {
        if (filter.n == LINE_FILTER_WORDS)
            return FAIL(STATUS_INVALID, "%s: more than %d words", flag, LINE_FILTER_WORDS);
        size_t begin = used;
        for (; *at != '\0' && (*at != ',' || at[1] == ','); at++) {
            at += *at == ',';
            filter.text[used++] = *at;
        }
        if (used > begin) { /* an empty word would match every line */
            filter.begins[filter.n++] = (int)begin;
            filter.text[used++] = '\0';
        }
        at += *at == ',';
    }
    *out = filter;
    return STATUS_OK;
}

bool line_filter_matches(const line_filter *filter, const char *line, size_t size_bytes)
{
    for (int i = 0; i < filter->n; i++) {
        const char *word = filter->text + filter->begins[i];
        if (memmem(line, size_bytes, word, strlen(word)) != NULL)
            return true;
    }
    return false;
}

enum { SHOWN_BYTES = 80, DESCRIPTORS = 16, NAME_BYTES = 128 };

/* "3", or "0:1,12:3": like torchrun's, and for local ranks of more than one digit. Ranks that are
 * not there are passed over, as torchrun does. */
static status parse_streams(const char *flag, const char *text, uint8_t *out)
{
    if (text[0] >= '0' && text[0] <= '3' && text[1] == '\0') {
        memset(out, text[0] - '0', NPROC_PER_NODE_MAX);
        return STATUS_OK;
    }
    memset(out, 0, NPROC_PER_NODE_MAX);
    const char *at = text;
    for (;;) {
        int rank = 0;
        if (!number_next(&at, 0, NPROC_PER_NODE_MAX - 1, &rank) || at[0] != ':' || at[1] < '0' ||
            at[1] > '3' || (at[2] != '\0' && at[2] != ','))
            return FAIL(STATUS_INVALID,
                        "%s: '%.*s' is neither 0 to 3 (1 stdout, 2 stderr, 3 both) nor a list by "
                        "local rank, as 0:1,12:3",
                        flag, SHOWN_BYTES, text);
        out[rank] = (uint8_t)(at[1] - '0');
        if (at[2] == '\0')
            return STATUS_OK;
        at += 3;
    }
}

static status parse_filter(const char *text, bool *hidden)
{
    memset(hidden, text != NULL, NPROC_PER_NODE_MAX * sizeof *hidden);
    for (const char *at = text; at != NULL;) {
        int rank = 0;
        at += strspn(at, " ");
        if (!number_next(&at, 0, NPROC_PER_NODE_MAX - 1, &rank) || (*at != '\0' && *at != ','))
            return FAIL(STATUS_INVALID,
                        "--local-ranks-filter: '%.*s' is no list of local ranks, as 0,1,12",
                        SHOWN_BYTES, text);
        hidden[rank] = false;
        at = *at == ',' ? at + 1 : NULL;
    }
    return STATUS_OK;
}

status worker_logs_read(const options *opts, int nproc, worker_logs *out)
{
    memset(out, 0, sizeof *out);
    TRY(parse_streams("--redirects", opts->redirects, out->redirects));
    TRY(parse_streams("--tee", opts->tee, out->tees));
    TRY(parse_filter(opts->local_ranks_filter, out->hidden));
    TRY(line_filter_parse("--duplicate-stdout-filters", opts->duplicate_stdout_filters,
                          &out->out_filter));
    TRY(line_filter_parse("--duplicate-stderr-filters", opts->duplicate_stderr_filters,
                          &out->err_filter));
    bool shown = false;
    for (int i = 0; i < nproc; i++)
        shown = shown || !out->hidden[i];
    if (!shown)
        LOG_W("--local-ranks-filter=%.*s shows none of the local ranks 0 to %d", SHOWN_BYTES,
              opts->local_ranks_filter, nproc - 1);
    const char *template_text = opts->log_line_prefix_template;
    if (template_text == NULL)
        template_text = getenv("TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE");
    if (template_text == NULL || template_text[0] == '\0')
        template_text = "[${role_name}${local_rank}]:";
    if (strlen(template_text) >= sizeof out->template_text)
        return FAIL(STATUS_INVALID, "--log-line-prefix-template: longer than %d letters",
                    LOGS_TEMPLATE_BYTES - 1);
    strcpy(out->template_text, template_text);
    const char *base = opts->log_dir != NULL ? opts->log_dir : "";
    if (strlen(base) + 256 >= sizeof out->base)
        return FAIL(STATUS_INVALID, "--log-dir is too long");
    strcpy(out->base, base);
    out->none = strcmp(base, "/dev/null") == 0;
    return STATUS_OK;
}

/* A run id as part of a file's name. */
static void safe_name(const char *run_id, char out[NAME_BYTES])
{
    snprintf(out, NAME_BYTES, "%s", run_id);
    for (char *c = out; *c != '\0'; c++)
        if (!isalnum((unsigned char)*c) && strchr("-_.", *c) == NULL)
            *c = '_';
    if (out[0] == '.')
        out[0] = '_';
}

status worker_logs_open(worker_logs *logs, const char *run_id)
{
    char path[FILE_PATH_BYTES], name[NAME_BYTES];
    status st;
    if (logs->none)
        return STATUS_OK;
    safe_name(run_id, name);
    if (logs->base[0] != '\0') {
        TRY(status_context(file_make_folders(logs->base), "--log-dir"));
        st = file_make_temporary_folder(logs->base, name, path);
    } else {
        st = file_make_temporary_folder(NULL, "mnist_ddp", path);
    }
    if (st != STATUS_OK) {
        status_append("; name another folder for logs with --log-dir");
        return st;
    }
    char *whole = realpath(path, NULL); /* a worker may change its folder */
    snprintf(logs->folder, sizeof logs->folder, "%s",
             whole != NULL && strlen(whole) < FILE_PATH_BYTES - 256 ? whole : path);
    free(whole);
    return STATUS_OK;
}

void worker_logs_file(const worker_logs *logs, int attempt, int local_rank, const char *name,
                      char *out)
{
    out[0] = '\0';
    if (logs->folder[0] != '\0')
        snprintf(out, FILE_PATH_BYTES, "%.*s/attempt_%d/%d%s%s", FILE_PATH_BYTES - 256,
                 logs->folder, attempt, local_rank, name[0] != '\0' ? "/" : "", name);
}

void worker_logs_dumps(const worker_logs *logs, int attempt, char *out)
{
    out[0] = '\0';
    if (logs->outlive && logs->folder[0] != '\0')
        snprintf(out, FILE_PATH_BYTES, "%.*s/ranks", FILE_PATH_BYTES - 256, logs->folder);
    else if (logs->folder[0] != '\0')
        snprintf(out, FILE_PATH_BYTES, "%.*s/attempt_%d/ranks", FILE_PATH_BYTES - 256, logs->folder,
                 attempt);
}

status worker_logs_start(const worker_logs *logs, int attempt, int nproc)
{
    char path[FILE_PATH_BYTES];
    if (logs->folder[0] == '\0')
        return STATUS_OK;
    worker_logs_dumps(logs, attempt, path);
    TRY(file_make_folders(path));
    if (logs->outlive) {
        snprintf(path, sizeof path, "%.*s/attempt_%d", FILE_PATH_BYTES - 256, logs->folder,
                 attempt);
        TRY(file_make_folders(path));
    }
    for (int i = 0; i < nproc; i++) {
        worker_logs_file(logs, attempt, i, "", path);
        if (mkdir(path, 0777) != 0 && errno != EEXIST)
            return FAIL(STATUS_IO, "make folder %s: %s", path, strerror(errno));
    }
    return STATUS_OK;
}

void worker_logs_route(const worker_logs *logs, int attempt, int local_rank, int which,
                       worker_route *out)
{
    bool err = which == LOGS_STDERR, hidden = logs->hidden[local_rank];
    bool tee = (logs->tees[local_rank] & which) != 0;
    bool to_file = tee || (logs->redirects[local_rank] & which) != 0;
    *out = (worker_route){.piped = tee || (err && !to_file),
                          .target = hidden ? -1
                                    : err  ? STDERR_FILENO
                                           : STDOUT_FILENO,
                          .prefixed = tee};
    if (to_file)
        worker_logs_file(logs, attempt, local_rank, err ? "stderr.log" : "stdout.log", out->file);
    const line_filter *filter = err ? &logs->err_filter : &logs->out_filter;
    if (tee && !hidden && filter->n > 0 && logs->folder[0] != '\0') {
        out->filter = filter;
        snprintf(out->filtered, sizeof out->filtered, "%.*s/attempt_%d/filtered_%s.log",
                 FILE_PATH_BYTES - 256, logs->folder, attempt, err ? "stderr" : "stdout");
    }
    if (out->file[0] == '\0' && (to_file || (hidden && !out->piped)))
        strcpy(out->file, "/dev/null");
}

/* Appends the macro's value if `at` begins with "${name}" or "$name"; returns the macro's length.
 */
static size_t expand(const char *at, const char *name, const char *value, char *out, size_t *used)
{
    size_t length = strlen(name);
    bool braces = at[1] == '{';
    const char *word = at + (braces ? 2 : 1);
    if (strncmp(word, name, length) != 0)
        return 0;
    if (braces ? word[length] != '}' : isalnum((unsigned char)word[length]) || word[length] == '_')
        return 0;
    int n = snprintf(out + *used, LOGS_PREFIX_BYTES - *used, "%s", value);
    *used += (size_t)n < LOGS_PREFIX_BYTES - *used ? (size_t)n : LOGS_PREFIX_BYTES - 1 - *used;
    return length + (braces ? 3 : 1);
}

void worker_logs_prefix(const worker_logs *logs, const char *role, int rank, int local_rank,
                        char *out)
{
    char rank_text[16], local_text[16], host[256] = "?";
    snprintf(rank_text, sizeof rank_text, "%d", rank);
    snprintf(local_text, sizeof local_text, "%d", local_rank);
    if (gethostname(host, sizeof host - 1) != 0)
        strcpy(host, "?");
    const struct {
        const char *name, *value;
    } macros[] = {
        {"role_name", role}, {"local_rank", local_text}, {"rank", rank_text}, {"hostname", host}};
    size_t used = 0;
    for (const char *at = logs->template_text; *at != '\0' && used + 1 < LOGS_PREFIX_BYTES;) {
        size_t passed = 0;
        for (size_t i = 0; *at == '$' && passed == 0 && i < sizeof macros / sizeof macros[0]; i++)
            passed = expand(at, macros[i].name, macros[i].value, out, &used);
        if (passed == 0) {
            out[used++] = *at;
            passed = at[0] == '$' && at[1] == '$' ? 2 : 1;
        }
        at += passed;
    }
    out[used] = '\0';
}

void worker_logs_check_disk(const worker_logs *logs)
{
    struct statvfs disk;
    if (logs->folder[0] != '\0' && statvfs(logs->folder, &disk) == 0 && disk.f_blocks > 0 &&
        disk.f_bavail == 0)
        LOG_W("%s: the disk is full: files that ranks write there are cut", logs->folder);
}

static int remove_entry(const char *path, const struct stat *about, int type, struct FTW *place)
{
    (void)about, (void)type, (void)place;
    return remove(path) == 0 || errno == ENOENT ? 0 : -1;
}

void worker_logs_close(worker_logs *logs, bool keep)
{
    if (logs->folder[0] != '\0' && logs->base[0] == '\0' && !keep &&
        nftw(logs->folder, remove_entry, DESCRIPTORS, FTW_DEPTH | FTW_PHYS) != 0)
        LOG_D("%s is left: %s", logs->folder, strerror(errno));
    logs->folder[0] = '\0';
}
