/* What a run of train leaves: whether its folder can be written and has room. */
#include "app/common/exit_codes.h"
#include "app/common/machine.h"
#include "app/common/run_files.h"
#include "app/doctor/checkup.h"
#include "app/train/run_folder.h"
#include "base/file.h"
#include "model/model_kind.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>

/* A checkpoint holds the model, and at most two arrays of its size for the optimizer. */
enum { ARRAYS = 3, OTHER_BYTES = 1 << 20 };

/* The folder itself, or the nearest one above it that is there. */
static void nearest_folder(const char *path, char out[FILE_PATH_BYTES])
{
    char above[FILE_PATH_BYTES];
    snprintf(out, FILE_PATH_BYTES, "%s", path);
    while (!file_exists(out) && strcmp(out, ".") != 0 && strcmp(out, "/") != 0) {
        file_folder_of(out, above);
        memcpy(out, above, sizeof above);
    }
}

/* false, and it is noted, if nothing can be written to the folder or made in it. */
static bool check_writable(checkup *c, const char *flag, const char *path)
{
    char there[FILE_PATH_BYTES], inside[FILE_PATH_BYTES + 2];
    nearest_folder(path, there);
    snprintf(inside, sizeof inside, "%s/.", there); /* else a file would lack a permission */
    if (euidaccess(inside, W_OK | X_OK) == 0)
        return true;
    checkup_fail(c, EXIT_CODE_CHECKPOINT, "results",
                 "%s: %s: %s; name a folder that can be written with %s", path, there,
                 strerror(errno), flag);
    return false;
}

static void check_space(checkup *c, const char *path)
{
    model_kind kind;
    struct statvfs disk;
    char there[FILE_PATH_BYTES], needed_text[32], free_text[32];
    nearest_folder(path, there);
    if (model_kind_parse(c->opts->model, &kind) != STATUS_OK || statvfs(there, &disk) != 0)
        return;
    int64_t unused = (int64_t)disk.f_bavail * (int64_t)disk.f_frsize, needed = OTHER_BYTES;
    if (c->opts->save_model) /* those that stay, the best one, and the one that is being written */
        needed += (int64_t)(model_kind_count(kind) * sizeof(float)) * (c->opts->keep + 2) * ARRAYS;
    machine_size(unused, free_text, sizeof free_text);
    machine_size(needed, needed_text, sizeof needed_text);
    if (unused < needed)
        checkup_add(c, CHECKUP_WARNING, "results",
                    "%s: %s are free, a run may need %s: give another --run-dir", path, free_text,
                    needed_text);
    else
        checkup_add(c, CHECKUP_OK, "results", "%s: can be written, %s are free", path, free_text);
}

/* The run goes on without it, and says so too late to do something about it. */
static void check_log(checkup *c, const char *folder)
{
    char path[FILE_PATH_BYTES];
    if (file_join(folder, RUN_FILE_LOG, path) != STATUS_OK)
        return;
    int fd = open(path, O_WRONLY | O_APPEND | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    if (fd < 0 && errno != ENOENT)
        checkup_add(c, CHECKUP_WARNING, "results", "%s: %s: the run would keep no log there", path,
                    strerror(errno));
    if (fd >= 0)
        close(fd);
}

static void check_run_folder(checkup *c)
{
    const options *o = c->opts;
    const char *path = o->run_dir != NULL ? o->run_dir : "runs";
    if (o->resume != NULL && o->run_dir == NULL && run_folder_check(o) != STATUS_OK) {
        checkup_fail_message(c, EXIT_CODE_USAGE, "results");
        return;
    }
    if (o->run_dir == NULL && !o->save_model) {
        checkup_add(c, CHECKUP_OK, "results", "the model is not saved (--no-save-model)");
        return;
    }
    if (!check_writable(c, "--run-dir", path))
        return;
    check_space(c, path);
    if (o->run_dir != NULL)
        check_log(c, path);
    if (run_folder_check(o) != STATUS_OK)
        checkup_fail(c, EXIT_CODE_CHECKPOINT, "results", "%s", status_text());
}

void checkup_results(checkup *c)
{
    char folder[FILE_PATH_BYTES];
    if (c->opts->examined == COMMAND_TRAIN)
        check_run_folder(c);
    if (c->opts->log_dir != NULL && strcmp(c->opts->log_dir, "/dev/null") != 0)
        (void)check_writable(c, "--log-dir", c->opts->log_dir);
    if (c->opts->trace == NULL)
        return;
    file_folder_of(c->opts->trace, folder);
    const char *run = c->opts->run_dir; /* which rank 0 makes */
    if ((run != NULL && file_is_in(c->opts->trace, run)) || file_exists(folder))
        (void)check_writable(c, "--trace", folder);
    else
        checkup_fail(c, EXIT_CODE_USAGE, "results", "--trace: there is no folder %s", folder);
}
