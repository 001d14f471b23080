#include "app/launch/failure_report.h"

#include "app/exit_codes.h"
#include "base/printable.h"
#include "base/text_stream.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

static const char *hint_for_signal(int signal, bool memory_killed, bool own)
{
    switch (signal) {
    case SIGKILL:
        return memory_killed
                   ? "killed by the kernel's out of memory killer? It was at work during the run: "
                     "fewer ranks, or a smaller batch size; dmesg tells"
                   : "somebody killed it (kill -9, a batch system, a container's memory limit)";
    case SIGTERM:
    case SIGINT:
    case SIGHUP:
    case SIGQUIT:
        return "somebody stopped this rank; to stop them all, signal the launcher";
    case SIGBUS:
        return "out of space in /dev/shm or on disk (df), or a bug; a core dump tells";
    default:
        return own ? "a bug in mnist_ddp or a library: please report it with the lines above and "
                     "what mnist_ddp env says"
                   : "a bug in the program or a library; a core dump tells where (ulimit -c "
                     "unlimited)";
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
               "and --nnodes, and that the port is open; mnist_ddp doctor";
    case EXIT_CODE_PEER:
        return "another rank, or the connection to it, went away first: its own report, perhaps on "
               "another machine, says why";
    case EXIT_CODE_CHECKPOINT:
        return "the lines above say what is wrong with --run-dir or stdout; df and ls -ld tell "
               "space and permissions";
    case EXIT_CODE_TIMEOUT:
        return "a rank is stuck or slow: look at the one that never came (its log, gdb -p PID), or "
               "raise --timeout";
    default:
        return "the lines above say why";
    }
}

static const char *hint_for(const failure_report *report)
{
    const process_failure *cause = report->cause;
    bool own = report->policy->own;
    if (cause->start_errno == ENOEXEC)
        return "it is no program: a script needs a first line as #!/usr/bin/env python3, or the "
               "ending .py";
    if (cause->start_errno != 0)
        return own ? "the program's own file, /proc/self/exe, is executed again"
                   : "check the program's path and permissions (ls -l)";
    if (WIFSIGNALED(cause->wait_status))
        return hint_for_signal(WTERMSIG(cause->wait_status), cause->memory_killed, own);
    if (own)
        return hint_for_code(WEXITSTATUS(cause->wait_status));
    return cause->n_lines > 0 ? "the lines above say why"
                              : "it said nothing on stderr: see its stdout, or --tee=3 to keep it";
}

/* It had to be killed, so it may be the one that the others waited for. */
static bool is_stuck(const worker *w)
{
    return w->was_stopped && WIFSIGNALED(w->wait_status) && WTERMSIG(w->wait_status) == SIGKILL;
}

char *failure_report_others(const worker_group *group)
{
    char failure[FAILURE_TEXT_BYTES], *text = NULL;
    int shown = 0, stopped = 0;
    text_stream lines;
    if (text_stream_open(&lines) != STATUS_OK)
        return NULL;
    FILE *out = lines.file;
    for (int i = 0; i < group->n; i++) {
        const worker *w = &group->workers[i];
        if (i == group->cause || w->pid == 0 || w->running || w->wait_status == 0)
            continue;
        if (w->was_stopped) {
            stopped++;
            continue;
        }
        process_failure_text(w->wait_status, w->start_errno, failure);
        fprintf(out, "%srank %d: %s", shown++ ? ", " : "  also: ", w->rank, failure);
    }
    if (shown > 0)
        fputc('\n', out);
    if (stopped > 0)
        fprintf(out, "  %d other rank%s stopped\n", stopped, stopped == 1 ? " was" : "s were");
    for (int i = 0; i < group->n; i++) {
        const worker *w = &group->workers[i];
        if (is_stuck(w))
            fprintf(out, "  rank %d (pid %d) did not end on SIGTERM: it was stuck, or stopped\n",
                    w->rank, (int)w->pid);
    }
    (void)text_stream_close(&lines, &text, NULL);
    return text;
}

