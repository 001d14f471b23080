#include "model/network.h"

#include "base/memory.h"
#include "base/random.h"
#include "kernels/stream_trace.h"
#include "model/layers.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The layers of a network that a device computes in one call: one layer, or, if the device has a
 * convolution block (kernels/ops.h), all before the first linear layer. */

typedef struct segment {
    layer *layers; /* n of them, the network's own */
    size_t n;
    int unit;          /* network_sharding; 0 if the network is not cut */
    conv_block *block; /* NULL: one layer */
    const layer *conv[CONV_BLOCK_CONVS];
} segment;

static void segment_close(device *dev, segment *p);

/* The layer whose output is the segment's. */
static inline layer *segment_last(const segment *p)
{
    return &p->layers[p->n - 1];
}

typedef struct segment_input {
    int n;
    const float *x; /* the batch, or the output of the segment before */
    const float *parameters;
} segment_input;

/* How many of n layers are a block: a convolution, perhaps a pool, a convolution and a pool. 0: the
 * network does not begin with one, or the device has none. *last_conv: the index of the second. */
static size_t block_layers(const device *dev, const layer_spec *specs, size_t n, size_t *last_conv)
{
    if (dev->ops->conv_block_create == NULL || n < 3 || specs[0].kind != LAYER_CONV2D)
        return 0;
    *last_conv = specs[1].kind == LAYER_POOL ? 2 : 1;
    bool ends = n >= *last_conv + 2 && specs[*last_conv].kind == LAYER_CONV2D &&
                specs[*last_conv + 1].kind == LAYER_POOL;
    return ends ? *last_conv + 2 : 0;
}

static status block_init(device *dev, const layer_spec *specs, int max_n, size_t last_conv,
                         segment *p)
{
    conv_block_shape shape = {.pool_between = last_conv == 2};
    shape.conv[0] = layer_conv_shape(&specs[0]);
    shape.conv[1] = layer_conv_shape(&specs[last_conv]);
    for (size_t i = 0; i + 1 < p->n; i++)
        p->layers[i] = (layer){.spec = &specs[i], .dropout_index = -1};
    p->conv[0] = &p->layers[0];
    p->conv[1] = &p->layers[last_conv];
    TRY(layer_init(dev, &specs[p->n - 1], max_n, segment_last(p)));
    return dev->ops->conv_block_create(dev, &shape, max_n, &p->block);
}

/* Makes the next segment of a network, and its layers: specs[0] is the first of the n_specs that
 * are left, `layers` has room for all. segment_close accepts a zeroed one. */
static status segment_init(device *dev, const layer_spec *specs, size_t n_specs, int max_n,
                           layer *layers, segment *out)
{
    size_t last_conv = 0, n = block_layers(dev, specs, n_specs, &last_conv);
    *out = (segment){.layers = layers, .n = n > 0 ? n : 1};
    status st = n > 0 ? block_init(dev, specs, max_n, last_conv, out)
                      : layer_init(dev, &specs[0], max_n, layers);
    if (st != STATUS_OK)
        segment_close(dev, out);
    return st;
}

static void segment_close(device *dev, segment *p)
{
    if (p->block != NULL)
        dev->ops->conv_block_destroy(p->block);
    for (size_t i = 0; i < p->n; i++)
        layer_close(dev, &p->layers[i]);
    *p = (segment){0};
}

/* "conv_block", or the layer's name. */
static const char *segment_name(const segment *p)
{
    return p->block != NULL ? "conv_block" : layer_name(p->layers);
}

static conv_block_batch block_batch(const segment *p, const segment_input *in)
{
    const layer *pool = segment_last(p);
    conv_block_batch images = {.n = in->n, .x = in->x, .out = {pool->y, pool->argmax}};
    for (int i = 0; i < CONV_BLOCK_CONVS; i++) {
        images.weight[i] = in->parameters + p->conv[i]->weight->offset;
        images.bias[i] = in->parameters + p->conv[i]->bias->offset;
    }
    return images;
}

static status segment_forward(device *dev, const segment *p, const segment_input *in,
                              const dropout *drop)
{
    if (p->block == NULL)
        return layer_forward(dev, p->layers, in->n, in->x, in->parameters, drop);
    conv_block_batch images = block_batch(p, in);
    return dev->ops->conv_block_forward(p->block, &images, drop);
}

