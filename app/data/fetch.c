#include "app/data/fetch.h"

#include "app/common/exit_codes.h"
#include "app/common/status_line.h"
#include "app/common/stop_signals.h"
#include "app/common/terminal.h"
#include "app/data/set_report.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/module.h"
#include "base/text.h"
#include "data/download.h"

#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { FETCH_NAME_BYTES = 64 };

/* Begins zeroed, and stays where it is while it is open. */
typedef struct fetch_progress {
    status_line line;
    int64_t started_ns, next_line_ns;
    int64_t ended_ns;     /* 0: it is open */
    uint64_t all_bytes;   /* of all files */
    pthread_mutex_t lock; /* of what follows: the status line's thread reads it */
    bool open;
    char name[FETCH_NAME_BYTES]; /* of the file under way */
    uint64_t before_bytes;       /* of the files before it */
    uint64_t done_bytes;         /* of it */
    uint64_t came_bytes;         /* of all files; without what was there before */
    bool begins;                 /* nothing was told of the file yet */
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
    pthread_mutex_lock(&p->lock);
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
    pthread_mutex_unlock(&p->lock);
}

/* quiet: nothing is shown. */
static void fetch_progress_open(uint64_t all_bytes, bool quiet, fetch_progress *out)
{
    *out = (fetch_progress){.all_bytes = all_bytes, .started_ns = clock_now_ns(), .open = true};
    out->next_line_ns = quiet ? INT64_MAX : clock_deadline_ns(LINE_MS);
    pthread_mutex_init(&out->lock, NULL);
    if (quiet || !terminal_of(STDERR_FILENO).erases)
        return;
    if (status_line_open(STDERR_FILENO, tell_line, out, &out->line) == STATUS_OK)
        out->next_line_ns = INT64_MAX;
}

/* The next file, from its beginning. */
static void fetch_progress_next(fetch_progress *p, const char *name)
{
    pthread_mutex_lock(&p->lock);
    snprintf(p->name, sizeof p->name, "%s", name);
    p->before_bytes += p->done_bytes;
    p->done_bytes = 0;
    p->begins = true;
    pthread_mutex_unlock(&p->lock);
}

/* So much of the file is there; the first time for a file: was there. Less than the last time: it
 * begins anew. A download_tell. */
static void fetch_progress_tell(void *ctx, uint64_t done_bytes)
{
    fetch_progress *p = ctx;
    pthread_mutex_lock(&p->lock);
    if (!p->begins && done_bytes > p->done_bytes)
        p->came_bytes += done_bytes - p->done_bytes;
    p->begins = false;
    p->done_bytes = done_bytes;
    double done = (double)(p->before_bytes + done_bytes), rate = rate_of(p);
    pthread_mutex_unlock(&p->lock);
    if (!clock_passed(p->next_line_ns))
        return;
    p->next_line_ns = clock_deadline_ns(LINE_MS);
    LOG_I("fetching %s: %.1f of %.1f MB, %.1f MB/s", p->name, done / MB, (double)p->all_bytes / MB,
          rate / MB);
}

/* Accepts a zeroed one. */
static void fetch_progress_close(fetch_progress *p)
{
    if (!p->open)
        return;
    status_line_close(&p->line);
    pthread_mutex_destroy(&p->lock);
    p->ended_ns = clock_now_ns();
    p->open = false;
}

enum { LOCK_POLL_MS = 50, OWN_MIRRORS = DOWNLOAD_MIRRORS_MAX - DATASET_MIRRORS_MAX };

typedef struct fetching {
    const options *opts;
    const dataset_facts *facts;
    set_report set;
    bool wanted[MNIST_FILES_COUNT]; /* their .gz is to be fetched */
    int n_fetched;
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
    for (int i = 0; i < DATASET_MIRRORS_MAX && f->facts->mirrors[i] != NULL; i++)
        d->mirrors[d->n_mirrors++] = f->facts->mirrors[i];
    return STATUS_OK;
}

/* The .gz of a file: where it is to be. */
static status place_of(const fetching *f, int index, char *path)
{
    char name[FETCH_NAME_BYTES];
    const file_row *row = &f->set.rows[index];
    if (row->verdict == VERDICT_UNKNOWN) /* beside the plain one, which it tells about */
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
                is_other ? path : row->path, f->facts->title);
        f->wanted[i] = row->verdict != VERDICT_RIGHT;
        *n_wanted += f->wanted[i];
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
                f->facts->title, f->set.location.folder,
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
        const dataset_file *want = &f->facts->files[i];
        if (!f->wanted[i])
            continue;
        snprintf(name, sizeof name, "%s.gz",
                 mnist_files_name(mnist_files_split(i), mnist_files_kind(i)));
        fetch_progress_next(&f->progress, name);
        TRY(place_of(f, i, path));
        TRY(download_file(&f->download, name, want, path));
        f->set.rows[i].fetched = true;
        f->n_fetched++;
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
    if (st == STATUS_OK && curl->transfer == NULL)
        st = FAIL(STATUS_NO_MODULE, "module curl: that file is another module; what does "
                                    "MNIST_DDP_CURL_MODULE name?");
    if (st != STATUS_OK) {
        status_append("; or put the files of %s into %s", d->mirrors[0], f->set.location.folder);
        return st;
    }
    TRY(curl->transfer->open(&d->handle));
    for (int i = 0; i < MNIST_FILES_COUNT; i++)
        all_bytes += f->wanted[i] ? f->facts->files[i].size_bytes : 0;
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
    if (f->n_fetched == 0)
        puts("nothing was missing");
    else
        printf("fetched %d file%s, %.1f MB in %.1f s\n", f->n_fetched, f->n_fetched == 1 ? "" : "s",
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

int fetch(const options *opts, dataset_kind kind)
{
    void *memory = NULL;
    status st = memory_alloc(sizeof(fetching), &memory);
    if (st != STATUS_OK)
        return exit_code_failed(st, EXIT_CODE_INTERNAL);
    fetching *f = memory;
    f->opts = opts;
    f->set.facts = f->facts = dataset_kind_facts(kind);
    f->lock_fd = -1;
    int code = fetch_set(f, kind);
    free(f);
    return code;
}
