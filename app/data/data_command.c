/* mnist_ddp data: what is here of a data set, its pictures, and how it is fetched. */
#include "app/common/commands.h"
#include "app/common/exit_codes.h"
#include "app/common/json_value.h"
#include "app/common/picture.h"
#include "app/common/stop_signals.h"
#include "app/common/terminal.h"
#include "app/options/options.h"
#include "base/clock.h"
#include "base/digest.h"
#include "base/file.h"
#include "base/log.h"
#include "base/module.h"
#include "base/text.h"
#include "data/dataset.h"
#include "data/download.h"

#include <inttypes.h>
#include <jansson.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

typedef enum verdict { VERDICT_MISSING, VERDICT_RIGHT, VERDICT_WRONG, VERDICT_UNKNOWN } verdict;

/* One of a set's four files. */
typedef struct file_row {
    char path[FILE_PATH_BYTES]; /* "": it is missing */
    uint64_t size_bytes;
    uint32_t count; /* images or labels */
    char sum[DIGEST_TEXT_BYTES];
    verdict verdict;
    char why[1024]; /* VERDICT_UNKNOWN because it cannot be read: the reason; else "" */
    bool fetched;   /* just now; the caller's to say */
} file_row;

typedef struct set_report {
    const dataset_facts *facts;
    dataset_location location;
    bool found;     /* all four, in location.folder */
    char why[2048]; /* it was not found, or a file of it cannot be read: the reason; else "" */
    file_row rows[MNIST_FILES_COUNT];
} set_report;

static const char *const VERDICTS[] = {[VERDICT_MISSING] = "missing",
                                       [VERDICT_RIGHT] = "right",
                                       [VERDICT_WRONG] = "wrong",
                                       [VERDICT_UNKNOWN] = "unknown"};

static bool is_gzip(const char *path)
{
    size_t length = strlen(path);
    return length > 3 && strcmp(path + length - 3, ".gz") == 0;
}

/* Of a plain file whose digest nobody has noted: torchvision leaves it beside the .gz that it came
 * from. If that one is right, its content is what the plain file must have. */
static status compare_with_gzip(const dataset_file *want, idx_kind kind, file_row *row)
{
    char path[FILE_PATH_BYTES], sum[DIGEST_TEXT_BYTES];
    idx_file plain = {0}, inside = {0};
    row->verdict = VERDICT_UNKNOWN;
    if (snprintf(path, sizeof path, "%s.gz", row->path) >= (int)sizeof path || !file_exists(path))
        return STATUS_OK;
    TRY(digest_file(path, sum));
    if (strcmp(sum, want->sha256) != 0)
        return STATUS_OK;
    TRY(idx_file_open(row->path, kind, &plain));
    status st = idx_file_open(path, kind, &inside);
    if (st == STATUS_OK) {
        size_t size_bytes = (size_t)plain.count * (kind == IDX_IMAGES ? DATASET_PIXELS : 1);
        bool same =
            plain.count == inside.count && memcmp(plain.elements, inside.elements, size_bytes) == 0;
        row->verdict = same ? VERDICT_RIGHT : VERDICT_WRONG;
    }
    idx_file_close(&plain);
    idx_file_close(&inside);
    return st;
}

static status judge(const dataset_file *want, idx_kind kind, file_row *row)
{
    const char *known = is_gzip(row->path) ? want->sha256 : want->plain_sha256;
    TRY(digest_file(row->path, row->sum));
    if (known == NULL)
        return compare_with_gzip(want, kind, row);
    row->verdict = strcmp(row->sum, known) == 0 ? VERDICT_RIGHT : VERDICT_WRONG;
    return STATUS_OK;
}