/* Gradients of its layers' parameters into the arena. */
static status segment_backward_weights(device *dev, const segment *p, const segment_input *in,
                                       float *gradients, bool accumulate)
{
    if (p->block == NULL)
        return layer_backward_weights(dev, p->layers, in->n, in->x, gradients, accumulate);
    conv_block_batch images = block_batch(p, in);
    param_gradients out[CONV_BLOCK_CONVS];
    for (int i = 0; i < CONV_BLOCK_CONVS; i++)
        out[i] = layer_gradients(p->conv[i], gradients, accumulate);
    const layer *pool = segment_last(p);
    return dev->ops->conv_block_backward(p->block, &images, pool->spec->dropout, pool->dy, out);
}

/* Gradient of its input into before->dy. Not for a block. */
static status segment_backward_data(device *dev, const segment *p, const segment_input *in,
                                    layer *before)
{
    ASSERT(p->block == NULL);
    return layer_backward_data(dev, p->layers, in->n, in->parameters, before);
}

static status reorder_layer(device *dev, const segment *p, const layer *lay, const float *from,
                            float *to, bool import)
{
    const device_ops *ops = dev->ops;
    if (p->block != NULL)
        return (import ? ops->conv_block_import
                       : ops->conv_block_export)(p->block, lay == p->conv[0] ? 0 : 1, from, to);
    if (lay->conv != NULL)
        return (import ? ops->conv2d_import : ops->conv2d_export)(lay->conv, from, to);
    return (import ? ops->linear_import : ops->linear_export)(lay->line, from, to);
}

/* Copies its weights from PyTorch's order to the arena's (`import`), or back; host to host. */
static status segment_reorder(device *dev, const segment *p, const float *from, float *to,
                              bool import)
{
    for (size_t i = 0; i < p->n; i++) {
        const layer *lay = &p->layers[i];
        if (lay->weight == NULL)
            continue;
        size_t w = lay->weight->offset, b = lay->bias->offset;
        TRY(reorder_layer(dev, p, lay, from + w, to + w, import));
        memcpy(to + b, from + b, sizeof *to * lay->bias->count);
    }
    return STATUS_OK;
}

/* PyTorch's default initialisation, in every bit: it computes x * (hi - lo) + lo with x = k / 2^24,
 * a whole number k below 2^24, rounded once. As lo is -hi, that is hi * (k - 2^23) / 2^23. The
 * number in parentheses is exact as a float and a power of two changes no digits: one product
 * rounds alike, and a compiler makes vectors of it. */
static void uniform(mt19937 *generator, float hi, float *out, size_t count)
{
    const int32_t half = 1 << 23;
    float unit = hi * 0x1p-23f;
    for (size_t n; count > 0; out += n, count -= n) {
        const uint32_t *numbers = mt19937_run(generator, count, &n);
        for (size_t i = 0; i < n; i++)
            out[i] = (float)((int32_t)(numbers[i] & 0xffffff) - half) * unit;
    }
}

/* Draws a weight (kaiming_uniform_ with a = sqrt(5)) or a bias, both uniform in (-bound, bound),
 * one number of the generator per element in row-major order. torch.manual_seed(seed) is
 * mt19937_init(seed); one stream runs through all layers, weight before bias. fan_in: in_features,
 * or C*K*K. */
static void init_weight(mt19937 *generator, int fan_in, float *out, size_t count)
{
    double gain = sqrt(2.0 / (1 + 5.0));
    uniform(generator, (float)(sqrt(3.0) * (gain / sqrt((double)fan_in))), out, count);
}

static void init_bias(mt19937 *generator, int fan_in, float *out, size_t count)
{
    uniform(generator, (float)(1 / sqrt((double)fan_in)), out, count);
}

enum { NAME_BYTES = 16 };

