#include "model/checkpoint_arenas.h"

#include "base/memory.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NAME_BYTES = 64, MAX_TENSORS = OPTIMIZER_MAX_STATES * NETWORK_MAX_PARAMETERS };

static void join_name(const char *prefix, const char *parameter_name, char *out)
{
    int length =
        snprintf(out, NAME_BYTES, prefix[0] == '\0' ? "%s%s" : "%s.%s", prefix, parameter_name);
    ASSERT(length > 0 && length < NAME_BYTES);
}

status checkpoint_arenas_write(const char *path, network *net, const checkpoint_arenas *what,
                               const safetensors_entry *metadata, size_t n_metadata, uint64_t *hash)
{
    ASSERT(what->n <= OPTIMIZER_MAX_STATES);
    char names[MAX_TENSORS][NAME_BYTES];
    safetensors_tensor tensors[MAX_TENSORS];
    const parameter *layout = NULL;
    size_t n = network_layout(net, &layout), count = network_count(net), at = 0;
    float *host = NULL;
    TRY(memory_alloc(sizeof *host * count * what->n, (void **)&host));
    status st = STATUS_OK;
    for (size_t a = 0; a < what->n && st == STATUS_OK; a++) {
        st = network_export(net, what->arenas[a], host + a * count);
        for (size_t i = 0; i < n; i++, at++) {
            join_name(what->prefixes[a], layout[i].name, names[at]);
            tensors[at] = (safetensors_tensor){.name = names[at],
                                               .rank = layout[i].rank,
                                               .data = host + a * count + layout[i].offset};
            memcpy(tensors[at].shape, layout[i].shape, sizeof layout[i].shape);
        }
    }
    if (st == STATUS_OK)
        st = safetensors_write(path, tensors, at, metadata, n_metadata, hash);
    free(host);
    return st;
}

/* Every tensor of the file must be one of the arenas'. */
static status check_surplus(const safetensors *file, const network *net,
                            const checkpoint_arenas *what)
{
    const safetensors_tensor *tensors = NULL;
    const parameter *layout = NULL;
    size_t n = network_layout(net, &layout), n_tensors = safetensors_list(file, &tensors);
    for (size_t t = 0; t < n_tensors; t++) {
        bool known = false;
        for (size_t i = 0; i < n * what->n && !known; i++) {
            char name[NAME_BYTES];
            join_name(what->prefixes[i / n], layout[i % n].name, name);
            known = strcmp(name, tensors[t].name) == 0;
        }
        if (!known)
            return FAIL(STATUS_INVALID, "%s: has a tensor '%.64s' that does not belong there",
                        safetensors_path(file), tensors[t].name);
    }
    return STATUS_OK;
}

status checkpoint_arenas_read(const safetensors *file, const network *net,
                              const checkpoint_arenas *what, float *host)
{
    const parameter *layout = NULL;
    size_t n = network_layout(net, &layout);
    for (size_t i = 0; i < n * what->n; i++) {
        const parameter *p = &layout[i % n];
        const float *data = NULL;
        char name[NAME_BYTES];
        join_name(what->prefixes[i / n], p->name, name);
        TRY(safetensors_find(file, name, p->rank, p->shape, &data));
        memcpy(host + i / n * network_count(net) + p->offset, data, sizeof *data * p->count);
    }
    return check_surplus(file, net, what);
}