/* Its path is known. */
static status look_at_file(set_report *set, int index)
{
    file_row *row = &set->rows[index];
    idx_kind kind = mnist_files_kind(index);
    idx_file file = {0};
    struct stat info;
    row->verdict = VERDICT_UNKNOWN;
    status st = judge(&set->facts->files[index], kind, row);
    if (st != STATUS_OK) {
        snprintf(row->why, sizeof row->why, "%s", status_text());
        return st;
    }
    if (stat(row->path, &info) == 0)
        row->size_bytes = (uint64_t)info.st_size;
    TRY(idx_file_open(row->path, kind, &file));
    row->count = file.count;
    idx_file_close(&file);
    return STATUS_OK;
}

/* Looks again at the files that were not right. */
static void set_report_look_again(set_report *set)
{
    set->found = true;
    set->why[0] = '\0';
    for (int i = 0; i < MNIST_FILES_COUNT; i++) {
        file_row *row = &set->rows[i];
        if (row->verdict == VERDICT_RIGHT)
            continue;
        *row = (file_row){.fetched = row->fetched};
        status st = mnist_files_find(set->location.folder, mnist_files_split(i),
                                     mnist_files_kind(i), row->path);
        if (st != STATUS_OK)
            set->found = false;
        else
            st = look_at_file(set, i);
        if (st != STATUS_OK)
            snprintf(set->why, sizeof set->why, "%s", status_text());
    }
}

/* Looks in one folder, which need not exist. */
static void set_report_look(dataset_kind kind, const dataset_location *location, set_report *out)
{
    *out = (set_report){.facts = dataset_kind_facts(kind), .location = *location};
    set_report_look_again(out);
}

/* Looks where a run would look. */
static void set_report_find(dataset_kind kind, const char *data_dir, set_report *out)
{
    dataset_location location;
    bool found = false;
    *out = (set_report){.facts = dataset_kind_facts(kind)};
    status st = dataset_find(kind, data_dir, &location, &found);
    if (st == STATUS_OK && !found)
        st = FAIL(STATUS_INVALID, "not in %s, nor in the cache%s", out->facts->working_folder,
                  kind == DATASET_MNIST ? "; mnist_ddp takes digits of its own instead" : "");
    if (st == STATUS_OK)
        set_report_look(kind, &location, out);
    else
        snprintf(out->why, sizeof out->why, "%s", status_text());
}

static const char *name_of(const file_row *row)
{
    const char *slash = strrchr(row->path, '/');
    return slash != NULL ? slash + 1 : row->path;
}

/* Lines for people. */
static void set_report_print(const set_report *set)
{
    if (!set->found) {
        printf("%s: %s\n", set->facts->title, set->why);
        return;
    }
    printf("%s: %s (%s)\n", set->facts->title, set->location.folder, set->location.found_by);
    for (int i = 0; i < MNIST_FILES_COUNT; i++) {
        const file_row *row = &set->rows[i];
        printf("  %-26s %5" PRIu32 " %s, %8" PRIu64 " bytes, SHA-256 %s: %s\n", name_of(row),
               row->count, mnist_files_kind(i) == IDX_IMAGES ? "images" : "labels", row->size_bytes,
               row->sum, VERDICTS[row->verdict]);
    }
    if (set->why[0] != '\0')
        printf("  %s\n", set->why);
}

static json_t *set_json(const set_report *set)
{
    json_t *files = json_array();
    for (int i = 0; i < MNIST_FILES_COUNT; i++) {
        const file_row *row = &set->rows[i];
        if (row->path[0] == '\0')
            continue;
        json_array_append_new(
            files,
            json_pack("{s:o, s:i, s:I, s:s, s:s, s:b}", "name", json_value_text(name_of(row)),
                      "count", (int)row->count, "size_bytes", (json_int_t)row->size_bytes, "sha256",
                      row->sum, "verdict", VERDICTS[row->verdict], "fetched", (int)row->fetched));
    }
    return json_pack("{s:s, s:o, s:o, s:o}", "dataset", set->facts->name, "folder",
                     set->found ? json_value_text(set->location.folder) : json_null(), "why",
                     set->why[0] != '\0' ? json_value_text(set->why) : json_null(), "files", files);
}

