#include "model/checkpoint.h"

#include "base/log.h"
#include "model/checkpoint_arenas.h"
#include "model/checkpoint_folder.h"
#include "model/checkpoint_state.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char MODEL_FILE[] = "model.safetensors";
static const size_t MAX_MODEL_BYTES = (size_t)1 << 30;

/* The three files of a checkpoint into the folder `path`. */
static status write_files(const char *path, const checkpoint_state *state, network *net,
                          optimizer *opt)
{
    char file[FILE_PATH_BYTES], step[24];
    const char *names[OPTIMIZER_MAX_STATES] = {NULL};
    float *arenas[OPTIMIZER_MAX_STATES] = {NULL}, *parameters = network_parameters(net);
    size_t n_states = optimizer_states(opt, names, arenas);
    snprintf(step, sizeof step, "%" PRId64, state->step);
    safetensors_entry metadata[] = {
        {"writer", "mnist_ddp"}, {"model", model_kind_name(state->model)}, {"step", step}};
    TRY(file_join(path, MODEL_FILE, file));
    TRY(checkpoint_arenas_write(file, net, 1, (const char *[]){""}, &parameters, metadata, 3));
    TRY(file_join(path, "optimizer.safetensors", file));
    TRY(checkpoint_arenas_write(file, net, n_states, names, arenas, metadata, 3));
    TRY(file_join(path, "state.json", file));
    checkpoint_state written = *state;
    written.optimizer_steps = optimizer_steps(opt);
    TRY(checkpoint_state_write(file, &written));
    return file_sync_folder(path);
}

/* A second name for the file `from`, or a copy of it where there are no links. */
static status link_or_copy(const char *from, const char *to)
{
    char *data = NULL;
    size_t size_bytes = 0;
    if (link(from, to) == 0)
        return STATUS_OK;
    TRY(file_read(from, MAX_MODEL_BYTES, &data, &size_bytes));
    status st = file_write(to, &(file_part){data, size_bytes}, 1);
    free(data);
    return st;
}

/* <run_dir>/model.safetensors becomes that of the checkpoint in `path`. */
static status publish_model(const char *run_dir, const char *path)
{
    char from[FILE_PATH_BYTES], to[FILE_PATH_BYTES], temporary[FILE_PATH_BYTES];
    TRY(file_join(path, MODEL_FILE, from));
    TRY(file_join(run_dir, MODEL_FILE, to));
    TRY(file_join(run_dir, "model.safetensors.tmp", temporary));
    if (unlink(temporary) != 0 && errno != ENOENT)
        return FAIL(STATUS_IO, "delete %s: %s", temporary, strerror(errno));
    TRY(link_or_copy(from, temporary));
    if (rename(temporary, to) != 0)
        return FAIL(STATUS_IO, "rename %s to %s: %s", temporary, to, strerror(errno));
    return file_sync_folder(run_dir);
}

/* Of the checkpoints before `step` only the newest stays. Nobody needs the others any more, so a
 * failure to delete one is only logged. */
static void delete_older(const char *folder, int64_t step)
{
    int64_t *steps = NULL;
    size_t n = 0;
    status st = checkpoint_folder_list(folder, &steps, &n);
    size_t kept = 0;
    for (size_t i = 0; i < n && st == STATUS_OK; i++)
        if (steps[i] < step && kept++ > 0)
            st = checkpoint_folder_delete(folder, steps[i]);
    if (st != STATUS_OK)
        LOG_W("an old checkpoint stays: %s", status_message());
    free(steps);
}

status checkpoint_save(const char *run_dir, const checkpoint_state *state, network *net,
                       optimizer *opt)
{
    char folder[FILE_PATH_BYTES], temporary[FILE_PATH_BYTES], path[FILE_PATH_BYTES];
    TRY(file_join(run_dir, "checkpoints", folder));
    TRY(checkpoint_folder_path(folder, state->step, ".tmp", temporary));
    TRY(checkpoint_folder_path(folder, state->step, "", path));
    TRY(file_make_folders(folder));
    TRY(checkpoint_folder_clean(folder));
    if (mkdir(temporary, 0777) != 0)
        return FAIL(STATUS_IO, "make folder %s: %s", temporary, strerror(errno));
    status st = write_files(temporary, state, net, opt);
    if (st != STATUS_OK) {
        char why[1024];
        snprintf(why, sizeof why, "%s", status_message());
        if (checkpoint_folder_remove(temporary) != STATUS_OK)
            LOG_W("%s", status_message());
        return FAIL(st, "no checkpoint of step %" PRId64 ": %s", state->step, why);
    }
    TRY(checkpoint_folder_commit(folder, state->step));
    TRY(publish_model(run_dir, path));
    delete_older(folder, state->step);
    return STATUS_OK;
}