struct network {
    device *dev;
    network_options options;
    layer layers[LAYERS_MAX];
    segment segments[LAYERS_MAX];
    size_t n_layers, n_segments;
    layer_spec specs[LAYERS_MAX]; /* the whole model's, but of a shard's two layers its own */
    size_t first_layer;           /* of the model's: a stage begins with it */
    layer before;                 /* the layer whose output a stage gets; .spec is NULL: none */
    layer *columns, *rows;        /* a shard's two, whose input's gradient and whose output are sums
                                     over all shards; NULL: layers are whole */
    parameter model_parameters[NETWORK_MAX_PARAMETERS]; /* the whole model's */
    char names[NETWORK_MAX_PARAMETERS][NAME_BYTES];
    size_t n_model_parameters, first_parameter; /* of them a stage's */
    parameter parameters_of[NETWORK_MAX_PARAMETERS];
    size_t n_parameters, count;
    float *parameters, *gradients;
    score *totals; /* device memory */
    bool own_parameters, own_gradients;
    network_sharding sharding; /* if options.shard > 0 */
    batch in;                  /* the last forward's */
    network_mode mode;         /* likewise */
};

static void add_parameter(network *net, const char *layer_name, const char *what, int rank,
                          const int *shape)
{
    size_t i = net->n_model_parameters++;
    ASSERT(i < NETWORK_MAX_PARAMETERS);
    snprintf(net->names[i], NAME_BYTES, "%s.%s", layer_name, what);
    parameter *p = &net->model_parameters[i];
    *p = (parameter){.name = net->names[i], .rank = rank, .count = 1};
    if (i > 0)
        p->offset = p[-1].offset + p[-1].count;
    for (int d = 0; d < rank; d++) {
        p->shape[d] = shape[d];
        p->count *= (size_t)shape[d];
    }
}

/* Names, shapes and offsets of a layer's weight and bias. */
static void add_parameters(network *net, const layer_spec *s)
{
    if (s->name == NULL)
        return;
    int conv[] = {s->out, s->channels, s->kernel, s->kernel};
    int line[] = {s->out, layer_fan_in(s)};
    bool is_conv = s->kind == LAYER_CONV2D;
    add_parameter(net, s->name, "weight", is_conv ? 4 : 2, is_conv ? conv : line);
    add_parameter(net, s->name, "bias", 1, &s->out);
}

enum { SHARD_STEP = 16 }; /* outputs: a block of dropout, a step of the cpu's linear layers */

static size_t first_linear(model_kind kind)
{
    size_t n, i = 0;
    const layer_spec *specs = model_kind_layers(kind, &n);
    while (specs[i].kind != LAYER_LINEAR)
        i++;
    return i;
}

int network_most_shards(model_kind kind)
{
    size_t n;
    return model_kind_layers(kind, &n)[first_linear(kind)].out / SHARD_STEP;
}

int network_shard_outputs(model_kind kind, int rank, int world_size, int *first)
{
    int steps = network_most_shards(kind), end = ((rank + 1) * steps + world_size - 1) / world_size;
    *first = (rank * steps + world_size - 1) / world_size * SHARD_STEP;
    return end * SHARD_STEP - *first;
}

/* The layer with which part `part` begins; of one behind the last: how many layers there are. */
static size_t part_begin(model_kind kind, int part)
{
    size_t n, i;
    const layer_spec *specs = model_kind_layers(kind, &n);
    for (i = 0; i < n && part >= 0; i++)
        part -= i == 0 || specs[i].kind == LAYER_LINEAR;
    return part < 0 ? i - 1 : n;
}

int network_parts(model_kind kind)
{
    size_t n;
    int parts = 0;
    (void)model_kind_layers(kind, &n);
    while (part_begin(kind, parts) < n)
        parts++;
    return parts;
}

/* The model's layers as a cut has them: it begins with *first. Returns where it ends. */
static size_t cut_layers(model_kind kind, network_cut cut, layer_spec out[LAYERS_MAX],
                         size_t *first)
{
    size_t n, pair = first_linear(kind);
    const layer_spec *whole = model_kind_layers(kind, &n);
    int first_output;
    ASSERT(n <= LAYERS_MAX && cut.first_part + cut.n_parts <= network_parts(kind));
    memcpy(out, whole, sizeof *out * n);
    *first = part_begin(kind, cut.first_part);
    if (cut.world_size > 0)
        out[pair].out = out[pair + 1].channels =
            network_shard_outputs(kind, cut.rank, cut.world_size, &first_output);
    return cut.n_parts > 0 ? part_begin(kind, cut.first_part + cut.n_parts) : n;
}

size_t network_cut_count(model_kind kind, network_cut cut)
{
    layer_spec specs[LAYERS_MAX];
    size_t i, count = 0, end = cut_layers(kind, cut, specs, &i);
    for (; i < end; i++)
        count += layer_count(&specs[i]);
    return count;
}

