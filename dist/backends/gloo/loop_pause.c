#include "dist/backends/gloo/loop_pause.h"

#include <sched.h>

enum { PROMPT_ROUNDS = 2 }; /* that are ordinary: a burst of data */

int loop_pause_epoll_wait(int fd, struct epoll_event *events, int max_events, int timeout_ms)
{
    static _Thread_local int prompt; /* rounds in a row that did not have to wait */
    int n = epoll_wait(fd, events, max_events, 0);
    if (n <= 0) {
        prompt = 0;
        return n < 0 ? n : epoll_wait(fd, events, max_events, timeout_ms);
    }
    if (++prompt > PROMPT_ROUNDS)
        sched_yield();
    return n;
}
