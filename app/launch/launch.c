#include "app/launch/launch.h"

#include "app/exit_codes.h"
#include "app/launch/launch_drainer.h"
#include "app/launch/launch_environment.h"
#include "app/launch/launch_error_file.h"
#include "app/launch/launch_gang.h"
#include "app/launch/launch_link.h"
#include "app/launch/launch_report.h"
#include "app/launch/launch_signals.h"
#include "app/launch/launch_store.h"
#include "app/launch/launch_verdict.h"
#include "app/standard_streams.h"
#include "base/clock.h"
#include "base/file_limit.h"
#include "base/log.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { FARE_WELL_MS = 3000 }; /* for a verdict, after the launcher was told to stop */

typedef struct launcher {
    launch_settings *settings;
    launch_console console;
    launch_signals signals;
    launch_gang gang;
    store_server *server; /* where this node serves it */
    launch_link *link;    /* several nodes */
    struct pollfd *polled;
    int generation;
    int64_t started_ns;
    int64_t memory_kills;
    uint64_t file_limit; /* the user's, before it was raised: the workers' */
    bool cut_off;        /* from the other nodes */
    bool judged;         /* by node 0, this generation */
    bool anything_failed;
    int stdout_error; /* why not all of the ranks' stdout was passed on; 0 */
} launcher;

enum { FIXED_FDS = 5 }; /* stop, child, link, stdout, stderr; the workers' behind them */

static status launcher_init(launcher *self, launch_settings *settings, int64_t started_ns)
{
    *self = (launcher){.settings = settings,
                       .signals = {.stop_fd = -1, .child_fd = -1},
                       .started_ns = started_ns,
                       .memory_kills = launch_ending_memory_kills(),
                       .file_limit = file_limit_raise()};
    TRY(launch_signals_take(&settings->rules.signals, &self->signals));
    if (settings->rules.listens)
        launch_signals_hold(&self->signals);
    launch_console_init(&self->console, self->signals.stop_fd);
    self->polled = calloc((size_t)settings->plan.nproc * 2 + FIXED_FDS, sizeof *self->polled);
    if (self->polled == NULL)
        return FAIL(STATUS_NO_MEMORY, "launcher: %d workers", settings->plan.nproc);
    return launch_logs_open(&settings->logs, settings->plan.run_id);
}

static void launcher_close(launcher *self)
{
    if (launch_link_destroy(self->link))
        store_server_destroy(self->server);
    if (self->gang.workers != NULL)
        launch_drainer_start(&self->gang);
    launch_gang_destroy(&self->gang);
    launch_console_flush(&self->console); /* a signal may end that still */
    self->stdout_error = launch_console_error(&self->console, STDOUT_FILENO);
    launch_signals_close(&self->signals);
    if (self->generation > 0 && self->settings->logs.folder[0] != '\0' &&
        launch_console_is_open(&self->console))
        LOG_I("what the failed attempts left: %s", self->settings->logs.folder);
    launch_logs_close(&self->settings->logs, self->anything_failed);
    launch_console_close(&self->console);
    free(self->polled);
}

/* What a signal means to the workers that run. The launcher keeps it: no generation follows. */
static void take_signals(launcher *self)
{
    int signal;
    while ((signal = launch_signals_next(&self->signals)) != 0) {
        if (self->link != NULL && signal == self->signals.stopped_by)
            launch_link_stop(self->link, signal);
        if (self->gang.workers == NULL || launch_gang_is_over(&self->gang))
            continue;
        launch_gang_take_signal(&self->gang, signal);
        if (self->link != NULL && self->gang.phase > PHASE_SAVING)
            launch_link_trouble(self->link);
    }
}

static void take_events(launcher *self)
{
    launch_event event;
    while ((event = launch_link_next(self->link)) != LAUNCH_NO_EVENT) {
        if (event == LAUNCH_TROUBLE && self->gang.workers != NULL)
            launch_gang_stop(&self->gang);
        if (event == LAUNCH_VERDICT)
            self->judged = true;
        if (event == LAUNCH_CUT_OFF) {
            self->cut_off = true;
            LOG_E("node %d: %s", self->settings->plan.node_rank, launch_link_why(self->link));
            if (self->gang.workers != NULL)
                launch_gang_stop(&self->gang);
        }
    }
}