static void copy_floats(float *whole, float *own, int count, network_order way)
{
    bool import = way == NETWORK_IMPORT;
    memcpy(import ? own : whole, import ? whole : own, sizeof *own * (size_t)count);
}

/* Of a weight and a bias: rows of which there are less than in `all` begin with `first`, and so do
 * columns. */
static void copy_layer(const layer_spec *all, const layer_spec *cut, int first, float *whole,
                       float *own, network_order way)
{
    int columns = layer_fan_in(cut), all_columns = layer_fan_in(all);
    int row = cut->out < all->out ? first : 0, column = columns < all_columns ? first : 0;
    for (int i = 0; i < cut->out; i++, own += columns)
        copy_floats(whole + (row + i) * all_columns + column, own, columns, way);
    copy_floats(whole + all->out * all_columns + row, own, cut->out, way);
}

void network_cut_copy(model_kind kind, network_cut cut, float *whole, float *own, network_order way)
{
    layer_spec specs[LAYERS_MAX];
    size_t n, begin, end = cut_layers(kind, cut, specs, &begin);
    const layer_spec *all = model_kind_layers(kind, &n);
    int first = 0;
    if (cut.world_size > 0)
        (void)network_shard_outputs(kind, cut.rank, cut.world_size, &first);
    for (size_t i = 0; i < end; whole += layer_count(&all[i++])) {
        if (i < begin || all[i].name == NULL)
            continue;
        copy_layer(&all[i], &specs[i], first, whole, own, way);
        own += layer_count(&specs[i]);
    }
}

/* The next of the model's parameters, in this network's arenas. */
static const parameter *own_parameter(network *net, const layer_spec *s)
{
    size_t i = net->n_parameters++;
    parameter *own = &net->parameters_of[i];
    *own = net->model_parameters[net->first_parameter + i];
    own->shape[0] = s->out;
    if (own->rank == 2)
        own->shape[1] = layer_fan_in(s);
    own->count = (size_t)s->out * (size_t)(own->rank > 1 ? layer_fan_in(s) : 1);
    own->offset = net->count;
    net->count += own->count;
    return own;
}

static void own_parameters(network *net, layer *lay)
{
    if (lay->spec->name == NULL)
        return;
    lay->weight = own_parameter(net, lay->spec);
    lay->bias = own_parameter(net, lay->spec);
}

/* Each unit's arrays begin with its first layer. */
static void place_parameters(network *net)
{
    int unit = 0;
    for (size_t i = 0; i < net->n_segments; i++) {
        segment *p = &net->segments[i];
        if (net->options.shard > 0 && i > 0 && p->layers[0].spec->kind == LAYER_LINEAR) {
            unit++;
            net->count = 0;
        }
        p->unit = unit;
        for (size_t k = 0; k < p->n; k++)
            own_parameters(net, &p->layers[k]);
    }
    if (net->options.shard > 0)
        net->count = net->options.shard;
}

/* Its input is what the stage before has put out, and its gradient goes there. */
static status make_before(network *net, const layer_spec *spec)
{
    net->before = (layer){.spec = spec, .out_elements = layer_out_elements(spec)};
    size_t count = net->before.out_elements * (size_t)net->options.max_batch;
    return net->dev->ops->alloc(net->dev, sizeof(float) * count, (void **)&net->before.dy);
}

/* The layers' shapes, and names and shapes of the whole model's parameters. Returns where the
 * network's layers end. */
static size_t describe_layers(network *net)
{
    model_kind kind = net->options.kind;
    size_t n, end = cut_layers(kind, net->options.cut, net->specs, &net->first_layer);
    const layer_spec *whole = model_kind_layers(kind, &n);
    for (size_t i = 0; i < n; i++) {
        if (i == net->first_layer)
            net->first_parameter = net->n_model_parameters;
        add_parameters(net, &whole[i]);
    }
    return end;
}

