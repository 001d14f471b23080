#include "data/download.h"

#include "base/clock.h"
#include "base/digest.h"
#include "base/log.h"
#include "base/text.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    HEAD_BYTES = 96, /* what a message shows of an answer that is no gzip file */
    TRIES = 3,       /* if a mirror says that it cannot now, or breaks off */
    BACKOFF_MS = 500,
    LONGEST_WAIT_S = 10,
    REASONS_BYTES = 1600,
};

static const uint8_t GZIP_MAGIC[] = {0x1f, 0x8b};

/* PATH.part while it is written. */
typedef struct part {
    download *d;
    const dataset_file *want;
    int fd;
    char path[FILE_PATH_BYTES];
    uint64_t size_bytes;
    bool is_resumed; /* its first bytes are not of the mirror that is asked */

    /* the answer under way: */
    transfer_answer answer;
    uint8_t head[HEAD_BYTES]; /* its first bytes, until they are known to be gzip's */
    size_t head_bytes;
    bool is_gzip, range_failed, is_other, disk_failed;
} part;

static status part_clear(part *p)
{
    if (ftruncate(p->fd, 0) != 0 || lseek(p->fd, 0, SEEK_SET) != 0) {
        p->disk_failed = true;
        return FAIL(STATUS_IO, "shorten %s: %s", p->path, strerror(errno));
    }
    p->size_bytes = 0;
    p->is_resumed = false;
    p->d->tell(p->d->tell_ctx, 0);
    return STATUS_OK;
}

/* The same, for the failure `st`, whose text stays. */
static status part_drop(part *p, status st)
{
    status_kept why;
    status_keep(&why);
    TRY(part_clear(p));
    status_restore(&why);
    return st;
}

/* What is there already is taken if it may be the file's begin. */
static status part_open(part *p, const char *path)
{
    uint8_t magic[sizeof GZIP_MAGIC];
    struct stat info;
    if (snprintf(p->path, sizeof p->path, "%s.part", path) >= (int)sizeof p->path)
        return FAIL(STATUS_INVALID, "path too long: %.64s...", path);
    p->fd = open(p->path, O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0666);
    if (p->fd < 0)
        return FAIL(STATUS_IO, "create %s: %s", p->path, strerror(errno));
    if (fstat(p->fd, &info) != 0 || !S_ISREG(info.st_mode)) {
        close(p->fd);
        p->fd = -1;
        return FAIL(STATUS_IO, "%s is not a regular file; remove it", p->path);
    }
    bool fits = (uint64_t)info.st_size <= p->want->size_bytes &&
                pread(p->fd, magic, sizeof magic, 0) == (ssize_t)sizeof magic &&
                memcmp(magic, GZIP_MAGIC, sizeof magic) == 0;
    if (!fits)
        return part_clear(p);
    p->size_bytes = (uint64_t)lseek(p->fd, 0, SEEK_END);
    return STATUS_OK;
}

static void part_close(part *p)
{
    if (p->fd < 0)
        return;
    close(p->fd);
    if (p->size_bytes == 0)
        unlink(p->path);
}

static status no_gzip_file(const part *p)
{
    char text[HEAD_BYTES + 1], type[TRANSFER_TYPE_BYTES], words[4 * HEAD_BYTES];
    memcpy(text, p->head, p->head_bytes);
    text[p->head_bytes] = '\0';
    for (char *c = text; *c != '\0'; c++)
        *c = *c == '\n' || *c == '\r' || *c == '\t' ? ' ' : *c;
    printable_copy(PRINTABLE_LINE, text, words, sizeof words);
    printable_copy(PRINTABLE_LINE, p->answer.type, type, sizeof type);
    return FAIL(STATUS_INVALID,
                "what came is not a gzip file but %s that begins with \"%s\": a login page of this "
                "network, or a proxy's?",
                type[0] != '\0' ? type : "something", words);
}