/* One wait for whatever comes next, and what follows from it. */
static status turn(launcher *self, int wait_ms)
{
    struct pollfd *fds = self->polled;
    bool gang = self->gang.workers != NULL;
    int n = 2, link_at = 0;
    fds[0] = (struct pollfd){.fd = self->signals.stop_fd, .events = POLLIN};
    fds[1] = (struct pollfd){.fd = self->signals.child_fd, .events = POLLIN};
    if (self->link != NULL) {
        link_at = n++;
        fds[link_at] = (struct pollfd){.fd = launch_link_fd(self->link), .events = POLLIN};
    }
    n += launch_console_poll(&self->console, fds + n);
    int gang_at = n;
    if (gang)
        n += launch_gang_poll(&self->gang, fds + n);
    if (poll(fds, (nfds_t)n, wait_ms) < 0 && errno != EINTR)
        return FAIL(STATUS_IO, "launcher: poll: %s", strerror(errno));
    launch_console_push(&self->console);
    if (fds[0].revents != 0)
        take_signals(self);
    if (link_at > 0 && fds[link_at].revents != 0)
        take_events(self);
    if (!gang)
        return STATUS_OK;
    if (fds[1].revents != 0) {
        launch_signals_drain_children(&self->signals);
        launch_phase before = self->gang.phase;
        launch_gang_reap(&self->gang);
        if (self->link != NULL && before == PHASE_RUNNING && self->gang.phase == PHASE_GRACE)
            launch_link_trouble(self->link);
    }
    launch_gang_read(&self->gang, fds + gang_at);
    launch_gang_pass_deadline(&self->gang);
    return STATUS_OK;
}

/* Several nodes: all launchers meet before any starts a worker. *code: what to exit with. */
static status join(launcher *self, int port, int *code)
{
    launch_plan *plan = &self->settings->plan;
    *code = EXIT_CODE_RENDEZVOUS;
    TRY(launch_link_create(self->settings, self->server, port, &self->link));
    launch_event event = LAUNCH_NO_EVENT;
    while (event == LAUNCH_NO_EVENT) {
        struct pollfd fds[2] = {{.fd = self->signals.stop_fd, .events = POLLIN},
                                {.fd = launch_link_fd(self->link), .events = POLLIN}};
        if (poll(fds, 2, -1) < 0 && errno != EINTR)
            return FAIL(STATUS_IO, "launcher: poll: %s", strerror(errno));
        int signal = launch_signals_next(&self->signals);
        if (signal != 0) {
            *code = 128 + signal;
            return FAIL(STATUS_PEER, "SIG%s while the nodes were joining", sigabbrev_np(signal));
        }
        event = launch_link_next(self->link);
    }
    if (event == LAUNCH_NOT_JOINED)
        return FAIL(STATUS_PEER, "%s", launch_link_why(self->link));
    plan->node_rank = launch_link_node(self->link);
    return STATUS_OK;
}

static status open_job(launcher *self, int *code)
{
    launch_settings *settings = self->settings;
    int port = 0, threads = launch_environment_threads(settings);
    *code = EXIT_CODE_RENDEZVOUS;
    TRY(launch_store_open(settings, &self->server, &port));
    if (settings->plan.nnodes > 1)
        TRY(join(self, port, code));
    launch_store_say(settings, port);
    if (!settings->rules.own && threads > 0)
        LOG_I("OMP_NUM_THREADS=%d for each of %d ranks (the cores shared out; set it yourself for "
              "another number)",
              threads, settings->plan.nproc);
    launch_start start = {.settings = settings,
                          .master_port = port,
                          .started_ns = self->started_ns,
                          .signal_mask = self->signals.mask,
                          .file_limit = self->file_limit,
                          .log_tty = isatty(STDERR_FILENO) == 1};
    *code = EXIT_CODE_INTERNAL;
    return launch_gang_create(&start, &self->console, &self->gang);
}

/* Starts a generation and returns when no worker of it is left. A launcher that was told to stop
 * starts none, and says so. */
static status run_generation(launcher *self)
{
    const launch_settings *settings = self->settings;
    TRY(launch_logs_start(&settings->logs, self->generation, settings->plan.nproc));
    self->judged = false;
    if (self->link != NULL)
        launch_link_start(self->link, self->generation);
    take_signals(self);
    status st = launch_gang_start(&self->gang, self->generation, self->signals.stopped_by);
    if (st != STATUS_OK)
        LOG_E("%s", status_text());
    if (st != STATUS_OK && self->link != NULL)
        launch_link_trouble(self->link);
    st = STATUS_OK;
    while (!launch_gang_is_over(&self->gang) && st == STATUS_OK)
        st = turn(self, launch_gang_wait_ms(&self->gang));
    launch_gang_finish(&self->gang);
    return st;
}

/* The others shall not wait for this node in the next generation, should there be one. */
static void leave(launcher *self, const launch_record *record)
{
    launch_link_start(self->link, self->generation + 1);
    launch_link_end(self->link, record);
}

/* Node 0 judges; where it cannot be reached, or the launcher was told to stop and it takes too
 * long, this node does so by what it knows itself. */
