/* One result type for everything that can fail. A failure is three things, kept apart:
 *
 *   code      what callers branch on; nobody branches on the text
 *   text      what users read: status_text()
 *   location  the FAIL's file and line, for whoever works on this program: status_location(), and a
 *             line of the log at its debug level (log.h) for each FAIL
 *
 * Whoever first knows the cause calls FAIL once, with the values; callers only pass the status on.
 */
#ifndef MNIST_DDP_BASE_STATUS_H
#define MNIST_DDP_BASE_STATUS_H

#ifdef __cplusplus
extern "C" {
#endif

typedef enum status {
    STATUS_OK = 0,
    STATUS_INVALID,      /* the caller, the configuration or a file broke its contract */
    STATUS_NO_MEMORY,    /* for what the text says; "out of memory: " before it if errno says so */
    STATUS_IO,           /* file or socket; the text carries errno's */
    STATUS_TIMEOUT,      /* the deadline passed; the peer may still be alive */
    STATUS_PEER,         /* a peer hung up, died or sent nonsense; or there is no way to it */
    STATUS_DEVICE,       /* an arithmetic library or an accelerator */
    STATUS_REFUSED,      /* the host is there, but nobody listens on that port */
    STATUS_UNKNOWN_HOST, /* no address is known for that host name */
    STATUS_NO_MODULE,    /* a module is not there, or does not open (module.h) */
} status;

/* Notes text and location for this thread and evaluates to `code`. No hidden control flow. Leaves
 * errno as it was. */
#define FAIL(code, ...) status_fail((code), __FILE__, __LINE__, __VA_ARGS__)

/* Returns early on failure. Only in functions that hold nothing to release. */
#define TRY(expr) \
    do { \
        status try_ = (expr); \
        if (try_ != STATUS_OK) \
            return try_; \
    } while (0)

/* For our own bugs only: survives NDEBUG, prints the condition and aborts. No side effects in it.
 */
#define ASSERT(condition) \
    ((condition) ? (void)0 : status_assert_failed(#condition, __FILE__, __LINE__))

status status_fail(status code, const char *file, int line, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));

/* Puts "context: " before this thread's text; returns `code`. For a caller that knows more. */
status status_context(status code, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Puts a text after this thread's. For a caller that has found out more since. */
void status_append(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* This thread's latest FAIL, "" if none. Owned by status.c. The text is valid until the next FAIL,
 * status_context or status_append; the location ("net/socket.c:42") until the next
 * status_location. */
const char *status_text(void);
const char *status_location(void);

/* Keeps both of this thread while something is tidied up that may fail as well. */
typedef struct status_kept {
    char text[2048];
    const char *file; /* NULL: no FAIL yet */
    int line;
} status_kept;
void status_keep(status_kept *out);
void status_restore(const status_kept *kept);

/* The name of a code, as in "timeout"; for logs. */
const char *status_name(status code);

void status_assert_failed(const char *condition, const char *file, int line)
    __attribute__((noreturn));

#ifdef __cplusplus
}
#endif
#endif
