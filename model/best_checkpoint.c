#include "model/best_checkpoint.h"

#include "base/log.h"
#include "model/checkpoint_folder.h"
#include "model/checkpoint_state.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

bool best_checkpoint_is_better(const checkpoint_test *a, const checkpoint_test *b)
{
    if (a->images == 0 || !isfinite(a->loss))
        return false;
    if (b->images == 0)
        return true;
    double right[] = {(double)a->correct * (double)b->images,
                      (double)b->correct * (double)a->images};
    return right[0] > right[1] || (!(right[0] < right[1]) && a->loss < b->loss);
}

/* Makes *best the checkpoint of this step if it is whole, and as good: steps come newest first, and
 * of equals the earliest is the best. What cannot be read is not. */
static void offer(const char *run_dir, int64_t step, bool *found, checkpoint_state *best)
{
    char folder[FILE_PATH_BYTES], path[FILE_PATH_BYTES], name[FILE_PATH_BYTES];
    checkpoint_state state = {0};
    if (file_join(run_dir, CHECKPOINT_FOLDER, folder) != STATUS_OK ||
        checkpoint_folder_path(folder, step, path) != STATUS_OK ||
        file_join(path, CHECKPOINT_STATE, name) != STATUS_OK ||
        checkpoint_state_read(name, &state) != STATUS_OK || state.test.images == 0 ||
        (*found && best_checkpoint_is_better(&best->test, &state.test)))
        return;
    bool whole = false;
    if (checkpoint_find(run_dir, step + 1, &whole, &state, path) == STATUS_OK && whole &&
        state.step == step) {
        *best = state;
        *found = true;
    }
}

status best_checkpoint_find(const char *run_dir, int64_t step, bool *found, checkpoint_state *out)
{
    char folder[FILE_PATH_BYTES];
    int64_t *steps = NULL;
    size_t n = 0;
    TRY(file_join(run_dir, CHECKPOINT_FOLDER, folder));
    TRY(checkpoint_folder_list(folder, &steps, &n));
    *found = false;
    for (size_t i = 0; i < n; i++)
        if (steps[i] <= step)
            offer(run_dir, steps[i], found, out);
    free(steps);
    return STATUS_OK;
}

status best_checkpoint_link(const char *run_dir, int64_t step)
{
    char folder[FILE_PATH_BYTES], draft[FILE_PATH_BYTES], link[FILE_PATH_BYTES], target[48];
    char now[48] = "";
    snprintf(target, sizeof target, "%08lld", (long long)step);
    TRY(file_join(run_dir, CHECKPOINT_FOLDER, folder));
    TRY(file_join(folder, CHECKPOINT_BEST_DRAFT, draft));
    TRY(file_join(folder, CHECKPOINT_BEST, link));
    if (readlink(link, now, sizeof now - 1) > 0 && strcmp(now, target) == 0)
        return STATUS_OK;
    unlink(draft); /* of a run that was killed */
    if (symlink(target, draft) != 0)
        return FAIL(STATUS_IO, "make link %s: %s", draft, strerror(errno));
    if (rename(draft, link) == 0)
        return file_sync_folder(folder);
    status st = FAIL(STATUS_IO, "rename %s to %s: %s", draft, link, strerror(errno));
    unlink(draft);
    return st;
}