static status hear_verdict(launcher *self, const launch_record *record, launch_verdict *out)
{
    int64_t deadline_ns = 0;
    bool waits = self->link != NULL && !self->cut_off;
    if (waits)
        launch_link_end(self->link, record);
    while (waits && !self->judged && !self->cut_off) {
        if (deadline_ns == 0 && self->signals.stopped_by != 0)
            deadline_ns = clock_deadline_ns(FARE_WELL_MS);
        if (deadline_ns != 0 && clock_passed(deadline_ns)) {
            leave(self,
                  &(launch_record){.result = LAUNCH_SIGNALED, .signal = self->signals.stopped_by});
            break;
        }
        if (self->signals.stopped_by != record->signal)
            launch_link_trouble(self->link);
        TRY(turn(self, deadline_ns != 0 ? clock_remaining_ms(deadline_ns) : -1));
    }
    if (self->judged) {
        *out = launch_link_verdict(self->link);
        return launch_verdict_doubt(record, self->settings, self->generation, out);
    }
    TRY(launch_verdict_make(record, 1, self->settings, self->generation, out));
    if (self->link == NULL)
        return STATUS_OK;
    out->again = false; /* not alone */
    if (self->signals.stopped_by != record->signal)
        out->code = 128 + self->signals.stopped_by;
    else if (self->cut_off && !out->failed)
        out->code = EXIT_CODE_PEER;
    return STATUS_OK;
}

/* Of a rank of this node its own record is believed, not what came back through the store. */
static void report_cause(launcher *self, const launch_record *record, const launch_verdict *verdict)
{
    const launch_settings *settings = self->settings;
    char line[ENDING_HOST_BYTES + 320], *text = NULL;
    bool here = record->result == LAUNCH_FAILED && record->cause.rank == verdict->cause.rank &&
                verdict->cause.node == settings->plan.node_rank;
    const launch_ending *cause = here ? &record->cause : &verdict->cause;
    launch_report report = {.cause = cause,
                            .rules = &settings->rules,
                            .restart = verdict->again ? self->generation + 1 : 0,
                            .max_restarts = settings->plan.max_restarts,
                            .elsewhere = !here,
                            .hang = cause->weight < CAUSE_OWN ? verdict->notes : ""};
    if (here)
        launch_error_file_write(cause);
    if (!here && settings->plan.node_rank != 0) {
        launch_report_line(&report, line, sizeof line);
        launch_console_say(&self->console, "%s", line);
    } else if (launch_report_create(&report, &text) == STATUS_OK) {
        launch_console_write(&self->console, STDERR_FILENO, text, strlen(text));
    } else {
        LOG_E("rank %d failed; %s", cause->rank, status_text());
    }
    free(text);
}

static void report(launcher *self, const launch_record *record, const launch_verdict *verdict)
{
    const launch_plan *plan = &self->settings->plan;
    self->anything_failed = self->anything_failed || verdict->failed;
    if (verdict->failed) {
        report_cause(self, record, verdict);
        if (verdict->text[0] != '\0')
            launch_console_say(&self->console, "error: no restart: %s\n", verdict->text);
        return;
    }
    if (verdict->text[0] != '\0' && verdict->told_by != plan->node_rank)
        launch_console_say(&self->console, "error: %s\n", verdict->text);
}

/* Runs generation after generation. *code: what to exit with. */
static status run_job(launcher *self, int *code)
{
    *code = EXIT_CODE_INTERNAL;
    for (;; self->generation++) {
        launch_record record;
        launch_verdict verdict;
        TRY(run_generation(self));
        int64_t kills = launch_ending_memory_kills();
        bool memory_killed = self->memory_kills >= 0 && kills > self->memory_kills;
        self->memory_kills = kills;
        TRY(launch_record_make(&self->gang, self->signals.stopped_by, memory_killed, &record));
        status st = hear_verdict(self, &record, &verdict);
        if (st == STATUS_OK)
            report(self, &record, &verdict);
        launch_record_free(&record);
        TRY(st);
        *code = verdict.code;
        bool again = verdict.again;
        if (verdict.code != 0 && verdict.code != EXIT_CODE_PREEMPTED && verdict.failed &&
            self->settings->rules.torchrun_code)
            *code = 1;
        launch_verdict_free(&verdict);
        if (!again)
            return STATUS_OK;
        if (self->link == NULL)
            store_server_forget(self->server);
    }
}

int launch_run(launch_settings *settings, int64_t started_ns)
{
    launcher self;
    int code = EXIT_CODE_INTERNAL;
    status st = launcher_init(&self, settings, started_ns);
    if (st == STATUS_OK)
        st = open_job(&self, &code);
    if (st == STATUS_OK)
        st = run_job(&self, &code);
    if (st != STATUS_OK)
        LOG_E("%s", status_text());
    if (st == STATUS_NO_MEMORY)
        code = EXIT_CODE_INTERNAL;
    if (st != STATUS_OK && self.link != NULL && self.gang.workers != NULL)
        launch_link_end(self.link, &(launch_record){.result = LAUNCH_BROKEN});
    launcher_close(&self);
    return self.stdout_error == 0
               ? code
               : standard_streams_lost(self.stdout_error, settings->stdout_has_result, code);
}