static status set_report_print_json(const set_report *sets, int n)
{
    json_t *list = json_array();
    for (int i = 0; i < n; i++)
        json_array_append_new(list, set_json(&sets[i]));
    return json_value_print(json_pack("{s:o}", "datasets", list));
}

/* STATUS_INVALID unless all four files are the original ones. */
static status set_report_check(const set_report *set)
{
    const char *title = set->facts->title;
    if (!set->found || set->why[0] != '\0')
        return FAIL(STATUS_INVALID, "%s: %s", title, set->why);
    for (int i = 0; i < MNIST_FILES_COUNT; i++) {
        const file_row *row = &set->rows[i];
        if (row->verdict == VERDICT_WRONG)
            return FAIL(STATUS_INVALID, "%s: not the file of %s: its SHA-256 is %s; remove it",
                        row->path, title, row->sum);
        if (row->verdict == VERDICT_UNKNOWN)
            return FAIL(STATUS_INVALID,
                        "%s: cannot be verified: of %s the digests of the .gz files are known; put "
                        "that one beside it",
                        row->path, title);
    }
    return STATUS_OK;
}

enum { FETCH_NAME_BYTES = 64 };

/* Begins zeroed, and stays where it is while it is open. */
typedef struct fetch_progress {
    int64_t started_ns, next_line_ns;
    int64_t ended_ns;            /* 0: it is open */
    uint64_t all_bytes;          /* all files' */
    status_line line;            /* whose lock what follows has */
    char name[FETCH_NAME_BYTES]; /* the file's that is under way */
    uint64_t before_bytes;       /* what the files before it have */
    uint64_t done_bytes;         /* what is there of it */
    uint64_t came_bytes;         /* for all files, without what was there before */
    bool begins;                 /* nothing was printed about the file yet */
} fetch_progress;

enum { LINE_MS = 2000 };

static const double MB = 1e6;

enum { RATE_PRIORITY = 1, BAR_PRIORITY, LEFT_PRIORITY, NAME_PRIORITY, SIZE_PRIORITY };

/* Seconds since it was opened, until it was closed. */
static double fetch_progress_s(const fetch_progress *p)
{
    int64_t end_ns = p->ended_ns != 0 ? p->ended_ns : clock_now_ns();
    return clock_seconds(end_ns - p->started_ns);
}

/* Bytes a second, of what came. */
static double rate_of(const fetch_progress *p)
{
    double seconds = fetch_progress_s(p);
    return seconds > 0 ? (double)p->came_bytes / seconds : 0;
}

static void tell_line(void *ctx, status_parts *out)
{
    fetch_progress *p = ctx;
    double done = (double)(p->before_bytes + p->done_bytes), all = (double)p->all_bytes;
    double rate = rate_of(p);
    status_parts_add(out, NAME_PRIORITY, "%s", p->name);
    status_parts_add(out, SIZE_PRIORITY, "%.1f/%.1f MB", done / MB, all / MB);
    if (rate > 0) {
        status_parts_add(out, RATE_PRIORITY, "%.1f MB/s", rate / MB);
        status_parts_add_time(out, LEFT_PRIORITY, (all - done) / rate, "left");
    }
    out->bar_priority = BAR_PRIORITY;
    out->done = all > 0 ? done / all : 0;
}

/* quiet: nothing is shown. */
static void fetch_progress_open(uint64_t all_bytes, bool quiet, fetch_progress *out)
{
    bool draws = !quiet && terminal_of(STDERR_FILENO).erases;
    *out = (fetch_progress){.all_bytes = all_bytes, .started_ns = clock_now_ns()};
    status_line_open(draws ? STDERR_FILENO : -1, tell_line, out, &out->line);
    out->next_line_ns = quiet || out->line.is_drawn ? INT64_MAX : clock_deadline_ns(LINE_MS);
}