/* "; restart 1 of 3", "; 3 restarts are used up" or nothing. */
static void restart_text(const failure_report *report, char *out, size_t size_bytes)
{
    out[0] = '\0';
    if (report->restart > 0)
        snprintf(out, size_bytes, "; restart %d of %d", report->restart, report->max_restarts);
}

void failure_report_line(const failure_report *report, char *out, size_t size_bytes)
{
    char failure[FAILURE_TEXT_BYTES], restart[64];
    const process_failure *cause = report->cause;
    process_failure_text(cause->wait_status, cause->start_errno, failure);
    restart_text(report, restart, sizeof restart);
    snprintf(out, size_bytes, "%s: rank %d on node %d (%s) failed first: %s%s\n",
             report->restart > 0 ? "warning" : "error", cause->rank, cause->node, cause->host,
             failure, restart);
}

/* Whether the last lines hold the message anyway, behind its kind ("RuntimeError: "). */
static bool is_said(const process_failure *cause)
{
    const char *text = strstr(cause->says, ": ");
    text = text != NULL ? text + 2 : cause->says;
    char start[80];
    snprintf(start, sizeof start, "%.*s", (int)strcspn(text, "\n"), text);
    for (int i = 0; i < cause->n_lines; i++)
        if (strstr(cause->lines[i], start) != NULL)
            return true;
    return false;
}

/* From another node: nothing of it may look like a line of ours, or do more than be read. NULL: no
 * memory. */
static char *printable_of(const char *text)
{
    size_t size_bytes = strlen(text) * 4 + 1;
    char *shown = malloc(size_bytes);
    if (shown != NULL)
        printable_copy(PRINTABLE_LINES, text, shown, size_bytes);
    return shown;
}

static void put_printable(FILE *file, const char *before, const char *text)
{
    char *shown = printable_of(text);
    fputs(before, file);
    fputs(shown != NULL ? shown : "", file);
    free(shown);
}

static void write_report(FILE *file, const failure_report *report)
{
    char failure[FAILURE_TEXT_BYTES], restart[64];
    const process_failure *cause = report->cause;
    process_failure_text(cause->wait_status, cause->start_errno, failure);
    restart_text(report, restart, sizeof restart);
    fprintf(file, "%s: rank %d failed first: %s%s\n", report->restart > 0 ? "warning" : "error",
            cause->rank, failure, restart);
    fprintf(file, "  rank %d, local rank %d, node %d, host %s, pid %d, after %.1f s\n", cause->rank,
            cause->local_rank, cause->node, cause->host, cause->pid, cause->after_s);
    /* Words of other ranks may be in what a rank says of itself. */
    if (cause->doing[0] != '\0') {
        put_printable(file, "  it was last ", cause->doing);
        fputc('\n', file);
    }
    if (cause->says[0] != '\0' && !is_said(cause)) {
        put_printable(file, "  it says: ", cause->says);
        fputc('\n', file);
    }
    fprintf(file, cause->n_lines > 0 ? "  its last lines:\n" : "  it wrote nothing to stderr\n");
    for (int i = 0; i < cause->n_lines; i++)
        fprintf(file, "    | %s\n", cause->lines[i]);
    fputs(cause->others, file);
    put_printable(file, "", report->hang); /* of all nodes */
    if (cause->folder[0] != '\0')
        fprintf(file, "  log: %s%s%s\n", cause->folder, report->elsewhere ? " on " : "",
                report->elsewhere ? cause->host : "");
    fprintf(file, "  hint: %s\n", hint_for(report));
}

status failure_report_create(const failure_report *report, char **out)
{
    char *text = NULL;
    text_stream lines;
    TRY(text_stream_open(&lines));
    write_report(lines.file, report);
    TRY(text_stream_close(&lines, &text, NULL));
    if (report->elsewhere) {
        char *shown = printable_of(text);
        free(text);
        text = shown;
    }
    *out = text;
    return text != NULL ? STATUS_OK : FAIL(STATUS_NO_MEMORY, "the report");
}
