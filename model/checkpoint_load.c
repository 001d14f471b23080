#include "base/log.h"
#include "base/memory.h"
#include "model/checkpoint.h"
#include "model/checkpoint_arenas.h"
#include "model/checkpoint_folder.h"
#include "model/checkpoint_state.h"
#include "model/layers.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { NAME_BYTES = 32 };

/* The model file for a path from the user: the file itself, or the one in a run's or a checkpoint's
 * folder. */
static status model_file(const char *path, char *out)
{
    struct stat info;
    if (stat(path, &info) != 0)
        return FAIL(STATUS_IO, "%s: %s", path, strerror(errno));
    if (S_ISDIR(info.st_mode))
        return file_join(path, CHECKPOINT_MODEL, out);
    if (strlen(path) >= FILE_PATH_BYTES)
        return FAIL(STATUS_INVALID, "path too long: %.64s...", path);
    strcpy(out, path);
    return STATUS_OK;
}

/* A model of PyTorch's; what DistributedDataParallel and DataParallel put before its names is left
 * out. */
static status open_model(const char *path, safetensors **out)
{
    char name[FILE_PATH_BYTES];
    TRY(model_file(path, name));
    TRY(safetensors_open(name, out));
    safetensors_strip(*out, "module.");
    return STATUS_OK;
}

static size_t elements_of(const safetensors_tensor *tensor)
{
    size_t count = 1;
    for (int d = 0; d < tensor->rank; d++)
        count *= (size_t)tensor->shape[d];
    return count;
}

/* How many of a model's weights the file has by name, and by name and size; both 0 if it is less
 * than half of them. */
typedef struct weights_found {
    size_t names, sizes;
} weights_found;

static weights_found find_weights(const safetensors *file, model_kind kind)
{
    char name[NAME_BYTES];
    size_t n, weights = 0;
    weights_found found = {0};
    const layer_spec *layers = model_kind_layers(kind, &n);
    for (size_t i = 0; i < n; i++) {
        if (layers[i].name == NULL)
            continue;
        snprintf(name, sizeof name, "%s.weight", layers[i].name);
        weights++;
        const safetensors_tensor *tensor = safetensors_lookup(file, name);
        size_t count = (size_t)layer_fan_in(&layers[i]) * (size_t)layers[i].out;
        found.names += tensor != NULL;
        found.sizes += tensor != NULL && elements_of(tensor) == count;
    }
    return found.names * 2 >= weights ? found : (weights_found){0};
}

/* Appends " mlp (fc1 fc2 fc3)" to this thread's text. */
static void append_layers(model_kind kind)
{
    size_t n, weights = 0;
    const layer_spec *layers = model_kind_layers(kind, &n);
    status_append(" %s", model_kind_name(kind));
    for (size_t i = 0; i < n; i++)
        if (layers[i].name != NULL)
            status_append("%s%s", weights++ == 0 ? " (" : " ", layers[i].name);
    status_append(")");
}

/* The model of which the file has the most weights: by name, of equals by size. One that is missing
 * is named when it is read. */
static status kind_of(const safetensors *file, model_kind *out)
{
    weights_found most = {0};
    for (int kind = 0; kind < MODEL_COUNT; kind++) {
        weights_found found = find_weights(file, (model_kind)kind);
        if (found.names > most.names || (found.names == most.names && found.sizes > most.sizes)) {
            most = found;
            *out = (model_kind)kind;
        }
    }
    if (most.names > 0)
        return STATUS_OK;
    status st = FAIL(STATUS_INVALID,
                     "%s: not the tensors of any model; there are:", safetensors_path(file));
    for (int kind = 0; kind < MODEL_COUNT; kind++)
        append_layers((model_kind)kind);
    return st;
}

status checkpoint_model_kind(const char *path, model_kind *out)
{
    safetensors *file = NULL;
    TRY(open_model(path, &file));
    status st = kind_of(file, out);
    safetensors_close(file);
    return st;
}

/* A checkpoint's three files, read. */
typedef struct checkpoint {
    checkpoint_state state;
    safetensors *model, *optimizer;
} checkpoint;

static void close_checkpoint(checkpoint *c)
{
    safetensors_close(c->model);
    safetensors_close(c->optimizer);
    *c = (checkpoint){0};
}

/* Opens one of the two tensor files. It must be the one that state.json was written for. */
static status open_tensors(const char *folder, const char *name, const checkpoint_state *state,
                           uint64_t hash, safetensors **out)
{
    char path[FILE_PATH_BYTES], want[24];
    safetensors *file = NULL;
    TRY(file_join(folder, name, path));
    TRY(safetensors_open(path, &file));
    const char *step = safetensors_metadata(file, "step");
    snprintf(want, sizeof want, "%" PRId64, state->step);
    status st = STATUS_OK;
    if (step != NULL && strcmp(step, want) != 0)
        st = FAIL(STATUS_INVALID, "%s: is of step %.24s, its folder's state.json of step %s", path,
                  step, want);
    else if (state->has_hashes && hash != safetensors_hash(file))
        st = FAIL(STATUS_INVALID,
                  "%s: is not the file that its folder's state.json was written for", path);
    if (st != STATUS_OK) {
        safetensors_close(file);
        return st;
    }
    *out = file;
    return STATUS_OK;
}