/* The next file, from its beginning. */
static void fetch_progress_next(fetch_progress *p, const char *name)
{
    pthread_mutex_lock(&p->line.lock);
    snprintf(p->name, sizeof p->name, "%s", name);
    p->before_bytes += p->done_bytes;
    p->done_bytes = 0;
    p->begins = true;
    pthread_mutex_unlock(&p->line.lock);
}

/* So much of the file is there; the first time for a file: was there. Less than the last time: it
 * begins anew. A download_tell. */
static void fetch_progress_tell(void *ctx, uint64_t done_bytes)
{
    fetch_progress *p = ctx;
    pthread_mutex_lock(&p->line.lock);
    if (!p->begins && done_bytes > p->done_bytes)
        p->came_bytes += done_bytes - p->done_bytes;
    p->begins = false;
    p->done_bytes = done_bytes;
    double done = (double)(p->before_bytes + done_bytes), rate = rate_of(p);
    pthread_mutex_unlock(&p->line.lock);
    if (!clock_passed(p->next_line_ns))
        return;
    p->next_line_ns = clock_deadline_ns(LINE_MS);
    LOG_I("fetching %s: %.1f of %.1f MB, %.1f MB/s", p->name, done / MB, (double)p->all_bytes / MB,
          rate / MB);
}

static void fetch_progress_close(fetch_progress *p)
{
    status_line_close(&p->line);
    p->ended_ns = clock_now_ns();
}

enum { LOCK_POLL_MS = 50, OWN_MIRRORS = DOWNLOAD_MIRRORS_MAX - DATASET_MIRRORS_MAX };

typedef struct fetching {
    const options *opts;
    set_report set; /* for a file that is not right, the .gz is to be fetched */
    stop_signals signals;
    int lock_fd;
    download download;
    char own_mirrors[OWN_MIRRORS][TRANSFER_URL_BYTES];
    fetch_progress progress;
} fetching;

static bool begins_with(const char *text, size_t length, const char *begin)
{
    return length > strlen(begin) && strncasecmp(text, begin, strlen(begin)) == 0;
}

/* Those of --mirror, then the known ones. */
static status list_mirrors(fetching *f)
{
    download *d = &f->download;
    const char *list = f->opts->data.mirror != NULL ? f->opts->data.mirror : "";
    size_t length;
    for (const char *at = list, *url; (url = comma_list_next(&at, &length)) != NULL;) {
        if (!begins_with(url, length, "https://") && !begins_with(url, length, "http://"))
            return FAIL(STATUS_INVALID,
                        "--mirror=%.80s: expected URLs of folders, https://HOST/PATH/ or http://",
                        list);
        if (d->n_mirrors == OWN_MIRRORS || length + 2 > TRANSFER_URL_BYTES)
            return FAIL(STATUS_INVALID, "--mirror: at most %d URLs of %d bytes", OWN_MIRRORS,
                        TRANSFER_URL_BYTES - 2);
        char *own = f->own_mirrors[d->n_mirrors];
        snprintf(own, TRANSFER_URL_BYTES, "%.*s%s", (int)length, url,
                 url[length - 1] == '/' ? "" : "/");
        d->mirrors[d->n_mirrors++] = own;
    }
    for (int i = 0; i < DATASET_MIRRORS_MAX && f->set.facts->mirrors[i] != NULL; i++)
        d->mirrors[d->n_mirrors++] = f->set.facts->mirrors[i];
    return STATUS_OK;
}

/* The .gz of a file: where it is to be. */
static status place_of(const fetching *f, int index, char *path)
{
    char name[FETCH_NAME_BYTES];
    const file_row *row = &f->set.rows[index];
    if (row->verdict == VERDICT_UNKNOWN) /* the .gz beside it shows what it is */
        return snprintf(path, FILE_PATH_BYTES, "%s.gz", row->path) < FILE_PATH_BYTES
                   ? STATUS_OK
                   : FAIL(STATUS_INVALID, "path too long: %.64s...", row->path);
    snprintf(name, sizeof name, "%s.gz",
             mnist_files_name(mnist_files_split(index), mnist_files_kind(index)));
    return file_join(f->set.location.folder, name, path);
}

