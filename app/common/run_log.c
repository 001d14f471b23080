#include "app/common/run_log.h"

#include "app/common/run_files.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/host.h"
#include "base/log.h"
#include "base/text.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum {
    SPOOL_BYTES = 1 << 18, /* kept of a launch that does not come to train; the rest is dropped */
    LINE_BYTES = 4096,
    BUFFER_BYTES = 1 << 14,
    EARLY_LOOKS = 100, /* for the lines that were before: a second in all, at most */
    EARLY_MS = 10,     /* between two of those looks */
    TIME_BYTES = 24,   /* "2026-11-23 07:15:02.117 " */
};

static struct {
    pthread_mutex_t lock; /* guards what follows */
    bool is_taking;
    bool is_rank_0s;            /* this process has opened the file, or tried to */
    char path[FILE_PATH_BYTES]; /* the file's; "": not known yet */
    int spool, fd;              /* -1: none */
    char text[BUFFER_BYTES];    /* lines on their way */
    size_t size_bytes;
} run_log = {.lock = PTHREAD_MUTEX_INITIALIZER, .spool = -1, .fd = -1};

static void close_both(void)
{
    if (run_log.spool >= 0)
        close(run_log.spool);
    if (run_log.fd >= 0)
        close(run_log.fd);
    run_log.spool = run_log.fd = -1;
}

static void stop_taking(void)
{
    run_log.is_taking = false;
    close_both();
}

/* Returns 0 or errno. A line that was cut is ended. */
static int open_file(void)
{
    run_log.fd = open(run_log.path, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC | O_NOCTTY, 0666);
    if (run_log.fd < 0)
        return errno;
    return file_ends_amid_a_line(run_log.fd) ? file_try_append(run_log.fd, "\n", 1) : 0;
}