static status begin_answer(void *ctx, const transfer_answer *answer)
{
    part *p = ctx;
    uint64_t from = p->size_bytes;
    p->answer = *answer;
    p->head_bytes = 0;
    p->is_gzip = from > 0 && answer->code == 206;
    p->range_failed = from > 0 && (answer->code == 206 || answer->code == 416);
    if (answer->code == 200)
        return STATUS_OK; /* what is there goes once a gzip file comes in its place */
    if (answer->code != 206 || from == 0)
        return FAIL(STATUS_PEER, "HTTP %d", answer->code);
    if (answer->first_byte != (int64_t)from || answer->whole != (int64_t)p->want->size_bytes)
        return FAIL(STATUS_PEER,
                    "bytes from %" PRId64 " on of %" PRId64 ", not from %" PRIu64 " on of %" PRIu64,
                    answer->first_byte, answer->whole, from, p->want->size_bytes);
    p->range_failed = false;
    return STATUS_OK;
}

static status append(part *p, const void *data, size_t size_bytes)
{
    p->is_other = size_bytes > p->want->size_bytes - p->size_bytes;
    if (p->is_other)
        return FAIL(STATUS_INVALID, "more came than the %" PRIu64 " bytes that it has",
                    p->want->size_bytes);
    status st = file_append(p->fd, p->path, data, size_bytes);
    p->disk_failed = st != STATUS_OK;
    if (st != STATUS_OK)
        return st;
    p->size_bytes += size_bytes;
    p->d->tell(p->d->tell_ctx, p->size_bytes);
    return STATUS_OK;
}

/* Nothing is written before it is known to begin as a gzip file does. */
static status take_bytes(void *ctx, const void *data, size_t size_bytes)
{
    part *p = ctx;
    const uint8_t *bytes = data;
    if (!p->is_gzip) {
        size_t room = HEAD_BYTES - p->head_bytes, n = size_bytes < room ? size_bytes : room;
        memcpy(p->head + p->head_bytes, bytes, n);
        p->head_bytes += n;
        bytes += n;
        size_bytes -= n;
        if (p->head_bytes < sizeof GZIP_MAGIC)
            return STATUS_OK;
        p->is_gzip = memcmp(p->head, GZIP_MAGIC, sizeof GZIP_MAGIC) == 0;
        if (!p->is_gzip)
            return p->head_bytes < HEAD_BYTES ? STATUS_OK : no_gzip_file(p);
        TRY(part_clear(p));
        TRY(append(p, p->head, p->head_bytes));
    }
    return size_bytes > 0 ? append(p, bytes, size_bytes) : STATUS_OK;
}

/* One request for what is missing. */
static status get_rest(part *p, const char *url)
{
    download *d = p->d;
    int share = d->connect_timeout_ms / d->n_mirrors;
    transfer_request request = {.url = url,
                                .from_byte = p->size_bytes,
                                .connect_timeout_ms = share > 0 ? share : 1,
                                .stall_timeout_s = d->stall_timeout_s,
                                .wake_fd = d->wake_fd,
                                .begin = begin_answer,
                                .take = take_bytes,
                                .ctx = p};
    p->range_failed = p->is_other = false;
    p->head_bytes = 0;
    status st = d->http->perform(d->handle, &request, &p->answer);
    d->interrupted = p->answer.interrupted;
    if (st != STATUS_OK || d->interrupted)
        return st;
    if (!p->is_gzip)
        return no_gzip_file(p);
    return p->size_bytes == p->want->size_bytes
               ? STATUS_OK
               : FAIL(STATUS_PEER, "it ended after %" PRIu64 " of %" PRIu64 " bytes", p->size_bytes,
                      p->want->size_bytes);
}

static status check_digest(part *p)
{
    char sum[DIGEST_TEXT_BYTES];
    status st = digest_file(p->path, sum);
    p->disk_failed = st != STATUS_OK;
    if (st == STATUS_OK && strcmp(sum, p->want->sha256) != 0)
        st = FAIL(STATUS_INVALID, "its SHA-256 is %s, not %s", sum, p->want->sha256);
    return st;
}

/* Whether to ask the same mirror again. Waits, if it is to be later. */
static bool is_worth_a_try(const part *p, status st, uint64_t had_bytes, int *tries)
{
    bool busy = p->answer.code == 429 || p->answer.code >= 500;
    bool broke_off = st == STATUS_PEER && p->size_bytes > had_bytes;
    if (p->range_failed)
        return true;
    if ((!busy && !broke_off) || ++*tries == TRIES || p->answer.retry_after_s > LONGEST_WAIT_S)
        return false;
    if (broke_off)
        return true;
    struct pollfd wake = {.fd = p->d->wake_fd, .events = POLLIN};
    int64_t wait_ms = p->answer.retry_after_s > 0 ? p->answer.retry_after_s * 1000
                                                  : (int64_t)BACKOFF_MS << (*tries - 1);
    p->d->interrupted = poll(&wake, 1, (int)wait_ms) == 1;
    return !p->d->interrupted;
}