/* Which files are to be fetched. STATUS_INVALID if one is there that is another or cannot be
 * read. */
static status look(fetching *f, int *n_wanted)
{
    char path[FILE_PATH_BYTES];
    *n_wanted = 0;
    set_report_look_again(&f->set);
    for (int i = 0; i < MNIST_FILES_COUNT; i++) {
        const file_row *row = &f->set.rows[i];
        if (row->why[0] != '\0')
            return FAIL(STATUS_INVALID, "%s", row->why);
        TRY(place_of(f, i, path));
        bool is_other = row->verdict == VERDICT_UNKNOWN && file_exists(path);
        if (row->verdict == VERDICT_WRONG || is_other)
            return FAIL(
                STATUS_INVALID,
                "%s is there, and is not the file of %s: name another folder with --data-dir, "
                "or move it away",
                is_other ? path : row->path, f->set.facts->title);
        *n_wanted += row->verdict != VERDICT_RIGHT;
    }
    return STATUS_OK;
}

static status refuse_offline(const fetching *f)
{
    char names[256];
    mnist_files_missing(f->set.location.folder, names, sizeof names);
    return FAIL(STATUS_INVALID,
                "--offline: %s is not complete in %s: %s; without --offline it is fetched from "
                "%.200s",
                f->set.facts->title, f->set.location.folder,
                names[0] != '\0' ? names : "not all of it can be verified", f->download.mirrors[0]);
}

/* The folder is this process's until lock_fd is closed. */
static status take_folder(fetching *f)
{
    struct pollfd wake = {.fd = f->signals.fd, .events = POLLIN};
    int64_t deadline_ns = clock_deadline_ns(f->opts->data.lock_timeout * 1000);
    TRY(file_make_folders(f->set.location.folder));
    for (bool said = false;; said = true) {
        status st = file_lock_folder(f->set.location.folder, &f->lock_fd);
        if (st != STATUS_INVALID)
            return st;
        if (!said)
            LOG_I("waiting: %s", status_text());
        if (clock_passed(deadline_ns))
            return status_context(STATUS_TIMEOUT, "waited --lock-timeout=%" PRId64 " s in vain",
                                  f->opts->data.lock_timeout);
        if (poll(&wake, 1, LOCK_POLL_MS) == 1)
            return FAIL(STATUS_INVALID, "interrupted while another process fetches");
    }
}

static status fetch_wanted(fetching *f)
{
    for (int i = 0; i < MNIST_FILES_COUNT; i++) {
        char path[FILE_PATH_BYTES], name[FETCH_NAME_BYTES];
        const dataset_file *want = &f->set.facts->files[i];
        if (f->set.rows[i].verdict == VERDICT_RIGHT)
            continue;
        snprintf(name, sizeof name, "%s.gz",
                 mnist_files_name(mnist_files_split(i), mnist_files_kind(i)));
        fetch_progress_next(&f->progress, name);
        TRY(place_of(f, i, path));
        TRY(download_file(&f->download, name, want, path));
        f->set.rows[i].fetched = true;
    }
    return STATUS_OK;
}

/* With the folder taken. */
static status transfer(fetching *f)
{
    download *d = &f->download;
    const module *curl = NULL;
    uint64_t all_bytes = 0;
    status st = module_open("curl", &curl);
    if (st != STATUS_OK) {
        status_append("; or put the files of %s into %s", d->mirrors[0], f->set.location.folder);
        return st;
    }
    TRY(curl->transfer->open(&d->handle));
    for (int i = 0; i < MNIST_FILES_COUNT; i++)
        if (f->set.rows[i].verdict != VERDICT_RIGHT)
            all_bytes += f->set.facts->files[i].size_bytes;
    d->http = curl->transfer;
    d->connect_timeout_ms = (int)(f->opts->data.connect_timeout * 1000);
    d->stall_timeout_s = (int)f->opts->data.stall_timeout;
    d->wake_fd = f->signals.fd;
    d->tell = fetch_progress_tell;
    d->tell_ctx = &f->progress;
    fetch_progress_open(all_bytes, f->opts->quiet, &f->progress);
    st = fetch_wanted(f);
    fetch_progress_close(&f->progress);
    d->http->close(d->handle);
    return st;
}