static status make_layers(network *net)
{
    const network_options *o = &net->options;
    size_t n = describe_layers(net) - net->first_layer;
    const layer_spec *specs = &net->specs[net->first_layer];
    int first_output, dropouts = 0;
    for (size_t i = 0; i < net->first_layer; i++)
        dropouts += net->specs[i].dropout > 0.0f;
    if (net->first_layer > 0)
        TRY(make_before(net, &specs[-1]));
    while (net->n_layers < n) {
        size_t i = net->n_layers;
        segment *p = &net->segments[net->n_segments];
        TRY(segment_init(net->dev, &specs[i], n - i, net->options.max_batch, &net->layers[i], p));
        net->n_segments++;
        net->n_layers += p->n;
    }
    for (size_t i = 0; i < n; i++)
        if (specs[i].dropout > 0.0f)
            net->layers[i].dropout_index = dropouts++;
    place_parameters(net);
    if (o->cut.world_size > 0) {
        (void)network_shard_outputs(o->kind, o->cut.rank, o->cut.world_size, &first_output);
        net->columns = &net->layers[first_linear(o->kind)];
        net->columns->first = (uint32_t)first_output;
        net->rows = net->columns + 1;
        net->rows->is_partial = true;
    }
    return STATUS_OK;
}

/* Whole layers of `count` parameters, of which *p is the first; it becomes the first after them. */
static void draw_layers(mt19937 *generator, const parameter **p, size_t count, float *out)
{
    for (const float *end = out + count; out < end; *p += 2) {
        const parameter *weight = *p, *bias = weight + 1;
        int fan_in = (int)(weight->count / bias->count);
        init_weight(generator, fan_in, out, weight->count);
        init_bias(generator, fan_in, out + weight->count, bias->count);
        out += weight->count + bias->count;
    }
}

/* torch.manual_seed(seed), then the modules' constructors in order. The weights of the layers
 * before a stage are drawn, too, and those of a whole layer for a shard. */
static status draw_parameters(const network *net, float *host)
{
    const network_options *o = &net->options;
    const parameter *first = &net->model_parameters[net->first_parameter];
    mt19937 generator;
    float *whole = NULL;
    mt19937_init(&generator, o->seed);
    for (size_t left = first->offset, drawn; left > 0; left -= drawn)
        (void)mt19937_run(&generator, left, &drawn);
    if (o->cut.world_size == 0) {
        draw_layers(&generator, &first, net->count, host);
        return STATUS_OK;
    }
    size_t count = network_model_count(net);
    TRY(memory_alloc(sizeof *whole * count, (void **)&whole));
    draw_layers(&generator, &first, count, whole);
    network_cut_copy(o->kind, o->cut, whole, host, NETWORK_IMPORT);
    free(whole);
    return STATUS_OK;
}

/* New memory costs more than to draw into it: the gradients have room that nobody needs yet. */
status network_draw(network *net)
{
    size_t size_bytes = sizeof(float) * net->count;
    bool on_host = net->dev->stream == NULL;
    float *host = on_host ? net->gradients : NULL;
    if (!on_host)
        TRY(memory_alloc(size_bytes, (void **)&host));
    status st = draw_parameters(net, host);
    if (st == STATUS_OK)
        st = network_import(net, host, net->parameters);
    if (on_host)
        memset(host, 0, size_bytes);
    else
        free(host);
    return st;
}

status network_create(device *dev, const network_options *options, network **out)
{
    network *net = NULL;
    TRY(memory_alloc(sizeof *net, (void **)&net));
    net->dev = dev;
    net->options = *options;
    status st = make_layers(net);
    size_t size_bytes = sizeof(float) * net->count;
    net->parameters = options->parameters;
    net->gradients = options->gradients;
    if (st == STATUS_OK && net->parameters == NULL) {
        st = dev->ops->alloc(dev, size_bytes, (void **)&net->parameters);
        net->own_parameters = true;
    }
    if (st == STATUS_OK && net->gradients == NULL) {
        st = dev->ops->alloc(dev, size_bytes, (void **)&net->gradients);
        net->own_gradients = true;
    }
    if (st == STATUS_OK)
        st = dev->ops->alloc(dev, sizeof *net->totals, (void **)&net->totals);
    if (st == STATUS_OK && options->shard == 0)
        st = network_draw(net);
    if (st != STATUS_OK) {
        network_destroy(net);
        return st;
    }
    *out = net;
    return STATUS_OK;
}

static int last_unit(const network *net)
{
    return net->segments[net->n_segments - 1].unit;
}

static size_t unit_count(const network *net, int unit)
{
    return network_cut_count(net->options.kind, (network_cut){.first_part = unit, .n_parts = 1});
}

