#include "base/log.h"
#include "base/memory.h"
#include "model/checkpoint.h"
#include "model/checkpoint_arenas.h"
#include "model/checkpoint_folder.h"
#include "model/checkpoint_state.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* The model file behind what a user names: itself, or in a run's or a checkpoint's folder. */
static status model_file(const char *path, char *out)
{
    struct stat info;
    if (stat(path, &info) != 0)
        return FAIL(STATUS_IO, "%s: %s", path, strerror(errno));
    if (S_ISDIR(info.st_mode))
        return file_join(path, "model.safetensors", out);
    if (strlen(path) >= FILE_PATH_BYTES)
        return FAIL(STATUS_INVALID, "path too long: %.64s...", path);
    strcpy(out, path);
    return STATUS_OK;
}

status checkpoint_model_kind(const char *path, model_kind *out)
{
    char name[FILE_PATH_BYTES];
    safetensors *file = NULL;
    TRY(model_file(path, name));
    TRY(safetensors_open(name, &file));
    status st = STATUS_OK;
    bool fc1 = safetensors_lookup(file, "fc1.weight") != NULL;
    if (fc1 && safetensors_lookup(file, "conv1.weight") != NULL)
        *out = MODEL_CNN;
    else if (fc1 && safetensors_lookup(file, "fc3.weight") != NULL)
        *out = MODEL_MLP;
    else
        st = FAIL(STATUS_INVALID,
                  "%s: neither the mlp's tensors (fc1, fc2, fc3) nor the cnn's (conv1, conv2, fc1, "
                  "fc2)",
                  name);
    safetensors_close(file);
    return st;
}

/* Reads all of a checkpoint, or says why not. Sets `state` on success. */
static status check_checkpoint(const char *path, int64_t step, checkpoint_state *state)
{
    char name[FILE_PATH_BYTES];
    safetensors *file = NULL;
    model_kind kind = MODEL_MLP;
    checkpoint_state found = {0};
    TRY(file_join(path, "state.json", name));
    TRY(checkpoint_state_read(name, &found));
    if (found.step != step)
        return FAIL(STATUS_INVALID, "%s: \"step\" is %" PRId64 ", unlike its folder's", name,
                    found.step);
    TRY(checkpoint_model_kind(path, &kind));
    if (kind != found.model)
        return FAIL(STATUS_INVALID, "%s: \"model\" is %s, its tensors are a %s's", name,
                    model_kind_name(found.model), model_kind_name(kind));
    TRY(file_join(path, "optimizer.safetensors", name));
    TRY(safetensors_open(name, &file));
    safetensors_close(file);
    *state = found;
    return STATUS_OK;
}

status checkpoint_find(const char *run_dir, bool *found, checkpoint_state *state,
                       char path[FILE_PATH_BYTES])
{
    char folder[FILE_PATH_BYTES], candidate[FILE_PATH_BYTES];
    int64_t *steps = NULL;
    size_t n = 0;
    bool have = false;
    TRY(file_join(run_dir, "checkpoints", folder));
    TRY(checkpoint_folder_list(folder, &steps, &n));
    status st = STATUS_OK;
    for (size_t i = 0; i < n && !have && st == STATUS_OK; i++) {
        st = checkpoint_folder_path(folder, steps[i], "", candidate);
        if (st != STATUS_OK)
            break;
        have = check_checkpoint(candidate, steps[i], state) == STATUS_OK;
        if (!have)
            LOG_W("passing over a broken checkpoint: %s", status_message());
    }
    free(steps);
    if (st == STATUS_OK && n > 0 && !have)
        st = status_context(STATUS_INVALID,
                            "%s: all %zu checkpoints are broken (delete them to start anew), the "
                            "oldest so",
                            folder, n);
    if (st != STATUS_OK)
        return st;
    if (have)
        strcpy(path, candidate);
    *found = have;
    return STATUS_OK;
}

/* The parameters into host memory; a misfit is reported with what the file is instead. */
static status read_model(const char *path, const network *net, float *host)
{
    char file[FILE_PATH_BYTES];
    TRY(model_file(path, file));
    status st = checkpoint_arenas_read(file, net, 1, (const char *[]){""}, host);
    model_kind kind = MODEL_MLP;
    if (st == STATUS_INVALID && checkpoint_model_kind(file, &kind) == STATUS_OK)
        st = status_context(st, "not this model (the file's tensors are a %s's)",
                            model_kind_name(kind));
    return st;
}

status checkpoint_load_model(const char *path, network *net)
{
    float *host = NULL;
    TRY(memory_alloc(sizeof *host * network_count(net), (void **)&host));
    status st = read_model(path, net, host);
    if (st == STATUS_OK)
        st = network_import(net, host, network_parameters(net));
    free(host);
    return st;
}

status checkpoint_load(const char *path, network *net, optimizer *opt)
{
    char file[FILE_PATH_BYTES];
    const char *names[OPTIMIZER_MAX_STATES] = {NULL};
    float *arenas[OPTIMIZER_MAX_STATES] = {NULL}, *host = NULL;
    checkpoint_state state = {0};
    size_t n_states = optimizer_states(opt, names, arenas), count = network_count(net);
    TRY(file_join(path, "state.json", file));
    TRY(checkpoint_state_read(file, &state));
    TRY(file_join(path, "optimizer.safetensors", file));
    TRY(memory_alloc(sizeof *host * count * (1 + n_states), (void **)&host));
    /* Everything is read and checked before anything is changed. */
    status st = read_model(path, net, host);
    if (st == STATUS_OK)
        st = checkpoint_arenas_read(file, net, n_states, names, host + count);
    if (st == STATUS_OK)
        st = network_import(net, host, network_parameters(net));
    for (size_t i = 0; i < n_states && st == STATUS_OK; i++)
        st = network_import(net, host + count * (1 + i), arenas[i]);
    if (st == STATUS_OK)
        optimizer_set_steps(opt, state.optimizer_steps);
    free(host);
    return st;
}