/* All that is missing. */
static status complete(fetching *f)
{
    sigset_t stop;
    int n_wanted = 0;
    sigemptyset(&stop);
    sigaddset(&stop, SIGINT);
    sigaddset(&stop, SIGTERM);
    sigaddset(&stop, SIGHUP);
    TRY(stop_signals_take(&stop, &f->signals));
    TRY(take_folder(f));
    TRY(look(f, &n_wanted)); /* another process may have fetched meanwhile */
    if (n_wanted == 0)
        return STATUS_OK;
    status st = transfer(f);
    status_kept why;
    status_keep(&why);
    set_report_look_again(&f->set);
    status_restore(&why);
    return st == STATUS_OK ? set_report_check(&f->set) : st;
}

static status print_result(const fetching *f)
{
    if (f->opts->json)
        return set_report_print_json(&f->set, 1);
    if (f->opts->quiet) {
        puts(f->set.location.folder);
        return STATUS_OK;
    }
    set_report_print(&f->set);
    int n = 0;
    for (int i = 0; i < MNIST_FILES_COUNT; i++)
        n += f->set.rows[i].fetched;
    if (n == 0)
        puts("nothing was missing");
    else
        printf("fetched %d file%s, %.1f MB in %.1f s\n", n, n == 1 ? "" : "s",
               (double)f->progress.came_bytes * 1e-6, fetch_progress_s(&f->progress));
    return STATUS_OK;
}

static int exit_code_of(const fetching *f, status st)
{
    int code = exit_code_failed(st, st == STATUS_IO ? EXIT_CODE_OUTPUT : EXIT_CODE_DATA);
    return f->signals.first != 0 ? 128 + f->signals.first : code;
}

static int fetch_set(fetching *f, dataset_kind kind)
{
    int n_wanted = 0;
    status st = list_mirrors(f);
    if (st != STATUS_OK)
        return exit_code_failed(st, EXIT_CODE_USAGE);
    st = dataset_place(kind, f->opts->data_dir, &f->set.location);
    if (st == STATUS_OK)
        st = look(f, &n_wanted);
    if (st == STATUS_OK && n_wanted > 0)
        st = f->opts->data.offline ? refuse_offline(f) : complete(f);
    if (f->lock_fd >= 0)
        close(f->lock_fd);
    (void)stop_signals_came(&f->signals); /* which one it was */
    stop_signals_close(&f->signals);
    if (st == STATUS_OK)
        st = print_result(f);
    if (st == STATUS_OK)
        return EXIT_SUCCESS;
    if (f->opts->json) {
        status_kept why;
        status_keep(&why);
        snprintf(f->set.why, sizeof f->set.why, "%s", status_text());
        (void)set_report_print_json(&f->set, 1);
        status_restore(&why);
    }
    return exit_code_of(f, st);
}

/* Returns the exit code. However many processes call this at once for a folder, one fetches. */
static int fetch(const options *opts, dataset_kind kind)
{
    fetching f = {.opts = opts, .set.facts = dataset_kind_facts(kind), .lock_fd = -1};
    return fetch_set(&f, kind);
}

enum { GAP = 2, SHOWN_AT_FIRST = 10, CAPTION_BYTES = IDX_SIDE + 1, SHOWN_BYTES = 40 };

typedef struct showing {
    const options *opts;
    const dataset_facts *facts;
    dataset set;
    picture_style style;
    int columns;       /* pictures side by side */
    uint32_t *indices; /* the row of pictures that is not printed yet */
    int n;
    json_t *list; /* NULL: pictures are printed */
    int shown;
} showing;

