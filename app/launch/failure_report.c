#include "app/launch/failure_report.h"

#include "app/common/error_file.h"
#include "app/common/exit_codes.h"
#include "app/common/run_log.h"
#include "base/host.h"
#include "base/log.h"
#include "base/text.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

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
        return "the lines above say what is wrong with --run-dir, --html or stdout; df and ls "
               "-ld tell space and permissions";
    case EXIT_CODE_TIMEOUT:
        return "a rank is stuck or slow: look at the one that never came (its log, gdb -p PID), or "
               "raise --timeout";
    default:
        return "the lines above say why";
    }
}

static bool lines_hold(const process_failure *cause, const char *text)
{
    for (int i = 0; i < cause->n_lines; i++)
        if (strstr(cause->lines[i], text) != NULL)
            return true;
    return false;
}

/* NULL: what it has said is all that is known. */
static const char *hint_for(const process_failure *cause, bool own)
{
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
    if (lines_hold(cause, "remote=[127."))
        return "does another host's own name stand for a loopback address there? Then set "
               "GLOO_SOCKET_IFNAME on it to the interface that the others reach";
    return cause->n_lines > 0 ? NULL
                              : "it said nothing on stderr: see its stdout, or --tee=3 to keep it";
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

/* "error: rank 1 WHAT: SIGKILL (Killed)", with "; restart 1 of 3" if all ranks start again; of a
 * deadline that has passed "error: rank 2 hangs (stopped), rank 1 has waited ...". */
static void write_head(FILE *file, const failure_report *report, const process_failure *cause,
                       const char *what)
{
    char ending[FAILURE_TEXT_BYTES];
    bool again = report->outcome->again;
    process_failure_text(cause->wait_status, cause->start_errno, ending);
    fprintf(file, "%s: ", again ? "warning" : "error");
    if (cause->priority == CAUSE_WAITED && report->outcome->hangs[0] != '\0') {
        put_printable(file, "", report->outcome->hangs);
        fprintf(file, ", rank %d has waited for it in vain: %s", cause->rank, ending);
    } else {
        fprintf(file, "rank %d %s: %s", cause->rank, what, ending);
    }
    if (again)
        fprintf(file, "; restart %d of %d", report->spec->restarts + 1, report->spec->max_restarts);
    fputc('\n', file);
}

/* One line: what happened on another node, whose agent has the report. */
static void write_line(FILE *file, const failure_report *report, const process_failure *cause)
{
    char what[FAILURE_HOST_BYTES + 64];
    snprintf(what, sizeof what, "on node %d (%s) failed first", cause->node, cause->host);
    write_head(file, report, cause, what);
}

/* Whether the last lines hold the message already, without its kind ("RuntimeError: "). */
static bool is_said(const process_failure *cause)
{
    const char *text = strstr(cause->says, ": ");
    text = text != NULL ? text + 2 : cause->says;
    char start[80];
    snprintf(start, sizeof start, "%.*s", (int)strcspn(text, "\n"), text);
    return lines_hold(cause, start);
}

/* Whether its stderr has been on this one's already. Of our own ranks one is looked for among many
 * lines. */
static bool is_shown(const failure_report *report, const process_failure *cause)
{
    worker_route route;
    const worker_spec *spec = report->spec;
    worker_logs_route(&spec->logs, 0, cause->local_rank, LOGS_STDERR, &route);
    return !spec->policy.own && route.piped && route.target == STDERR_FILENO;
}

static void write_lines(FILE *file, const process_failure *cause)
{
    fprintf(file, cause->n_lines > 0 ? "  its last lines:\n" : "  it wrote nothing to stderr\n");
    for (int i = 0; i < cause->n_lines; i++)
        fprintf(file, "    | %s\n", cause->lines[i]);
}

static void write_report(FILE *file, const failure_report *report, const process_failure *cause,
                         bool here)
{
    const char *hint = hint_for(cause, report->spec->policy.own);
    write_head(file, report, cause, "failed first");
    fprintf(file, "  rank %d, local rank %d, node %d, host %s, pid %d, after %.1f s\n", cause->rank,
            cause->local_rank, cause->node, cause->host, cause->pid, cause->after_s);
    /* Words of other ranks may be in what a rank says of itself. */
    if (cause->doing[0] != '\0') {
        put_printable(file, "  it was last ", cause->doing);
        fputc('\n', file);
    }
    bool shown = here && cause->n_lines > 0 && is_shown(report, cause);
    if (cause->says[0] != '\0' && (shown || !is_said(cause))) {
        put_printable(file, "  it says: ", cause->says);
        fputc('\n', file);
    } else if (shown) {
        fprintf(file, "  it says: %s\n", cause->lines[cause->n_lines - 1]);
    }
    if (!shown)
        write_lines(file, cause);
    fputs(cause->others, file);
    if (cause->priority < CAUSE_OWN)
        put_printable(file, "", report->outcome->notes); /* of all nodes */
    if (cause->folder[0] != '\0')
        fprintf(file, "  log: %s%s%s\n", cause->folder, here ? "" : " on ",
                here ? "" : cause->host);
    if (hint != NULL)
        fprintf(file, "  hint: %s\n", hint);
}

/* Free with free(). What comes from another node is escaped. */
static status create_text(const failure_report *report, const process_failure *cause, bool here,
                          char **out)
{
    char *text = NULL;
    text_stream lines;
    TRY(text_stream_open(&lines));
    if (here || report->spec->node_rank == 0)
        write_report(lines.file, report, cause, here);
    else
        write_line(lines.file, report, cause);
    TRY(text_stream_close(&lines, &text, NULL));
    if (!here) {
        char *shown = printable_of(text);
        free(text);
        text = shown;
    }
    *out = text;
    return text != NULL ? STATUS_OK : FAIL(STATUS_NO_MEMORY, "the report");
}

static void say(const char *text, output_console *console)
{
    run_log_say(text, strlen(text));
    output_console_say(console, STDERR_FILENO, text, strlen(text));
}

/* Of a rank of this node its own report is believed, not what came back through the store. */
static void show_cause(const failure_report *report, output_console *console)
{
    const node_report *own = report->own;
    const process_failure *cause = &report->outcome->cause;
    char *text = NULL;
    bool here = own->state == AGENT_FAILED && own->cause.rank == cause->rank &&
                cause->node == report->spec->node_rank;
    if (here) {
        cause = &own->cause;
        process_failure_write_error_file(cause);
    }
    if (!report->outcome->again)
        process_failure_pass_on(cause, here);
    if (create_text(report, cause, here, &text) == STATUS_OK)
        say(text, console);
    else
        LOG_E("rank %d failed; %s", cause->rank, status_text());
    free(text);
}

void failure_report_own(status st, int code)
{
    char why[2048];
    const char *path = environment_text("TORCHELASTIC_ERROR_FILE");
    LOG_E("%s", status_text());
    snprintf(why, sizeof why, "%s: %s", status_name(st), status_text());
    error_file file = {.message = why, .callstack = "", .exit_code = code};
    if (path != NULL && error_file_write(path, &file) != STATUS_OK)
        LOG_W("error file not written: %s", status_text());
}

void failure_report_show(const failure_report *report, output_console *console)
{
    const group_outcome *outcome = report->outcome;
    if (outcome->failed) {
        show_cause(report, console);
        if (outcome->text[0] != '\0')
            LOG_E("no restart: %s", outcome->text);
    } else if (outcome->text[0] != '\0' && outcome->told_by != report->spec->node_rank) {
        log_line(outcome->again ? LOG_WARNING : LOG_ERROR, "%s", outcome->text);
    }
}