/* *p is the unit's first parameter, and becomes the next one's. */
static status keep_unit(network *net, int unit, mt19937 *generator, const parameter **p)
{
    size_t count = unit_count(net, unit);
    float *drawn = NULL, *ours;
    TRY(memory_alloc(2 * count * sizeof *drawn, (void **)&drawn));
    ours = drawn + count;
    draw_layers(generator, p, count, drawn);
    status st = network_reorder_unit(net, unit, drawn, ours, NETWORK_IMPORT);
    if (st == STATUS_OK)
        st = net->sharding.keep(net->sharding.ctx, unit, ours);
    free(drawn);
    return st;
}

status network_shard(network *net, const network_sharding *how)
{
    mt19937 generator;
    const parameter *p = net->model_parameters;
    ASSERT(net->options.shard > 0 && net->options.cut.n_parts == 0);
    net->sharding = *how;
    mt19937_init(&generator, net->options.seed);
    for (int unit = 0; unit <= last_unit(net); unit++)
        TRY(keep_unit(net, unit, &generator, &p));
    return STATUS_OK;
}

void network_destroy(network *net)
{
    if (net == NULL)
        return;
    for (size_t i = 0; i < net->n_segments; i++)
        segment_close(net->dev, &net->segments[i]);
    net->dev->ops->free(net->dev, net->before.dy);
    net->dev->ops->free(net->dev, net->totals);
    if (net->own_parameters)
        net->dev->ops->free(net->dev, net->parameters);
    if (net->own_gradients)
        net->dev->ops->free(net->dev, net->gradients);
    free(net);
}

int network_eval_batch(const device *dev)
{
    enum { FIT_CACHES = 64, FILL_GPU = 1000 };
    return dev->stream != NULL ? FILL_GPU : FIT_CACHES;
}

static layer *last_layer(network *net)
{
    return &net->layers[net->n_layers - 1];
}

/* The sum over all shards of n samples' outputs or gradients. */
static status sum_shards(const network *net, void *data, int n, size_t elements,
                         size_t element_bytes)
{
    const network_sum *sum = &net->options.sum;
    return sum->all_reduce(sum->ctx, data, (size_t)n * elements, element_bytes);
}

static status finish_rows(network *net, const dropout *drop)
{
    layer *rows = net->rows;
    size_t element_bytes = rows->spec->relu ? device_element_bytes(net->dev) : sizeof(float);
    TRY(sum_shards(net, rows->y, net->in.n, rows->out_elements, element_bytes));
    return layer_finish(net->dev, rows, net->in.n, net->parameters, drop);
}

static segment_input input_of(const network *net, size_t i)
{
    const float *x = i == 0 ? net->in.x : segment_last(&net->segments[i - 1])->y;
    return (segment_input){net->in.n, x, net->parameters};
}

/* The parameters of a segment's unit are there. In forward those of the next one are on their way
 * while it computes. */
static status unshard(network *net, const segment *p, bool forward, segment_input *in)
{
    const network_sharding *s = &net->sharding;
    TRY(s->unshard(s->ctx, p->unit, &in->parameters));
    if (forward && p->unit < last_unit(net))
        TRY(s->prefetch(s->ctx, p->unit + 1));
    return net->dev->ops->begin_forward(net->dev, in->parameters, unit_count(net, p->unit));
}

status network_forward(network *net, const batch *in, network_mode mode)
{
    ASSERT(in->n >= 1 && in->n <= net->options.max_batch);
    net->in = *in;
    net->mode = mode;
    net->before.y = (float *)in->x; /* it is only read */
    if (net->options.shard == 0)
        TRY(net->dev->ops->begin_forward(net->dev, net->parameters, net->count));
    for (size_t i = 0; i < net->n_segments; i++) {
        const segment *p = &net->segments[i];
        segment_input input = input_of(net, i);
        if (net->options.shard > 0)
            TRY(unshard(net, p, true, &input));
        dropout drop = layer_dropout(segment_last(p), in, mode, net->options.seed);
        device_span_begin(net->dev, segment_name(p), "forward");
        TRY(segment_forward(net->dev, p, &input, &drop));
        device_span_end(net->dev);
        if (p->layers == net->rows)
            TRY(finish_rows(net, &drop));
    }
    return STATUS_OK;
}