/* Reads a whole checkpoint. */
static status open_checkpoint(const char *path, checkpoint *out)
{
    char name[FILE_PATH_BYTES];
    model_kind kind = MODEL_MLP;
    checkpoint c = {0};
    TRY(file_join(path, CHECKPOINT_STATE, name));
    TRY(checkpoint_state_read(name, &c.state));
    status st = open_tensors(path, CHECKPOINT_MODEL, &c.state, c.state.model_hash, &c.model);
    if (st == STATUS_OK)
        st = kind_of(c.model, &kind);
    if (st == STATUS_OK && kind != c.state.model)
        st = FAIL(STATUS_INVALID, "%s: \"model\" is %s, its tensors are a %s's", name,
                  model_kind_name(c.state.model), model_kind_name(kind));
    if (st == STATUS_OK)
        st = open_tensors(path, CHECKPOINT_OPTIMIZER, &c.state, c.state.optimizer_hash,
                          &c.optimizer);
    if (st != STATUS_OK) {
        close_checkpoint(&c);
        return st;
    }
    *out = c;
    return STATUS_OK;
}

static status check_checkpoint(const char *path, int64_t step, checkpoint_state *state)
{
    checkpoint c;
    status st = open_checkpoint(path, &c);
    if (st != STATUS_OK)
        return st;
    if (c.state.step != step)
        st = FAIL(STATUS_INVALID,
                  "%s/" CHECKPOINT_STATE ": \"step\" is %" PRId64 ", unlike its folder's", path,
                  c.state.step);
    else
        *state = c.state;
    close_checkpoint(&c);
    return st;
}

status checkpoint_find(const char *run_dir, int64_t before, bool *found, checkpoint_state *state,
                       char path[FILE_PATH_BYTES])
{
    char folder[FILE_PATH_BYTES], candidate[FILE_PATH_BYTES];
    int64_t *steps = NULL;
    size_t n = 0, broken = 0;
    bool have = false;
    TRY(file_join(run_dir, CHECKPOINT_FOLDER, folder));
    TRY(checkpoint_folder_list(folder, &steps, &n));
    status st = STATUS_OK;
    for (size_t i = 0; i < n && !have && st == STATUS_OK; i++) {
        if (steps[i] >= before)
            continue;
        st = checkpoint_folder_path(folder, steps[i], candidate);
        if (st == STATUS_OK)
            st = check_checkpoint(candidate, steps[i], state);
        have = st == STATUS_OK;
        if (have || st == STATUS_NO_MEMORY)
            break;
        LOG_W("passing over a broken checkpoint: %s", status_text());
        broken++;
        st = STATUS_OK;
    }
    free(steps);
    if (st == STATUS_OK && broken > 0 && !have)
        st = status_context(STATUS_INVALID,
                            "%s: all %zu checkpoints are broken (delete them to start anew), the "
                            "oldest so",
                            folder, broken);
    if (st != STATUS_OK)
        return st;
    if (have)
        strcpy(path, candidate);
    *found = have;
    return STATUS_OK;
}

/* Reads the parameters into host memory. An error also says which model the file was taken for. */
static status read_model(const safetensors *file, network *net, float *host)
{
    checkpoint_arenas model = {1, {""}, {network_parameters(net)}};
    status st = checkpoint_arenas_read(file, net, &model, host);
    status_kept why;
    model_kind kind = MODEL_MLP;
    if (st == STATUS_OK)
        return STATUS_OK;
    status_keep(&why);
    bool known = kind_of(file, &kind) == STATUS_OK;
    status_restore(&why);
    if (!known)
        return st;
    return kind == network_kind(net)
               ? status_context(st, "taken for a %s", model_kind_name(kind))
               : status_context(st, "its tensors are those of a %s, not of a %s",
                                model_kind_name(kind), model_kind_name(network_kind(net)));
}

status checkpoint_load_model(const char *path, network *net)
{
    float *host = NULL;
    safetensors *file = NULL;
    TRY(open_model(path, &file));
    status st = memory_alloc(sizeof *host * network_count(net), (void **)&host);
    if (st == STATUS_OK)
        st = read_model(file, net, host);
    if (st == STATUS_OK)
        st = network_import(net, host, network_parameters(net));
    free(host);
    safetensors_close(file);
    return st;
}

status checkpoint_load(const char *path, network *net, optimizer *opt)
{
    checkpoint c;
    checkpoint_arenas states = {0};
    size_t count = network_count(net);
    float *host = NULL;
    states.n = optimizer_states(opt, states.prefixes, states.arenas);
    TRY(open_checkpoint(path, &c));
    /* Everything is read and checked before anything is changed. */
    status st = memory_alloc(sizeof *host * count * (1 + states.n), (void **)&host);
    if (st == STATUS_OK)
        st = read_model(c.model, net, host);
    if (st == STATUS_OK)
        st = checkpoint_arenas_read(c.optimizer, net, &states, host + count);
    if (st == STATUS_OK)
        st = network_import(net, host, network_parameters(net));
    for (size_t i = 0; i < states.n && st == STATUS_OK; i++)
        st = network_import(net, host + count * (1 + i), states.arenas[i]);
    if (st == STATUS_OK)
        optimizer_set_steps(opt, c.state.optimizer_steps);
    free(host);
    close_checkpoint(&c);
    return st;
}