/* false: another process has sealed it. */
static bool write_spool(void)
{
    struct stat about;
    if (run_log.spool < 0)
        run_log.spool = memfd_create("mnist_ddp log", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (run_log.spool < 0 || fcntl(run_log.spool, F_SETFL, O_APPEND) != 0 ||
        fstat(run_log.spool, &about) != 0)
        return true;
    if (about.st_size + (off_t)run_log.size_bytes > SPOOL_BYTES)
        return (fcntl(run_log.spool, F_GET_SEALS) & F_SEAL_WRITE) == 0;
    return file_try_append(run_log.spool, run_log.text, run_log.size_bytes) != EPERM;
}

/* Another process has sealed the spool: it holds the file until what the spool has is written, so
 * that no later line stands before it. */
static void await_early(void)
{
    for (int i = 0; i < EARLY_LOOKS && flock(run_log.fd, LOCK_SH | LOCK_NB) != 0; i++)
        clock_sleep_ms(EARLY_MS);
    (void)flock(run_log.fd, LOCK_UN);
}

/* Writes the lines to where they go now. Returns 0, or why the file did not take them. */
static int write_lines(void)
{
    int error = 0;
    if (run_log.size_bytes == 0)
        return 0;
    if (run_log.fd < 0 && write_spool()) {
        run_log.size_bytes = 0;
        return 0;
    }
    if (run_log.fd < 0) {
        error = open_file();
        if (error == 0)
            await_early();
    }
    if (error == 0)
        error = file_try_append(run_log.fd, run_log.text, run_log.size_bytes);
    run_log.size_bytes = 0;
    if (error != 0)
        stop_taking();
    return error;
}

/* The launcher leaves it to rank 0 to say so. */
static void warn(int error)
{
    if (error != 0 && run_log.is_rank_0s)
        LOG_W("%s: %s: the run goes on without this log", run_log.path, strerror(error));
}

static void print_time(char out[TIME_BYTES + 1])
{
    struct timespec now;
    struct tm local;
    (void)timespec_get(&now, TIME_UTC);
    size_t length =
        strftime(out, TIME_BYTES, "%Y-%m-%d %H:%M:%S", localtime_r(&now.tv_sec, &local));
    snprintf(out + length, TIME_BYTES + 1 - length, ".%03d ", (int)(now.tv_nsec / 1000000 % 1000));
}

/* The length of a terminal's control sequence, as ESC [ 3 1 m; of ESC alone, 1. */
static size_t escape_bytes(const char *text, size_t size_bytes)
{
    size_t n = 1;
    if (size_bytes < 2 || text[1] != '[')
        return n;
    for (n = 2; n < size_bytes && (text[n] < '@' || text[n] > '~'); n++)
        continue;
    return n < size_bytes ? n + 1 : n;
}

/* What of a line may stand in the file, into `out`, which has room for as much. */
static size_t copy_plain(const char *line, size_t size_bytes, char *out)
{
    size_t length = 0;
    for (size_t i = 0; i < size_bytes; i++) {
        unsigned char c = (unsigned char)line[i];
        if (c == '\033')
            i += escape_bytes(line + i, size_bytes - i) - 1;
        else if (c == '\t' || (c >= ' ' && c != 0x7f))
            out[length++] = (char)c;
    }
    return length;
}

/* Adds a line, without its end, to those on their way, at this time. */
static int add_line(const char *time_text, const char *line, size_t size_bytes)
{
    int error = 0;
    if (size_bytes > BUFFER_BYTES / 2)
        size_bytes = BUFFER_BYTES / 2;
    if (run_log.size_bytes + TIME_BYTES + size_bytes + 1 > BUFFER_BYTES)
        error = write_lines();
    char *at = run_log.text + run_log.size_bytes;
    size_t length = copy_plain(line, size_bytes, at + TIME_BYTES);
    if (length == 0 || error != 0)
        return error;
    memcpy(at, time_text, TIME_BYTES);
    at[TIME_BYTES + length] = '\n';
    run_log.size_bytes += TIME_BYTES + length + 1;
    return 0;
}

static int add_lines(const char *text, size_t size_bytes)
{
    char time_text[TIME_BYTES + 1];
    int error = 0;
    print_time(time_text);
    while (size_bytes > 0 && error == 0) {
        const char *end = memchr(text, '\n', size_bytes);
        size_t length = end != NULL ? (size_t)(end - text) : size_bytes;
        error = add_line(time_text, text, length);
        length += end != NULL;
        text += length;
        size_bytes -= length;
    }
    return error != 0 ? error : write_lines();
}

void run_log_leave(void)
{
    pthread_mutex_lock(&run_log.lock);
    if (run_log.fd >= 0)
        close(run_log.fd);
    run_log.fd = -1;
    run_log.is_rank_0s = false;
    pthread_mutex_unlock(&run_log.lock);
}

void run_log_say(const char *text, size_t size_bytes)
{
    pthread_mutex_lock(&run_log.lock);
    int error = run_log.is_taking ? add_lines(text, size_bytes) : 0;
    pthread_mutex_unlock(&run_log.lock);
    warn(error);
}

void run_log_line(const char *fmt, ...)
{
    char line[LINE_BYTES];
    va_list args;
    va_start(args, fmt);
    int length = vsnprintf(line, sizeof line, fmt, args);
    va_end(args);
    run_log_say(line, length < LINE_BYTES ? (size_t)length : LINE_BYTES - 1);
}

static void take_log_line(void *self, const char *line, size_t size_bytes)
{
    (void)self;
    run_log_say(line, size_bytes);
}

/* The one that this process has inherited; one that is sealed is an earlier rank 0's. */
static int find_spool(void)
{
    const char *text = environment_text("MNIST_DDP_RUN_LOG");
    int fd = -1;
    if (text == NULL || !number_parse(text, STDERR_FILENO + 1, INT_MAX, &fd))
        return -1;
    int seals = fcntl(fd, F_GET_SEALS);
    if (seals < 0)
        return -1; /* another file, and not ours to close */
    if ((seals & F_SEAL_WRITE) == 0 && fcntl(fd, F_SETFD, FD_CLOEXEC) == 0)
        return fd;
    close(fd);
    return -1;
}

void run_log_begin(void)
{
    run_log.spool = find_spool();
    run_log.is_taking = true;
    log_set_copy(take_log_line, NULL);
}

void run_log_end(void)
{
    log_set_copy(NULL, NULL);
    stop_taking();
}

static bool set_path(const char *folder)
{
    size_t room = sizeof run_log.path;
    return snprintf(run_log.path, room, "%s/%s", folder, RUN_FILE_LOG) < (int)room;
}

void run_log_follow(const char *folder)
{
    if (folder[0] == '\0' || !set_path(folder))
        run_log_end();
}

int run_log_spool(void)
{
    pthread_mutex_lock(&run_log.lock);
    if (run_log.is_taking && run_log.path[0] != '\0' && run_log.fd < 0)
        (void)write_spool(); /* makes the file, though there are no lines yet */
    int fd = run_log.fd < 0 ? run_log.spool : -1;
    pthread_mutex_unlock(&run_log.lock);
    return fd;
}

/* In one write. Returns 0 or errno. */
static int write_early(void)
{
    struct stat about;
    int error = 0;
    if (run_log.spool < 0 || fcntl(run_log.spool, F_ADD_SEALS, F_SEAL_WRITE) != 0 ||
        fstat(run_log.spool, &about) != 0 || about.st_size == 0)
        return 0;
    size_t size_bytes = (size_t)about.st_size;
    void *text = mmap(NULL, size_bytes, PROT_READ, MAP_PRIVATE, run_log.spool, 0);
    if (text == MAP_FAILED)
        return errno;
    error = file_try_append(run_log.fd, text, size_bytes);
    munmap(text, size_bytes);
    return error;
}

void run_log_open(const char *folder)
{
    int error = 0;
    pthread_mutex_lock(&run_log.lock);
    if (run_log.is_taking && set_path(folder)) {
        run_log.is_rank_0s = true;
        error = open_file();
        if (error == 0) {
            (void)flock(run_log.fd, LOCK_EX | LOCK_NB);
            error = write_early();
            (void)flock(run_log.fd, LOCK_UN);
        }
        if (run_log.spool >= 0)
            close(run_log.spool);
        run_log.spool = -1;
    }
    if (error != 0)
        stop_taking();
    pthread_mutex_unlock(&run_log.lock);
    warn(error);
}