/* "#7: 5", "#7: 9 Ankle boot". */
static void caption(const showing *s, uint32_t index, char out[CAPTION_BYTES])
{
    int label = s->set.labels[index];
    const char *name = s->facts->classes[label];
    bool is_digit = name[0] == '0' + label && name[1] == '\0';
    snprintf(out, CAPTION_BYTES, "#%u: %d%s%s", index, label, is_digit ? "" : " ",
             is_digit ? "" : name);
}

/* The pictures that have gathered, side by side below their captions. */
static void print_row(showing *s)
{
    char text[IDX_SIDE * PICTURE_CELL_BYTES + PICTURE_END_BYTES];
    const picture one = {NULL, IDX_SIDE, IDX_SIDE};
    for (int i = 0; i < s->n; i++) {
        caption(s, s->indices[i], text);
        printf("%-*s", i + 1 < s->n ? IDX_SIDE + GAP : 0, text);
    }
    putchar('\n');
    for (int line = 0; line < picture_lines(&one); line++) {
        for (int i = 0; i < s->n; i++) {
            picture p = one;
            p.pixels = s->set.images + (size_t)s->indices[i] * IDX_PIXELS;
            picture_line(&p, s->style, line, text);
            printf("%s%*s", text, i + 1 < s->n ? GAP : 0, "");
        }
        putchar('\n');
    }
    s->n = 0;
}

static json_t *make_json(const showing *s, uint32_t index)
{
    json_t *pixels = json_array();
    const uint8_t *image = s->set.images + (size_t)index * IDX_PIXELS;
    int label = s->set.labels[index];
    for (int i = 0; i < IDX_PIXELS; i++)
        json_array_append_new(pixels, json_integer(image[i]));
    return json_pack("{s:I, s:i, s:s, s:o}", "index", (json_int_t)index, "label", label, "class",
                     s->facts->classes[label], "pixels", pixels);
}

static void show_images(showing *s, uint32_t first, uint32_t last, int most)
{
    for (uint32_t i = first; i <= last && s->shown < most; i++) {
        if (s->opts->data.label >= 0 && s->set.labels[i] != s->opts->data.label)
            continue;
        s->shown++;
        if (s->list != NULL) {
            json_array_append_new(s->list, make_json(s, i));
            continue;
        }
        s->indices[s->n++] = i;
        if (s->n == s->columns)
            print_row(s);
    }
}

/* "7" or "7-9". */
static status read_range(const showing *s, const char *word, int *first, int *last)
{
    const char *at = word;
    int most = (int)s->set.count - 1;
    bool good = number_next(&at, 0, most, first);
    *last = *first;
    if (good && *at == '-') {
        at++;
        good = number_next(&at, *first, most, last);
    }
    if (!good || *at != '\0')
        return FAIL(STATUS_INVALID,
                    "data show '%.*s': expected an index or a range as 0-9; the %s set has 0-%d",
                    SHOWN_BYTES, word, s->opts->data.test ? "test" : "training", most);
    return STATUS_OK;
}

static status show_all(showing *s)
{
    int first = 0, last = 0;
    for (int i = 0; i < s->opts->n_files; i++) /* before anything is shown */
        TRY(read_range(s, s->opts->files[i], &first, &last));
    for (int i = 0; i < s->opts->n_files; i++) {
        TRY(read_range(s, s->opts->files[i], &first, &last));
        show_images(s, (uint32_t)first, (uint32_t)last, INT_MAX);
    }
    if (s->opts->n_files == 0)
        show_images(s, 0, s->set.count - 1, SHOWN_AT_FIRST);
    if (s->n > 0)
        print_row(s);
    if (s->shown == 0)
        return FAIL(STATUS_INVALID, "data show: none of these images has the label %d",
                    (int)s->opts->data.label);
    return STATUS_OK;
}

