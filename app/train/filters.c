#include "app/train/filters.h"

#include "app/common/json_value.h"
#include "base/memory.h"
#include "data/idx.h"

#include <math.h>
#include <stdlib.h>

enum { ZERO = 128, MOST = 127 };

static json_t *picture_of(const float *weights, int pixels, float scale)
{
    uint8_t bytes[IDX_PIXELS];
    for (int i = 0; i < pixels; i++) {
        float share = scale > 0 ? weights[i] / scale : 0;
        bytes[i] = isfinite(share) ? (uint8_t)(ZERO + lroundf(MOST * share)) : ZERO;
    }
    return json_value_hex(bytes, pixels);
}

/* NaN if one is not finite. */
static float greatest(const float *weights, int n)
{
    float most = 0;
    for (int i = 0; i < n; i++) {
        if (!isfinite(weights[i]))
            return NAN;
        most = fmaxf(most, fabsf(weights[i]));
    }
    return most;
}

static json_t *pictures_of(const parameter *first, const float *weights)
{
    int outputs = first->shape[0], pixels = (int)first->count / outputs;
    int side = (int)lround(sqrt(pixels)), shown = outputs < FILTERS_MAX ? outputs : FILTERS_MAX;
    json_t *object = json_object(), *scales = json_array(), *pictures = json_array();
    ASSERT(side * side == pixels && pixels <= IDX_PIXELS);
    for (int i = 0; i < shown; i++) {
        const float *own = weights + (size_t)i * (size_t)pixels;
        float scale = greatest(own, pixels);
        json_array_append_new(scales, json_value_rounded((double)scale, 6));
        json_array_append_new(pictures, picture_of(own, pixels, scale));
    }
    json_object_set_new(object, "parameter", json_string(first->name));
    json_object_set_new(object, "outputs", json_integer(outputs));
    json_object_set_new(object, "side", json_integer(side));
    json_object_set_new(object, "scales", scales);
    json_object_set_new(object, "pixels", pictures);
    return object;
}

status filters_add(json_t *object, network *net)
{
    const parameter *layout;
    float *host = NULL;
    network_layout(net, &layout);
    TRY(memory_alloc(sizeof *host * network_count(net), (void **)&host));
    status st = network_export(net, network_parameters(net), host);
    if (st == STATUS_OK)
        json_object_set_new(object, "filters", pictures_of(&layout[0], host + layout[0].offset));
    free(host);
    return st;
}
