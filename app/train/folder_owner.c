#include "app/train/folder_owner.h"

#include "app/common/run_files.h"
#include "app/train/elastic.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/json_text.h"
#include "base/log.h"

#include <inttypes.h>
#include <jansson.h>
#include <string.h>

enum {
    LOCK_MS = 2000, /* for a rank 0 of the round before that lives, and closes the folder */
    OWNER_BYTES = 4096,
};

/* The round of this job that has the folder; 0: none has, as far as can be read. */
static int64_t round_of(const rank_context *rank, const char *path)
{
    char file[FILE_PATH_BYTES];
    json_t *owner = NULL;
    if (file_join(path, RUN_FILE_ROUND, file) != STATUS_OK || !file_exists(file) ||
        json_text_read(file, OWNER_BYTES, &owner) != STATUS_OK)
        return 0;
    const char *run_id = json_string_value(json_object_get(owner, "run_id"));
    bool ours = run_id != NULL && strcmp(run_id, rank->place.run_id) == 0;
    int64_t round = ours ? json_integer_value(json_object_get(owner, "round")) : 0;
    json_decref(owner);
    return round;
}

static status write_round(const rank_context *rank, const char *path)
{
    char file[FILE_PATH_BYTES];
    TRY(file_join(path, RUN_FILE_ROUND, file));
    json_t *owner = json_pack("{s:s, s:I}", "run_id", rank->place.run_id, "round",
                              (json_int_t)rank->place.round);
    if (owner == NULL)
        return FAIL(STATUS_NO_MEMORY, "the round of %s", path);
    status st = json_text_save(owner, JSON_COMPACT, file);
    json_decref(owner);
    return st;
}

/* Another process has the lock. */
static status take_over(const rank_context *rank, const char *path)
{
    int64_t own = rank->place.round, round = own > 1 ? round_of(rank, path) : 0;
    if (round > own)
        return FAIL(STATUS_PEER, "round %" PRId64 " has taken %s", round, path);
    if (round == 0 || round == own)
        return status_context(STATUS_INVALID, "another run writes to this folder; give another "
                                              "--run-dir");
    LOG_W("%s: taken from rank 0 of round %" PRId64 ", which has not closed it: %s", path, round,
          status_text());
    return STATUS_OK;
}

status folder_owner_take(const rank_context *rank, const char *path, int *lock_fd)
{
    int64_t deadline_ns = clock_deadline_ns(rank->place.round > 1 ? LOCK_MS : 0);
    status st;
    while ((st = file_lock_folder(path, lock_fd)) == STATUS_INVALID && !clock_passed(deadline_ns))
        clock_sleep_ms(20);
    if (st == STATUS_INVALID)
        st = take_over(rank, path);
    return st;
}

void folder_owner_note(const rank_context *rank, const char *path)
{
    if (rank->place.round > 0 && write_round(rank, path) != STATUS_OK)
        LOG_W("not written whose the folder is: %s", status_text());
}

status folder_owner_check(const rank_context *rank, const char *path, int *lock_fd)
{
    TRY(elastic_check(rank->link));
    if (rank->place.round == 0 || path[0] == '\0')
        return STATUS_OK;
    int64_t round = round_of(rank, path);
    if (round > rank->place.round)
        return FAIL(STATUS_PEER, "round %" PRId64 " has taken %s", round, path);
    if (*lock_fd < 0)
        (void)file_lock_folder(path, lock_fd);
    return STATUS_OK;
}
