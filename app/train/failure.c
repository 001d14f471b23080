#include "app/train/failure.h"

#include "app/common/error_file.h"
#include "app/common/exit_codes.h"
#include "app/common/json_value.h"
#include "app/common/terminal.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/host.h"
#include "base/json_text.h"
#include "base/log.h"
#include "base/text.h"
#include "dist/health/hang_report.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

enum { MESSAGE_BYTES = 2048, OTHERS_MS = 2000 };

/* The line before the collectives: whose they are, and what time it is by which clock. */
static status write_head(const rank_context *rank, FILE *file)
{
    rank_snapshot own;
    char *line = NULL;
    rank_status_look(rank->page, &own);
    json_t *head = json_object();
    json_object_set_new(head, "rank", json_integer(rank->place.rank));
    json_object_set_new(head, "world_size", json_integer(rank->place.world_size));
    json_object_set_new(head, "generation", json_integer(rendezvous_place_attempt(&rank->place)));
    json_object_set_new(head, "host", json_value_text(own.host));
    json_object_set_new(head, "pid", json_integer(own.pid));
    json_object_set_new(head, "backend", json_string(process_group_backend(rank->group)));
    json_object_set_new(head, "now_ns", json_integer(clock_now_ns()));
    json_object_set_new(head, "unix_s", json_integer(time(NULL)));
    json_object_set_new(head, "epoch", json_integer(own.epoch));
    json_object_set_new(head, "step", json_integer(own.step));
    json_object_set_new(head, "last", json_value_text(own.doing));
    status st = json_text_print(head, JSON_COMPACT, &line);
    json_decref(head);
    if (st == STATUS_OK)
        fprintf(file, "%s\n", line);
    free(line);
    return st;
}

status failure_dump(const rank_context *rank)
{
    const char *folder = rank_context_dump_folder();
    char name[48], path[FILE_PATH_BYTES];
    text_stream lines;
    if (folder == NULL || rank->group == NULL || rank->page == NULL)
        return STATUS_OK;
    snprintf(name, sizeof name, "rank%d.jsonl", rank->place.rank);
    TRY(file_make_folders(folder));
    TRY(file_join(folder, name, path));
    TRY(text_stream_open(&lines));
    status st = write_head(rank, lines.file);
    process_group_write_flight_record(rank->group, lines.file);
    return text_stream_save(&lines, st, path);
}

/* Did a collective fail? */
static bool concerns_others(const rank_context *rank)
{
    return rank->place.world_size > 1 && rank->rendezvous != NULL &&
           process_group_check(rank->group) != STATUS_OK;
}

/* Adds to this thread's failure which rank the others waited for. Its place in the sources stays.
 */
static void name_others(const rank_context *rank, status st)
{
    status_kept kept;
    char others[HANG_REPORT_BYTES];
    hang_report_options how = {.store = rendezvous_store(rank->rendezvous),
                               .folder = rank_context_dump_folder(),
                               .page = rank->page,
                               .rank = rank->place.rank,
                               .world_size = rank->place.world_size,
                               .attempt = (int)rendezvous_place_attempt(&rank->place),
                               .wait_ms = st == STATUS_TIMEOUT ? OTHERS_MS : 0,
                               .why = st};
    status_keep(&kept);
    hang_report_explain(&how, others);
    status_restore(&kept);
    if (others[0] != '\0')
        status_append("; %s", others);
}

status failure_explain(const rank_context *rank, status st)
{
    status_kept why;
    if (rank->group == NULL || rank->page == NULL)
        return st;
    status_keep(&why);
    rank_status_fail(rank->page);
    if (!concerns_others(rank))
        return st;
    if (failure_dump(rank) != STATUS_OK)
        LOG_W("the last collectives are not written: %s", status_text());
    status_restore(&why);
    name_others(rank, st);
    return st;
}

void failure_end_stuck(void *ctx, status st)
{
    const rank_context *rank = ctx;
    status_append("; this rank hangs in the GPU's driver after it and is ended");
    if (rank->place.world_size > 1 && rank->page != NULL && rank->rendezvous != NULL)
        name_others(rank, st);
    int code = exit_code_failed(st, EXIT_CODE_INTERNAL);
    failure_write_error_file(st, rank->place.rank, code);
    terminal_leave();
    _exit(code);
}

void failure_write_error_file(status st, int rank, int exit_code)
{
    char why[MESSAGE_BYTES + 32];
    const char *path = environment_text("TORCHELASTIC_ERROR_FILE");
    if (path == NULL)
        return;
    snprintf(why, sizeof why, "%s: %s", status_name(st), status_text());
    error_file file = {.message = why,
                       .callstack = status_text(),
                       .exit_code = exit_code,
                       .location = status_location(),
                       .rank = rank,
                       .pid = (int)getpid()};
    if (error_file_write(path, &file) != STATUS_OK)
        LOG_W("error file not written: %s", status_text());
}

int failure_before_start(status st, int otherwise)
{
    int code = exit_code_failed(st, otherwise);
    failure_write_error_file(st, 0, code);
    return code;
}
