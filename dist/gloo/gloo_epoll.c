/* An epoll_wait() for gloo's event loop, in the executable, where a module's libraries look first.
 *
 * gloo's loop thread does not wait for a connection that another thread is using: it tries the
 * lock, and if that is held leaves the event to the next round, which comes at once, because epoll
 * reports it again. So it spins while the other thread writes; and where both share a core, it
 * spins for a whole time slice (4 ms on a kernel of 250 Hz) before the writer may go on. Here a
 * loop that gets its events without waiting, again and again, offers its core to others in between.
 */
#include <dlfcn.h>
#include <errno.h>
#include <sched.h>
#include <stdatomic.h>
#include <stddef.h>
#include <string.h>
#include <sys/epoll.h>

typedef int epoll_wait_fn(int fd, struct epoll_event *events, int max_events, int timeout_ms);

enum { PROMPT_ROUNDS = 2 }; /* that are ordinary: a burst of data */

static epoll_wait_fn *next_definition(void)
{
    static _Atomic(void *) found;
    epoll_wait_fn *fn = NULL;
    void *symbol = atomic_load_explicit(&found, memory_order_relaxed);
    if (symbol == NULL) {
        symbol = dlsym(RTLD_NEXT, "epoll_wait");
        atomic_store_explicit(&found, symbol, memory_order_relaxed);
    }
    memcpy(&fn, &symbol, sizeof fn); /* ISO C has no cast from object to function pointer */
    return fn;
}

int epoll_wait(int fd, struct epoll_event *events, int max_events, int timeout_ms)
{
    static _Thread_local int prompt; /* rounds in a row that did not have to wait */
    epoll_wait_fn *next = next_definition();
    if (next == NULL) {
        errno = ENOSYS;
        return -1;
    }
    int n = next(fd, events, max_events, 0);
    if (n <= 0) {
        prompt = 0;
        return n < 0 ? n : next(fd, events, max_events, timeout_ms);
    }
    if (++prompt > PROMPT_ROUNDS)
        sched_yield();
    return n;
}
