#include "app/common/exit_codes.h"

#include "app/options/options.h"
#include "base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int exit_code_failed(status st, int otherwise)
{
    LOG_E("%s", status_text());
    if (st == STATUS_TIMEOUT && otherwise != EXIT_CODE_RENDEZVOUS)
        return EXIT_CODE_TIMEOUT;
    if (st == STATUS_NO_MODULE)
        return EXIT_CODE_USAGE;
    if (st == STATUS_NO_MEMORY || st == STATUS_DEVICE)
        return EXIT_CODE_INTERNAL;
    return st == STATUS_PEER || st == STATUS_REFUSED ? EXIT_CODE_PEER : otherwise;
}

status standard_streams_open(void)
{
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++) {
        if (fcntl(fd, F_GETFD) >= 0)
            continue;
        int opened = open("/dev/null", O_RDONLY); /* the lowest number that is free: this one */
        if (opened != fd)
            return FAIL(STATUS_IO, "descriptor %d is closed, and /dev/null is not to be had: %s",
                        fd, strerror(errno));
    }
    return STATUS_OK;
}

void standard_streams_set_signal(const options *opts)
{
    const char *action = opts->action != NULL ? opts->action : "";
    bool fetches = opts->command == COMMAND_DATA && strcmp(action, "fetch") == 0;
    bool serves = opts->command == COMMAND_STORE && strcmp(action, "serve") == 0;
    if (opts->command == COMMAND_TRAIN || opts->command == COMMAND_BENCH || fetches || serves ||
        opts->command == COMMAND_SERVE || opts->command == COMMAND_DEMO ||
        (opts->command == COMMAND_RUN && !opts->dry_run))
        signal(SIGPIPE, SIG_IGN);
}

bool standard_streams_carry_result(const options *opts)
{
    bool tells = opts->command == COMMAND_TRAIN || opts->command == COMMAND_DEMO;
    return !tells || opts->json || opts->quiet;
}

int standard_streams_lost(int error, bool is_result, int code)
{
    const char *why = error != 0 ? strerror(error) : "a write failed";
    if (!is_result) {
        LOG_W("stdout: %s: some of the progress is not shown there", why);
        return code;
    }
    LOG_E("stdout: %s: not all results are written; give it a file or pipe that takes them, or "
          ">/dev/null",
          why);
    return code == EXIT_SUCCESS ? EXIT_CODE_OUTPUT : code;
}

int standard_streams_close(const options *opts, int code)
{
    bool failed = ferror(stdout) != 0;
    errno = 0;
    failed = fclose(stdout) != 0 || failed; /* some file systems fail only then */
    return failed ? standard_streams_lost(errno, standard_streams_carry_result(opts), code) : code;
}
