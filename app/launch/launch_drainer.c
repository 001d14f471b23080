#include "app/launch/launch_drainer.h"

#include "base/log.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

__attribute__((noreturn)) static void drain(launch_gang *gang, struct pollfd *polled)
{
    launch_console console;
    sigset_t none;
    setsid();
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL); /* the launcher's were for itself */
    launch_guardian_close(&gang->start.guardian);
    launch_console_init(&console, -1);
    gang->console = &console;
    for (int n; (n = launch_gang_poll(gang, polled)) > 0;) {
        if (poll(polled, (nfds_t)n, -1) < 0 && errno != EINTR)
            break;
        launch_gang_read(gang, polled);
        launch_console_flush(&console);
    }
    _exit(EXIT_SUCCESS);
}

void launch_drainer_start(const launch_gang *gang)
{
    launch_gang own = *gang;
    struct pollfd *polled = calloc((size_t)gang->n * 2 + 1, sizeof *polled);
    if (polled == NULL)
        return;
    if (launch_gang_is_over(gang) && launch_gang_poll(&own, polled) > 0) {
        pid_t pid = fork();
        if (pid == 0)
            drain(&own, polled);
        if (pid < 0)
            LOG_W("what the ranks have left running loses its stderr: fork: %s", strerror(errno));
    }
    free(polled);
}
