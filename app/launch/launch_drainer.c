#include "app/launch/launch_drainer.h"

#include "base/log.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

__attribute__((noreturn)) static void drain(worker_group *group, struct pollfd *polled)
{
    agent_console console;
    sigset_t none;
    setsid();
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL); /* the launcher's were for itself */
    orphan_reaper_close(&group->start.reaper);
    agent_console_init(&console, -1);
    group->console = &console;
    for (int n; (n = worker_group_poll(group, polled)) > 0;) {
        if (poll(polled, (nfds_t)n, -1) < 0 && errno != EINTR)
            break;
        worker_group_read(group, polled);
        agent_console_flush(&console);
    }
    _exit(EXIT_SUCCESS);
}

void launch_drainer_start(const worker_group *group)
{
    worker_group own = *group;
    struct pollfd *polled = calloc((size_t)group->n * 2 + 1, sizeof *polled);
    if (polled == NULL)
        return;
    if (worker_group_is_over(group) && worker_group_poll(&own, polled) > 0) {
        pid_t pid = fork();
        if (pid == 0)
            drain(&own, polled);
        if (pid < 0)
            LOG_W("what the ranks have left running loses its stderr: fork: %s", strerror(errno));
    }
    free(polled);
}
