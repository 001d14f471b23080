#include "app/launch/launch_report.h"

#include "app/exit_codes.h"
#include "base/clock.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { ENDING_BYTES = 128 };

int launch_report_exit_code(const launch_worker *worker)
{
    int how = worker->wait_status;
    return WIFSIGNALED(how) ? 128 + WTERMSIG(how) : WEXITSTATUS(how);
}

void launch_report_ending(const launch_worker *worker, char *out, size_t size_bytes)
{
    int how = worker->wait_status;
    if (worker->start_errno != 0) {
        snprintf(out, size_bytes, "could not be executed: %s", strerror(worker->start_errno));
    } else if (WIFSIGNALED(how)) {
        const char *name = sigabbrev_np(WTERMSIG(how));
        snprintf(out, size_bytes, "SIG%s (%s)", name ? name : "?", strsignal(WTERMSIG(how)));
    } else {
        snprintf(out, size_bytes, "exit code %d", WEXITSTATUS(how));
    }
}

int64_t launch_report_memory_kills(void)
{
    char line[128];
    long long count = -1;
    FILE *file = fopen("/proc/vmstat", "re");
    if (file == NULL)
        return -1;
    while (fgets(line, sizeof line, file) != NULL)
        if (sscanf(line, "oom_kill %lld", &count) == 1)
            break;
    fclose(file);
    return count;
}

static const char *hint_for_signal(int signal, bool memory_killed)
{
    switch (signal) {
    case SIGKILL:
        return memory_killed
                   ? "killed by the kernel's out of memory killer? It was at work during the run: "
                     "fewer ranks, or a smaller --batch-size; dmesg tells"
                   : "somebody killed it (kill -9, a batch system, a container's memory limit)";
    case SIGTERM:
    case SIGINT:
    case SIGHUP:
    case SIGQUIT:
        return "somebody stopped this rank; to stop them all, signal the launcher";
    case SIGBUS:
        return "out of space in /dev/shm or on disk (df), or a bug; a core dump tells";
    default:
        return "a bug in mnist_ddp or a library: please report it with the lines above";
    }
}

static const char *hint_for_code(int code)
{
    switch (code) {
    case EXIT_CODE_USAGE:
        return "correct the flag, variable or file that the lines above name; mnist_ddp help";
    case EXIT_CODE_DATA:
        return "check --data-dir or MNIST_DDP_DATA: the folder with MNIST's four files";
    case EXIT_CODE_RENDEZVOUS:
        return "check that every machine has started, with the same --master-addr, --master-port "
               "and --nnodes, and that the port is open";
    case EXIT_CODE_PEER:
        return "a rank on another machine went away first: look at its launcher's report";
    case EXIT_CODE_CHECKPOINT:
        return "the lines above say what is wrong with --run-dir; df and ls -ld tell its space and "
               "permissions";
    case EXIT_CODE_TIMEOUT:
        return "a rank is stuck or slow: find the one whose log stops first, or raise --timeout";
    default:
        return "the lines above say why";
    }
}

/* It had to be killed, so it may be the one that the others waited for. */
static bool is_stuck(const launch_worker *worker)
{
    return worker->was_stopped && WIFSIGNALED(worker->wait_status) &&
           WTERMSIG(worker->wait_status) == SIGKILL;
}

static void write_others(FILE *out, const launch_report *report)
{
    char ending[ENDING_BYTES];
    int shown = 0, stopped = 0;
    for (int i = 0; i < report->n_workers; i++) {
        const launch_worker *worker = &report->workers[i];
        if (i == report->cause || worker->pid == 0 || worker->running || worker->wait_status == 0)
            continue;
        if (worker->was_stopped) {
            stopped++;
            continue;
        }
        launch_report_ending(worker, ending, sizeof ending);
        fprintf(out, "%srank %d: %s", shown++ ? ", " : "  also: ", worker->rank, ending);
    }
    if (shown > 0)
        fputc('\n', out);
    if (stopped > 0)
        fprintf(out, "  %d other rank%s stopped\n", stopped, stopped == 1 ? " was" : "s were");
    for (int i = 0; i < report->n_workers; i++) {
        const launch_worker *worker = &report->workers[i];
        if (is_stuck(worker))
            fprintf(out, "  rank %d (pid %d) did not end on SIGTERM: it was stuck, or stopped\n",
                    worker->rank, (int)worker->pid);
    }
}

status launch_report_create(const launch_report *report, char **out)
{
    char *text = NULL, ending[ENDING_BYTES], host[256] = "?";
    size_t size_bytes = 0;
    const launch_worker *cause = &report->workers[report->cause];
    FILE *file = open_memstream(&text, &size_bytes);
    if (file == NULL)
        return FAIL(STATUS_NO_MEMORY, "the report: %s", strerror(errno));
    if (gethostname(host, sizeof host - 1) != 0)
        snprintf(host, sizeof host, "?");
    launch_report_ending(cause, ending, sizeof ending);
    fprintf(file, "error: rank %d failed first: %s\n", cause->rank, ending);
    fprintf(file, "  rank %d, local rank %d, host %s, pid %d, after %.1f s\n", cause->rank,
            cause->local_rank, host, (int)cause->pid,
            clock_seconds(cause->ended_ns - report->started_ns));
    int64_t seen = cause->lines_seen, first = seen > WORKER_LINES ? seen - WORKER_LINES : 0;
    fprintf(file, seen > 0 ? "  its last lines:\n" : "  it wrote nothing to stderr\n");
    for (int64_t k = first; k < seen; k++)
        fprintf(file, "    | %s\n", cause->lines[k % WORKER_LINES]);
    write_others(file, report);
    int how = cause->wait_status;
    const char *hint = WIFSIGNALED(how) ? hint_for_signal(WTERMSIG(how), report->memory_killed)
                       : cause->start_errno != 0
                           ? "the program's own file, /proc/self/exe, is executed again"
                           : hint_for_code(WEXITSTATUS(how));
    fprintf(file, "  hint: %s\n", hint);
    if (fclose(file) != 0) {
        free(text);
        return FAIL(STATUS_NO_MEMORY, "the report");
    }
    *out = text;
    return STATUS_OK;
}