static status add_loss(network *net, const loss_input *loss, const step_state *state, void *dlogits)
{
    device_span_begin(net->dev, NULL, "loss");
    TRY(net->dev->ops->cross_entropy(net->dev, loss, state, net->totals, dlogits));
    device_span_end(net->dev);
    return STATUS_OK;
}

status network_loss(network *net, const float *logits, const batch *in, void *dlogits)
{
    loss_input loss = {logits,    in->labels, in->n, NETWORK_CLASSES, net->options.label_smoothing,
                       in->before};
    return add_loss(net, &loss, in->state, dlogits);
}

status network_score(network *net)
{
    const batch *in = &net->in;
    loss_input loss = {last_layer(net)->y, in->labels, in->n, NETWORK_CLASSES, 0, 0};
    return add_loss(net, &loss, in->state, NULL);
}

status network_clip_gradients(network *net, float max_norm, const step_state *state)
{
    gradient_clip clip = {net->gradients, net->count, max_norm, &net->totals->grad_norm};
    return net->dev->ops->clip_gradients(net->dev, &clip, state);
}

const score *network_totals(const network *net)
{
    return net->totals;
}

status network_read_score(network *net, score *out)
{
    return net->dev->ops->download(net->dev, out, net->totals, sizeof *out);
}

status network_reset_score(network *net)
{
    const score none = {0};
    return net->dev->ops->upload(net->dev, net->totals, &none, sizeof none);
}

void *network_dlogits(network *net)
{
    return last_layer(net)->dy;
}

size_t network_dlogits_row_bytes(const network *net)
{
    return NETWORK_CLASSES * device_element_bytes(net->dev);
}

/* The gradients of a segment's layers are final. */
static status tell_ready(const network *net, const segment *p, grad_ready_fn ready, void *ctx)
{
    for (size_t i = p->n; ready != NULL && i-- > 0;) {
        const layer *lay = &p->layers[i];
        if (lay->weight != NULL)
            TRY(ready(ctx, lay->weight->offset, lay->weight->count + lay->bias->count,
                      net->dev->stream));
    }
    return STATUS_OK;
}

/* Whether backward reads the parameters of a segment: for the gradient of its input, or in a
 * block. */
static bool backward_reads(const network *net, size_t i)
{
    return i > 0 || net->segments[i].block != NULL;
}

/* The gradient of the input comes first: then the unit's parameters have done their work, and
 * their room can take its gradients. The next unit's are on their way while these are computed. */
static status backward_sharded(network *net, size_t i, bool accumulate)
{
    const network_sharding *s = &net->sharding;
    const segment *p = &net->segments[i];
    segment_input in = input_of(net, i);
    float *gradients = NULL;
    if (backward_reads(net, i))
        TRY(unshard(net, p, false, &in));
    if (i > 0) {
        device_span_begin(net->dev, segment_name(p), "backward");
        TRY(segment_backward_data(net->dev, p, &in, segment_last(&net->segments[i - 1])));
        device_span_end(net->dev);
    }
    TRY(s->gradients(s->ctx, p->unit, &gradients));
    bool ends = i == 0 || net->segments[i - 1].unit < p->unit; /* the unit */
    if (ends && i > 0 && backward_reads(net, i - 1))
        TRY(s->prefetch(s->ctx, p->unit - 1));
    device_span_begin(net->dev, segment_name(p), "backward");
    TRY(segment_backward_weights(net->dev, p, &in, gradients, accumulate));
    device_span_end(net->dev);
    return ends ? s->ready(s->ctx, p->unit) : STATUS_OK;
}

status network_backward_from(network *net, bool accumulate, grad_ready_fn ready, void *ctx)
{
    ASSERT(net->mode == NETWORK_TRAIN);
    for (size_t i = net->n_segments; net->options.shard > 0 && i-- > 0;)
        TRY(backward_sharded(net, i, accumulate));
    for (size_t i = net->n_segments; net->options.shard == 0 && i-- > 0;) {
        const segment *p = &net->segments[i];
        segment_input in = input_of(net, i);
        device_span_begin(net->dev, segment_name(p), "backward");
        TRY(segment_backward_weights(net->dev, p, &in, net->gradients, accumulate));
        TRY(tell_ready(net, p, ready, ctx));
        layer *before = i > 0 ? segment_last(&net->segments[i - 1]) : &net->before;
        if (before->spec != NULL)
            TRY(segment_backward_data(net->dev, p, &in, before));
        device_span_end(net->dev);
        if (p->layers == net->columns && before->spec != NULL)
            TRY(sum_shards(net, before->dy, in.n, before->out_elements,
                           device_element_bytes(net->dev)));
    }
    return STATUS_OK;
}

