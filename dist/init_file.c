#include "dist/init_file.h"

#include "base/clock.h"
#include "base/file.h"
#include "base/host.h"
#include "base/log.h"
#include "dist/net/socket.h"
#include "dist/store/store.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    LINE_BYTES = 1024,
    LOOK_MS = 2000, /* for a store to answer */
    FIRST_PAUSE_MS = 10,
    LAST_PAUSE_MS = 200,
    FIRST_LINE_MS = 3000, /* the first line about waiting, */
    NEXT_LINE_MS = 5000,  /* and those after it */
    TURN_MS = 5000,       /* another rank 0 looks for LOOK_MS twice at most */
    WHO_BYTES = 440,
    WHY_BYTES = 800,
};

static const char MARK[] = "mnist_ddp-init-file-1", NEXT[] = ".next";

void init_file_init(init_file *line)
{
    unsigned char bits[(INIT_FILE_ID_BYTES - 1) / 2] = {0};
    *line = (init_file){.pid = (int)getpid(), .host_number = host_number()};
    if (getrandom(bits, sizeof bits, GRND_NONBLOCK) < 0)
        memcpy(bits, &line->pid, sizeof line->pid);
    for (size_t i = 0; i < sizeof bits; i++)
        snprintf(line->id + 2 * i, 3, "%02x", bits[i]);
    if (gethostname(line->host, sizeof line->host - 1) != 0 || line->host[0] == '\0')
        snprintf(line->host, sizeof line->host, "?");
}

/* *there: false if the file is not there, or empty. */
static status read_line(const char *path, init_file *out, bool *there)
{
    char *text = NULL;
    size_t size_bytes = 0;
    init_file line = {0};
    *there = false;
    if (!file_exists(path))
        return STATUS_OK;
    status st = file_read(path, LINE_BYTES, &text, &size_bytes);
    if (st == STATUS_IO && !file_exists(path))
        return STATUS_OK; /* removed meanwhile */
    if (st == STATUS_OK && size_bytes > 0) {
        char mark[sizeof MARK] = "";
        int fields =
            sscanf(text, "%21s %32[0-9a-f] %255s %5d %10d %16" SCNx64 " %255s", mark, line.id,
                   line.address, &line.port, &line.pid, &line.host_number, line.host);
        *there = fields == 7 && strcmp(mark, MARK) == 0 && text[size_bytes - 1] == '\n';
        if (!*there)
            st = FAIL(STATUS_INVALID, "it is no file of ours");
    }
    free(text);
    if (st != STATUS_OK)
        return status_context(st, "%s: file:// takes a path that is new, or an empty file", path);
    *out = line;
    return STATUS_OK;
}

typedef enum job_state { JOB_LIVES, JOB_GONE, JOB_UNKNOWN } job_state;

/* Whether the store of the line lives; if it does not, the text says what was found. */
static job_state look_at(const init_file *line)
{
    char prefix[INIT_FILE_ID_BYTES + 32];
    store *client = NULL;
    bool there = false;
    int fd = -1;
    status st = socket_connect(line->address, line->port, clock_deadline_ns(LOOK_MS), &fd);
    if (st != STATUS_OK)
        return st == STATUS_REFUSED ? JOB_GONE : JOB_UNKNOWN;
    close(fd);
    snprintf(prefix, sizeof prefix, "mnist_ddp/%s/0/", line->id);
    const store_options options = {.host = line->address,
                                   .port = line->port,
                                   .prefix = prefix,
                                   .timeout_ms = LOOK_MS,
                                   .connect_timeout_ms = LOOK_MS};
    st = store_create(&options, &client);
    if (st == STATUS_OK)
        st = store_check(client, INIT_FILE_KEY, &there);
    store_destroy(client);
    if (st != STATUS_OK)
        return JOB_UNKNOWN;
    if (!there)
        (void)FAIL(STATUS_PEER, "another job serves a store there");
    return there ? JOB_LIVES : JOB_GONE;
}

/* "10.0.0.1:4711, of pid 12 on host a". */
static void describe(const init_file *line, char out[WHO_BYTES])
{
    char name[SOCKET_ADDRESS_BYTES];
    socket_address_name(line->address, line->port, name);
    snprintf(out, WHO_BYTES, "%.300s, of pid %d on host %.80s", name, line->pid, line->host);
}

/* STATUS_INVALID if the path is a living job's, or no file of ours. A link would be replaced, and
 * ranks that look at what it names would find nothing. */
static status check_free(const char *path)
{
    char who[WHO_BYTES];
    init_file line;
    bool there = false;
    struct stat info;
    if (lstat(path, &info) == 0 && S_ISLNK(info.st_mode))
        return FAIL(STATUS_INVALID, "%s is a symbolic link: file:// takes the path of the file",
                    path);
    TRY(read_line(path, &line, &there));
    if (!there)
        return STATUS_OK;
    describe(&line, who);
    switch (look_at(&line)) {
    case JOB_LIVES:
        return FAIL(STATUS_INVALID,
                    "%s: another rank 0 has it and serves at %s: give every job a path of its own",
                    path, who);
    case JOB_UNKNOWN:
        return status_context(STATUS_INVALID,
                              "%s: a job has left it, whose store at %s does not answer; if that "
                              "job has ended, remove the file",
                              path, who);
    case JOB_GONE:
        break;
    }
    LOG_W("%s: a job that is gone has left it (%s): replaced", path, who);
    return STATUS_OK;
}