/* All of it from one mirror. What another has left is kept as long as it may be right. */
static status get_from(part *p, const char *url)
{
    int tries = 0;
    p->is_resumed = p->size_bytes > 0;
    for (;;) {
        uint64_t had_bytes = p->size_bytes;
        p->answer = (transfer_answer){0};
        status st = had_bytes < p->want->size_bytes ? get_rest(p, url) : STATUS_OK;
        if (st == STATUS_OK && !p->d->interrupted) {
            bool was_resumed = p->is_resumed;
            st = check_digest(p);
            if (st == STATUS_OK || p->disk_failed)
                return st;
            st = part_drop(p, st);
            if (!was_resumed)
                return st;
            continue; /* what was there before may have been wrong: all of it from here */
        }
        if (p->is_other && !p->disk_failed)
            return part_drop(p, st);
        if (p->d->interrupted || p->disk_failed || !is_worth_a_try(p, st, had_bytes, &tries))
            return st;
        if (p->range_failed)
            TRY(part_clear(p));
    }
}

static status finish(const part *p, const char *path)
{
    char folder[FILE_PATH_BYTES];
    if (fsync(p->fd) != 0)
        return FAIL(STATUS_IO, "sync %s: %s", p->path, strerror(errno));
    if (rename(p->path, path) != 0)
        return FAIL(STATUS_IO, "rename %s to %s: %s", p->path, path, strerror(errno));
    file_folder_of(path, folder);
    return file_sync_folder(folder);
}

/* The mirror that had it is the first from here on. */
static void prefer(download *d, int mirror)
{
    const char *best = d->mirrors[mirror];
    memmove(d->mirrors + 1, d->mirrors, (size_t)mirror * sizeof d->mirrors[0]);
    d->mirrors[0] = best;
}

static status try_mirrors(part *p, const char *name)
{
    download *d = p->d;
    char reasons[REASONS_BYTES] = "", url[TRANSFER_URL_BYTES];
    size_t used = 0;
    for (int i = 0; i < d->n_mirrors; i++) {
        if (snprintf(url, sizeof url, "%s%s", d->mirrors[i], name) >= (int)sizeof url)
            return FAIL(STATUS_INVALID, "URL too long: %.64s...", url);
        status st = get_from(p, url);
        if (d->interrupted)
            return FAIL(STATUS_INVALID,
                        "%s: interrupted after %" PRIu64 " of %" PRIu64 " bytes; the same command "
                        "goes on from there",
                        name, p->size_bytes, p->want->size_bytes);
        if (st != STATUS_OK && p->disk_failed)
            return st;
        if (st == STATUS_OK) {
            if (used > 0)
                LOG_W("%s came from %s; not from these: %s", name, d->mirrors[i], reasons);
            snprintf(d->from, sizeof d->from, "%s", url);
            prefer(d, i);
            return STATUS_OK;
        }
        bool elsewhere = p->answer.url[0] != '\0' && strcmp(p->answer.url, url) != 0;
        int n = snprintf(reasons + used, sizeof reasons - used, "%s%.200s%s%.200s: %.400s",
                         used > 0 ? "; " : "", url, elsewhere ? " redirected to " : "",
                         elsewhere ? p->answer.url : "", status_text());
        used = used + (size_t)n < sizeof reasons ? used + (size_t)n : sizeof reasons - 1;
    }
    return FAIL(STATUS_INVALID, "%s cannot be fetched: %s", name, reasons);
}

status download_file(download *d, const char *name, const dataset_file *want, const char *path)
{
    part p = {.d = d, .want = want, .fd = -1};
    d->interrupted = false;
    status st = part_open(&p, path);
    if (st == STATUS_OK) {
        d->tell(d->tell_ctx, p.size_bytes);
        st = try_mirrors(&p, name);
    }
    if (st == STATUS_OK)
        st = finish(&p, path);
    part_close(&p);
    return st;
}
