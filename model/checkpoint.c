#include "model/checkpoint.h"

#include "base/file.h"
#include "base/log.h"
#include "model/best_checkpoint.h"
#include "model/checkpoint_arenas.h"
#include "model/checkpoint_folder.h"
#include "model/checkpoint_state.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const size_t MAX_MODEL_BYTES = (size_t)1 << 30;

/* Writes the three files of a checkpoint into the folder `path`. */
static status write_files(const char *path, const checkpoint_state *state, network *net,
                          optimizer *opt)
{
    char file[FILE_PATH_BYTES], step[24];
    checkpoint_arenas model = {1, {""}, {network_parameters(net)}}, states = {0};
    checkpoint_state written = *state;
    states.n = optimizer_states(opt, states.prefixes, states.arenas);
    snprintf(step, sizeof step, "%" PRId64, state->step);
    safetensors_entry metadata[] = {
        {"writer", "mnist_ddp"}, {"model", model_kind_name(state->model)}, {"step", step}};
    TRY(file_join(path, CHECKPOINT_MODEL, file));
    TRY(checkpoint_arenas_write(file, net, &model, metadata, 3, &written.model_hash));
    TRY(file_join(path, CHECKPOINT_OPTIMIZER, file));
    TRY(checkpoint_arenas_write(file, net, &states, metadata, 3, &written.optimizer_hash));
    TRY(file_join(path, CHECKPOINT_STATE, file));
    written.optimizer_steps = optimizer_steps(opt);
    TRY(checkpoint_state_write(file, &written));
    return file_sync_folder(path);
}

/* Do both paths hold the same bytes? A file that cannot be read holds others. */
static status same_content(const char *a, const char *b, bool *same)
{
    char *data[2] = {NULL, NULL};
    size_t size_bytes[2] = {0, 0};
    status st = file_read(a, MAX_MODEL_BYTES, &data[0], &size_bytes[0]);
    if (st == STATUS_OK)
        st = file_read(b, MAX_MODEL_BYTES, &data[1], &size_bytes[1]);
    *same = st == STATUS_OK && size_bytes[0] == size_bytes[1] &&
            memcmp(data[0], data[1], size_bytes[0]) == 0;
    free(data[0]);
    free(data[1]);
    return st == STATUS_NO_MEMORY ? st : STATUS_OK;
}

status checkpoint_is_published(const char *run_dir, const char *path, bool *out)
{
    char from[FILE_PATH_BYTES], to[FILE_PATH_BYTES];
    TRY(file_join(path, CHECKPOINT_MODEL, from));
    TRY(file_join(run_dir, CHECKPOINT_MODEL, to));
    return same_content(from, to, out);
}

status checkpoint_publish(const char *run_dir, const char *path)
{
    char from[FILE_PATH_BYTES], to[FILE_PATH_BYTES];
    TRY(file_join(path, CHECKPOINT_MODEL, from));
    TRY(file_join(run_dir, CHECKPOINT_MODEL, to));
    return file_copy(from, to);
}

status checkpoint_check_published(const char *run_dir, int64_t step)
{
    char path[FILE_PATH_BYTES];
    checkpoint_state state = {0};
    bool found = false;
    TRY(checkpoint_find(run_dir, step + 1, &found, &state, path));
    if (!found || state.step != step)
        return FAIL(STATUS_INVALID, "%s has no whole checkpoint of step %" PRId64, run_dir, step);
    bool published = false;
    TRY(checkpoint_is_published(run_dir, path, &published));
    return published ? STATUS_OK
                     : FAIL(STATUS_INVALID, "%s/" CHECKPOINT_MODEL " is not the model of %s",
                            run_dir, path);
}

static bool is_listed(const int64_t *steps, size_t n, int64_t step)
{
    bool found = false;
    for (size_t i = 0; i < n; i++)
        found = found || steps[i] == step;
    return found;
}

/* Deletes the checkpoints before that of `state`, which is saved, until state->keep are left. A
 * newer one may be broken, so none takes the place of the one that is known to be good. A failure
 * to delete is only logged. */
static void delete_older(const char *folder, const checkpoint_state *state)
{
    int64_t *steps = NULL, room = (state->keep > 0 ? state->keep : CHECKPOINT_KEEP) - 1;
    size_t n = 0;
    status st = checkpoint_folder_list(folder, &steps, &n);
    bool keeps_good = room > 0 &&
                      state->saved_step < state->step && /* the last save may be again */
                      is_listed(steps, n, state->saved_step);
    if (keeps_good)
        room--;
    for (size_t i = 0; i < n && st == STATUS_OK; i++) { /* the newest first */
        if (steps[i] >= state->step || (keeps_good && steps[i] == state->saved_step))
            continue;
        if (room > 0)
            room--;
        else if (steps[i] != state->best_step)
            st = checkpoint_folder_delete(folder, steps[i]);
    }
    if (st != STATUS_OK)
        LOG_W("an old checkpoint stays: %s", status_text());
    free(steps);
}

status checkpoint_save(const char *run_dir, const checkpoint_state *state, network *net,
                       optimizer *opt)
{
    char folder[FILE_PATH_BYTES], temporary[FILE_PATH_BYTES], path[FILE_PATH_BYTES];
    TRY(file_join(run_dir, CHECKPOINT_FOLDER, folder));
    TRY(checkpoint_folder_path(folder, state->step, path));
    TRY(file_make_folders(folder));
    checkpoint_folder_clean(folder);
    TRY(checkpoint_folder_begin(folder, state->step, temporary));
    status st = write_files(temporary, state, net, opt);
    if (st != STATUS_OK) {
        char why[1024];
        snprintf(why, sizeof why, "%s", status_text());
        if (checkpoint_folder_remove(temporary) != STATUS_OK)
            LOG_W("%s", status_text());
        return FAIL(st, "no checkpoint of step %" PRId64 ": %s", state->step, why);
    }
    TRY(checkpoint_folder_commit(folder, state->step, temporary));
    if (state->best_step == state->step && best_checkpoint_link(run_dir, state->step) != STATUS_OK)
        LOG_W("%s/" CHECKPOINT_BEST " does not name the best checkpoint: %s", folder,
              status_text());
    delete_older(folder, state); /* also makes room for the copy */
    return checkpoint_publish(run_dir, path);
}