/* Opens the file that becomes `path`. While it is there, another rank 0 waits for its turn. */
static status open_next(const char *path, file_draft *out)
{
    file_draft next = {.fd = -1};
    int64_t deadline_ns = clock_deadline_ns(TURN_MS);
    int length = snprintf(next.path, sizeof next.path, "%s", path);
    if (length < 0 || (size_t)length >= sizeof next.path - sizeof NEXT)
        return FAIL(STATUS_INVALID, "path too long: %.64s...", path);
    memcpy(next.temporary, path, (size_t)length);
    memcpy(next.temporary + length, NEXT, sizeof NEXT);
    while (next.fd < 0) {
        next.fd = open(next.temporary, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
        if (next.fd < 0 && errno != EEXIST)
            return FAIL(STATUS_IO, "create %s: %s", next.temporary, strerror(errno));
        if (next.fd < 0 && clock_passed(deadline_ns))
            return FAIL(STATUS_INVALID,
                        "%s: another rank 0 writes %s for more than %d s: if there is none, "
                        "remove that file",
                        path, next.temporary, TURN_MS / 1000);
        if (next.fd < 0)
            clock_sleep_ms(FIRST_PAUSE_MS);
    }
    *out = next;
    return STATUS_OK;
}

status init_file_publish(const char *path, const init_file *line)
{
    char text[LINE_BYTES];
    file_draft next;
    int length = snprintf(text, sizeof text, "%s %s %s %d %d %" PRIx64 " %s\n", MARK, line->id,
                          line->address, line->port, line->pid, line->host_number, line->host);
    ASSERT(length > 0 && (size_t)length < sizeof text);
    TRY(open_next(path, &next));
    status st = check_free(path);
    if (st == STATUS_OK)
        st = file_append(next.fd, next.temporary, text, (size_t)length);
    if (st == STATUS_OK)
        return file_draft_commit(&next);
    file_draft_drop(&next);
    return st;
}

void init_file_remove(const char *path, const char *id)
{
    init_file line;
    bool there = false;
    if (read_line(path, &line, &there) != STATUS_OK || !there || strcmp(line.id, id) != 0)
        return;
    if (unlink(path) != 0 && errno != ENOENT)
        LOG_W("cannot remove %s: %s", path, strerror(errno));
}

/* One look at the file. *lives: *out leads to the store; else `why` says what is missing. */
static status look(const char *path, init_file *out, bool *lives, char why[WHY_BYTES])
{
    char who[WHO_BYTES];
    bool there = false;
    *lives = false;
    snprintf(why, WHY_BYTES,
             "there is no such file, or it is empty; has rank 0 started, and does "
             "it see the same file?");
    TRY(read_line(path, out, &there));
    if (!there)
        return STATUS_OK;
    describe(out, who);
    if (out->host_number != host_number() && socket_address_says_loopback(out->address))
        return FAIL(STATUS_INVALID,
                    "%s: rank 0 serves at %s, which no other host reaches: start it with "
                    "--local-addr=ADDRESS, its own address",
                    path, who);
    *lives = look_at(out) == JOB_LIVES;
    if (!*lives)
        snprintf(why, WHY_BYTES, "it leads to %s: %.200s; has rank 0 of this job started?", who,
                 status_text());
    return STATUS_OK;
}

status init_file_await(const char *path, int64_t timeout_ms, const char *describe, init_file *out)
{
    char why[WHY_BYTES];
    int64_t deadline_ns = clock_deadline_ns(timeout_ms);
    int64_t line_ns = clock_deadline_ns(FIRST_LINE_MS);
    for (int64_t pause_ms = FIRST_PAUSE_MS;; pause_ms *= 2) {
        init_file line;
        bool lives = false;
        TRY(status_context(look(path, &line, &lives, why), "%s", describe));
        if (lives) {
            *out = line;
            return STATUS_OK;
        }
        int left_ms = clock_remaining_ms(deadline_ns);
        if (left_ms == 0)
            return FAIL(STATUS_TIMEOUT, "%s: %s led to no store within %.3g s: %s", describe, path,
                        (double)timeout_ms * 1e-3, why);
        if (clock_passed(line_ns)) {
            LOG_I("%s: waiting for rank 0 at %s (%s) ... %d s of %.3g s are left", describe, path,
                  why, left_ms / 1000, (double)timeout_ms * 1e-3);
            line_ns = clock_deadline_ns(NEXT_LINE_MS);
        }
        if (pause_ms > LAST_PAUSE_MS)
            pause_ms = LAST_PAUSE_MS;
        clock_sleep_ms(pause_ms < left_ms ? pause_ms : left_ms);
    }
}