static status print_json(const showing *s, const dataset_location *location)
{
    json_t *folder = location->embedded ? json_null() : json_value_text(location->folder);
    return json_value_print(json_pack("{s:s, s:o, s:s, s:O}", "dataset", s->facts->name, "folder",
                                      folder, "split", s->opts->data.test ? "test" : "train",
                                      "images", s->list));
}

static void warn_embedded(const dataset_location *location)
{
    if (location->embedded)
        LOG_W("these are generated digits, NOT MNIST: mnist_ddp data fetch gets the real files");
}

/* Returns the exit code. */
static int show(const options *opts, dataset_kind kind)
{
    showing s = {
        .opts = opts, .facts = dataset_kind_facts(kind), .columns = (int)opts->data.columns};
    dataset_location location;
    status st = dataset_locate(kind, opts->data_dir, &location);
    if (st == STATUS_OK)
        st = dataset_open(&location, opts->data.test ? DATASET_TEST : DATASET_TRAIN, &s.set);
    if (st != STATUS_OK)
        return exit_code_failed(st, EXIT_CODE_DATA);
    warn_embedded(&location);
    s.style = picture_style_of(STDOUT_FILENO);
    if (s.columns < 0)
        s.columns = (paragraph_terminal_columns(STDOUT_FILENO) + GAP) / (IDX_SIDE + GAP);
    s.columns = s.columns > 0 ? s.columns : 1;
    s.indices = malloc(sizeof *s.indices * (size_t)s.columns);
    s.list = opts->json ? json_array() : NULL;
    st = s.indices != NULL ? show_all(&s) : FAIL(STATUS_NO_MEMORY, "%d pictures", s.columns);
    if (st == STATUS_OK && opts->json)
        st = print_json(&s, &location);
    free(s.indices);
    json_decref(s.list);
    dataset_close(&s.set);
    return st == STATUS_OK ? EXIT_SUCCESS : exit_code_failed(st, EXIT_CODE_USAGE);
}

/* All data sets, or the one that is asked for. */
static int info(const options *opts, dataset_kind asked)
{
    set_report sets[DATASET_KINDS];
    bool one = options_given(opts, "dataset");
    int n = 0;
    for (int kind = 0; kind < DATASET_KINDS; kind++)
        if (!one || kind == (int)asked)
            set_report_find((dataset_kind)kind, opts->data_dir, &sets[n++]);
    status st = opts->json ? set_report_print_json(sets, n) : STATUS_OK;
    for (int i = 0; i < n && !opts->json; i++)
        set_report_print(&sets[i]);
    return st == STATUS_OK ? EXIT_SUCCESS : exit_code_failed(st, EXIT_CODE_INTERNAL);
}

static int verify(const options *opts, dataset_kind asked)
{
    set_report set;
    status st = STATUS_OK;
    set_report_find(asked, opts->data_dir, &set);
    if (opts->json)
        st = set_report_print_json(&set, 1);
    else
        set_report_print(&set);
    if (st != STATUS_OK)
        return exit_code_failed(st, EXIT_CODE_INTERNAL);
    st = set_report_check(&set);
    return st == STATUS_OK ? EXIT_SUCCESS : exit_code_failed(st, EXIT_CODE_DATA);
}

typedef int data_action(const options *opts, dataset_kind asked);

int data_command(const options *opts)
{
    static const struct {
        const char *name;
        data_action *act;
    } actions[] = {{"fetch", fetch}, {"info", info}, {"verify", verify}, {"show", show}};
    dataset_kind asked;
    status st = dataset_kind_parse(opts->dataset, &asked);
    if (st != STATUS_OK)
        return exit_code_failed(st, EXIT_CODE_USAGE);
    for (size_t i = 0; i < sizeof actions / sizeof actions[0]; i++)
        if (opts->action != NULL && strcmp(opts->action, actions[i].name) == 0)
            return actions[i].act(opts, asked);
    FAIL(STATUS_INVALID,
         "data: what about it? fetch, info, verify or show, as in mnist_ddp data fetch");
    return exit_code_failed(STATUS_INVALID, EXIT_CODE_USAGE);
}
