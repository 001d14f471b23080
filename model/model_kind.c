#include "model/model_kind.h"

#include "model/layers.h"

#include <string.h>

static const layer_spec MLP_LAYERS[] = {
    {LAYER_LINEAR, "fc1", 784, 1, 1, 512, .relu = true},
    {LAYER_LINEAR, "fc2", 512, 1, 1, 512, .relu = true},
    {LAYER_LINEAR, "fc3", 512, 1, 1, NETWORK_CLASSES, .relu = false},
};

static const layer_spec CNN_LAYERS[] = {
    {LAYER_CONV2D, "conv1", 1, 28, 28, 32, .kernel = 3, .relu = true},
    {LAYER_CONV2D, "conv2", 32, 26, 26, 64, .kernel = 3}, /* the pool does its relu */
    {LAYER_POOL, NULL, 64, 24, 24, 64, .relu = true, .dropout = 0.25f},
    {LAYER_LINEAR, "fc1", 64, 12, 12, 128, .relu = true, .dropout = 0.5f},
    {LAYER_LINEAR, "fc2", 128, 1, 1, NETWORK_CLASSES, .relu = false},
};

static const layer_spec SPEEDRUN_LAYERS[] = {
    {LAYER_CONV2D, "conv1", 1, 28, 28, 16, .kernel = 5}, /* the pools do their relu */
    {LAYER_POOL, NULL, 16, 24, 24, 16, .relu = true},
    {LAYER_CONV2D, "conv2", 16, 12, 12, 32, .kernel = 3},
    {LAYER_POOL, NULL, 32, 10, 10, 32, .relu = true},
    {LAYER_LINEAR, "fc1", 32, 5, 5, 128, .relu = true},
    {LAYER_LINEAR, "fc2", 128, 1, 1, NETWORK_CLASSES, .relu = false},
};

#define NAME(KIND, name) [MODEL_##KIND] = (name),
const char *const model_kind_names[MODEL_COUNT] = {MODEL_KINDS(NAME)};

#define AFTER_COMMA(KIND, name) ", " name
const char *const model_kind_list = &MODEL_KINDS(AFTER_COMMA)[2];

#define LAYERS(KIND, name) \
    [MODEL_##KIND] = {KIND##_LAYERS, sizeof KIND##_LAYERS / sizeof KIND##_LAYERS[0]},
static const struct {
    const layer_spec *layers;
    size_t n;
} KINDS[MODEL_COUNT] = {MODEL_KINDS(LAYERS)};

const char *model_kind_name(model_kind kind)
{
    return model_kind_names[kind];
}

status model_kind_parse(const char *name, model_kind *out)
{
    for (int kind = 0; kind < MODEL_COUNT; kind++)
        if (strcmp(name, model_kind_names[kind]) == 0) {
            *out = (model_kind)kind;
            return STATUS_OK;
        }
    return FAIL(STATUS_INVALID, "no model '%s'; there are: %s", name, model_kind_list);
}

const layer_spec *model_kind_layers(model_kind kind, size_t *n)
{
    *n = KINDS[kind].n;
    return KINDS[kind].layers;
}

size_t model_kind_count(model_kind kind)
{
    size_t n, count = 0;
    const layer_spec *layers = model_kind_layers(kind, &n);
    for (size_t i = 0; i < n; i++)
        count += layer_count(&layers[i]);
    return count;
}