status network_backward(network *net, bool accumulate, grad_ready_fn ready, void *ctx)
{
    TRY(network_loss(net, last_layer(net)->y, &net->in, last_layer(net)->dy));
    return network_backward_from(net, accumulate, ready, ctx);
}

float *network_parameters(network *net)
{
    return net->parameters;
}

float *network_gradients(network *net)
{
    return net->gradients;
}

model_kind network_kind(const network *net)
{
    return net->options.kind;
}

size_t network_count(const network *net)
{
    return net->count;
}

size_t network_model_layout(const network *net, const parameter **out)
{
    *out = net->model_parameters;
    return net->n_model_parameters;
}

size_t network_model_count(const network *net)
{
    return model_kind_count(net->options.kind);
}

int network_max_batch(const network *net)
{
    return net->options.max_batch;
}

size_t network_layout(const network *net, const parameter **out)
{
    *out = net->parameters_of;
    return net->n_parameters;
}

const float *network_output(const network *net, size_t *elements)
{
    const layer *last = &net->layers[net->n_layers - 1];
    *elements = last->out_elements;
    return last->y;
}

const float *network_dinput(const network *net, size_t *elements)
{
    *elements = net->before.out_elements;
    return net->before.dy;
}

const float *network_logits(const network *net)
{
    return net->layers[net->n_layers - 1].y;
}

void network_inject_dropout(network *net, int index, const uint8_t *keep)
{
    for (size_t i = 0; i < net->n_layers; i++)
        if (net->layers[i].dropout_index == index)
            net->layers[i].keep = keep;
}

status network_reorder_unit(network *net, int unit, const float *from, float *to, network_order way)
{
    for (size_t i = 0; i < net->n_segments; i++)
        if (net->segments[i].unit == unit)
            TRY(segment_reorder(net->dev, &net->segments[i], from, to, way == NETWORK_IMPORT));
    return STATUS_OK;
}

status network_reorder(network *net, const float *from, float *to, network_order way)
{
    ASSERT(net->options.shard == 0);
    return network_reorder_unit(net, 0, from, to, way);
}

status network_export(network *net, const float *arena, float *host)
{
    size_t size_bytes = sizeof *host * net->count;
    float *staged = NULL;
    if (net->dev->stream == NULL) /* the arena is host memory */
        return network_reorder(net, arena, host, NETWORK_EXPORT);
    TRY(memory_alloc(size_bytes, (void **)&staged));
    status st = net->dev->ops->download(net->dev, staged, arena, size_bytes);
    if (st == STATUS_OK)
        st = network_reorder(net, staged, host, NETWORK_EXPORT);
    free(staged);
    return st;
}

status network_import(network *net, const float *host, float *arena)
{
    size_t size_bytes = sizeof *host * net->count;
    float *staged = NULL;
    if (net->dev->stream == NULL) /* the arena is host memory */
        return network_reorder(net, host, arena, NETWORK_IMPORT);
    TRY(memory_alloc(size_bytes, (void **)&staged));
    status st = network_reorder(net, host, staged, NETWORK_IMPORT);
    if (st == STATUS_OK)
        st = net->dev->ops->upload(net->dev, arena, staged, size_bytes);
    free(staged);
    return st;
}

static bool are_finite(const float *values, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (!isfinite(values[i]))
            return false;
    return true;
}

status network_is_finite(network *net, bool *out)
{
    size_t size_bytes = sizeof(float) * net->count;
    bool on_host = net->dev->stream == NULL;
    float *host = net->parameters;
    status st = STATUS_OK;
    if (!on_host) {
        TRY(memory_alloc(size_bytes, (void **)&host));
        st = net->dev->ops->download(net->dev, host, net->parameters, size_bytes);
    }
    if (st == STATUS_OK)
        *out = are_finite(host, net->count);
    if (!on_host)
        free(host);
    return st;
}
