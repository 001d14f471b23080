/* Emulated cuDNN: operation graphs, and the engines that can run them.
 *
 * As the real library's list, the heuristic's holds engines of many kinds, so that callers must
 * choose: for float tensors the first modes offer tensor cores (TF32), one that is not
 * deterministic, one that must be compiled first, one that gives up when a plan is made and one
 * whose transform rounds coarsely; exact ones come with CUDNN_HEUR_MODE_FALLBACK, the first of them
 * with a workspace that is too large. */
#include "cublaslt_product.h"
#include "cudnn_descriptor.h"

#include <algorithm>

namespace emulated
{

namespace
{

enum : int64_t {
    ENGINE_EXACT = 0,
    ENGINE_EXACT_WORKSPACE = 1,
    ENGINE_NONDETERMINISTIC = 20,
    ENGINE_REFUSING = 30,
    ENGINE_TENSOR_CORE = 45,
    ENGINE_COMPILED = 62,
    ENGINE_LARGE_WORKSPACE = 70,
    ENGINE_TRANSFORM = 71,
    ENGINE_COUNT = 72,
};

const int64_t FIRST_CHOICE[] = {ENGINE_REFUSING, ENGINE_NONDETERMINISTIC, ENGINE_COMPILED,
                                ENGINE_TENSOR_CORE, ENGINE_TRANSFORM};
const int64_t FALLBACK[] = {ENGINE_LARGE_WORKSPACE, ENGINE_EXACT_WORKSPACE, ENGINE_EXACT};

struct engine_kind {
    int64_t id;
    std::vector<cudnnBackendNumericalNote_t> numerical;
    std::vector<cudnnBackendBehaviorNote_t> behaviour;
    int64_t workspace_bytes;
};

const engine_kind KINDS[] = {
    {ENGINE_EXACT, {CUDNN_NUMERICAL_NOTE_STRICT_NAN_PROP}, {}, 0},
    {ENGINE_EXACT_WORKSPACE, {}, {}, (1 << 20) + 131},
    {ENGINE_NONDETERMINISTIC, {CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC}, {}, 0},
    {ENGINE_REFUSING, {CUDNN_NUMERICAL_NOTE_TENSOR_CORE}, {}, 0},
    {ENGINE_TENSOR_CORE, {CUDNN_NUMERICAL_NOTE_TENSOR_CORE}, {}, 131},
    {ENGINE_COMPILED,
     {CUDNN_NUMERICAL_NOTE_TENSOR_CORE},
     {CUDNN_BEHAVIOR_NOTE_RUNTIME_COMPILATION},
     0},
    {ENGINE_LARGE_WORKSPACE, {}, {}, int64_t{1} << 40},
    {ENGINE_TRANSFORM, {CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_13x13}, {}, 0},
};

const engine_kind *find_kind(int64_t id)
{
    for (const engine_kind &kind : KINDS)
        if (kind.id == id)
            return &kind;
    return nullptr;
}

/* Packed in the order N C H W or N H W C; strides along dimensions of 1 do not count. */
bool is_packed(const tensor_spec &t, const std::array<size_t, 4> &order)
{
    int64_t stride = 1;
    for (size_t i = 4; i-- > 0; stride *= t.dims[order[i]])
        if (t.dims[order[i]] > 1 && t.strides[order[i]] != stride)
            return false;
    return true;
}

bool has_layout(const tensor_spec &t)
{
    return is_packed(t, {0, 1, 2, 3}) || is_packed(t, {0, 2, 3, 1});
}

/* Whether there are engines; if not, `reason` is set. */
cudnnStatus_t check_support(const graph_spec &graph)
{
    const convolution_work &work = graph.work;
    if (!graph.understood)
        return cudnn_failure(CUDNN_STATUS_NOT_SUPPORTED_GRAPH_PATTERN,
                             "no engine for this pattern");
    if (graph.fused && find_refusal("conv_fused").wanted)
        return cudnn_failure(CUDNN_STATUS_NOT_SUPPORTED_GRAPH_PATTERN,
                             "MNIST_DDP_EMULATED_REFUSE has conv_fused");
    if (work.shape.compute != CUDNN_DATA_FLOAT || work.shape.mode != CUDNN_CROSS_CORRELATION)
        return cudnn_failure(CUDNN_STATUS_NOT_SUPPORTED_DATA_TYPE,
                             "a convolution that is not a cross-correlation in float");
    if (!has_layout(work.x) || !has_layout(work.w) || !has_layout(work.y))
        return cudnn_failure(CUDNN_STATUS_NOT_SUPPORTED_LAYOUT, "neither NCHW nor NHWC");
    cudnnDataType_t type = work.x.type;
    bool same_weights = work.w.type == type || (work.kind == convolution_kind::backward_filter &&
                                                work.w.type == CUDNN_DATA_FLOAT);
    bool known_bias = !work.bias || work.bias->type == type || work.bias->type == CUDNN_DATA_FLOAT;
    if (work.y.type != type || !same_weights || !known_bias)
        return cudnn_failure(CUDNN_STATUS_NOT_SUPPORTED_DATA_TYPE, "types x %d, w %d, y %d",
                             work.x.type, work.w.type, work.y.type);
    return CUDNN_STATUS_SUCCESS;
}

/* A way of saying no that differs: there is a heuristic, but it finds nothing. */
bool finds_nothing(const graph_spec &graph)
{
    return graph.work.kind == convolution_kind::backward_filter &&
           graph.work.w.type != graph.work.x.type && find_refusal("dw_f32").wanted;
}

/* Appends one pointwise operation to the convolution; false if it does not continue `last`. */
bool append(const pointwise_operation &operation, graph_spec *graph, tensor_spec *last)
{
    convolution_work &work = graph->work;
    if (work.kind != convolution_kind::forward || operation.x.id != last->id || !last->is_virtual ||
        operation.x_scale != 1.0 || work.relu)
        return false;
    if (operation.function.mode == CUDNN_POINTWISE_ADD) {
        const tensor_spec &b = *operation.b;
        if (work.bias || b.is_virtual || b.dims != std::array<int64_t, 4>{1, work.y.dims[1], 1, 1})
            return false;
        work.bias = b;
        work.bias_scale = operation.b_scale;
    } else if (operation.function.plain_relu) {
        work.relu = true;
    } else {
        return false;
    }
    graph->fused = true;
    *last = operation.y;
    return true;
}

/* Tensors that share an id must be the same tensor. */
bool ids_are_consistent(const std::vector<tensor_spec> &tensors)
{
    for (const tensor_spec &a : tensors)
        for (const tensor_spec &b : tensors)
            if (a.id == b.id && (a.dims != b.dims || a.strides != b.strides || a.type != b.type ||
                                 a.is_virtual != b.is_virtual))
                return false;
    return true;
}

/* What an engine says of itself can be read. */
void publish_engine(const engine_spec &engine, descriptor *d)
{
    const engine_kind &kind = *find_kind(engine.id);
    d->publish(CUDNN_ATTR_ENGINE_GLOBAL_INDEX, CUDNN_TYPE_INT64, &engine.id, 1);
    d->publish(CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_TYPE_NUMERICAL_NOTE, kind.numerical.data(),
               static_cast<int64_t>(kind.numerical.size()));
    d->publish(CUDNN_ATTR_ENGINE_BEHAVIOR_NOTE, CUDNN_TYPE_BEHAVIOR_NOTE, kind.behaviour.data(),
               static_cast<int64_t>(kind.behaviour.size()));
    d->made = engine;
    d->finalized = true;
}

std::shared_ptr<const descriptor> make_configuration(const engine_spec &engine)
{
    auto of_engine = std::make_shared<descriptor>();
    of_engine->type = CUDNN_BACKEND_ENGINE_DESCRIPTOR;
    publish_engine(engine, of_engine.get());
    auto configuration = std::make_shared<descriptor>();
    configuration->type = CUDNN_BACKEND_ENGINECFG_DESCRIPTOR;
    configuration->attributes[CUDNN_ATTR_ENGINECFG_ENGINE] = {
        CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, {}, {of_engine}};
    configuration->made = engine;
    configuration->finalized = true;
    return configuration;
}

} // namespace

convolution_accuracy engine_accuracy(const engine_spec &engine)
{
    bool is_float = engine.graph.work.x.type == CUDNN_DATA_FLOAT;
    if (engine.id == ENGINE_NONDETERMINISTIC)
        return convolution_accuracy::nondeterministic;
    if (is_float && (engine.id == ENGINE_TENSOR_CORE || engine.id == ENGINE_COMPILED ||
                     engine.id == ENGINE_TRANSFORM))
        return convolution_accuracy::tf32;
    return convolution_accuracy::plain;
}

cudnnStatus_t finalize_graph(descriptor &d)
{
    if (!d.has(CUDNN_ATTR_OPERATIONGRAPH_OPS))
        return cudnn_failure(CUDNN_STATUS_BAD_PARAM, "a graph without operations");
    size_t count = d.attributes[CUDNN_ATTR_OPERATIONGRAPH_OPS].descriptors.size();
    graph_spec graph = {false, false, {}};
    std::vector<pointwise_operation> pointwise;
    std::vector<tensor_spec> tensors;
    size_t convolutions = 0;
    for (size_t i = 0; i < count; i++) {
        const auto *one = d.get_made<convolution_work>(CUDNN_ATTR_OPERATIONGRAPH_OPS, i);
        const auto *other = d.get_made<pointwise_operation>(CUDNN_ATTR_OPERATIONGRAPH_OPS, i);
        if (one != nullptr) {
            graph.work = *one;
            tensors.insert(tensors.end(), {one->x, one->w, one->y});
            convolutions++;
        } else if (other != nullptr) {
            pointwise.push_back(*other);
            tensors.insert(tensors.end(), {other->x, other->y});
            if (other->b)
                tensors.push_back(*other->b);
        } else {
            return cudnn_failure(CUDNN_STATUS_BAD_PARAM, "operation %zu is not finalized", i);
        }
    }
    if (!ids_are_consistent(tensors))
        return cudnn_failure(CUDNN_STATUS_BAD_PARAM, "two different tensors have the same id");
    if (convolutions == 1) {
        tensor_spec last = graph.work.output();
        graph.understood = true;
        for (const pointwise_operation &operation : pointwise)
            graph.understood = graph.understood && append(operation, &graph, &last);
        if (last.is_virtual)
            return cudnn_failure(CUDNN_STATUS_BAD_PARAM, "the graph's result is virtual");
        if (graph.fused)
            graph.work.y = last;
    }
    int64_t engines = ENGINE_COUNT;
    d.publish(CUDNN_ATTR_OPERATIONGRAPH_ENGINE_GLOBAL_COUNT, CUDNN_TYPE_INT64, &engines, 1);
    d.made = graph;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t finalize_heuristic(descriptor &d)
{
    const auto *graph = d.get_made<graph_spec>(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH);
    if (graph == nullptr || !d.has(CUDNN_ATTR_ENGINEHEUR_MODE))
        return cudnn_failure(CUDNN_STATUS_BAD_PARAM, "a heuristic without graph or mode");
    auto mode = d.get<cudnnBackendHeurMode_t>(CUDNN_ATTR_ENGINEHEUR_MODE);
    if (mode < 0 || mode >= CUDNN_HEUR_MODES_COUNT)
        return cudnn_failure(CUDNN_STATUS_BAD_PARAM, "mode %d", mode);
    if (cudnnStatus_t status = check_support(*graph))
        return status;
    attribute_value results = {CUDNN_TYPE_BACKEND_DESCRIPTOR, 0, {}, {}};
    auto offer = [&](int64_t id) {
        results.descriptors.push_back(make_configuration({id, *graph}));
    };
    if (!finds_nothing(*graph) && mode == CUDNN_HEUR_MODE_FALLBACK)
        std::for_each(std::begin(FALLBACK), std::end(FALLBACK), offer);
    else if (!finds_nothing(*graph))
        std::for_each(std::begin(FIRST_CHOICE), std::end(FIRST_CHOICE), offer);
    results.count = static_cast<int64_t>(results.descriptors.size());
    d.attributes[CUDNN_ATTR_ENGINEHEUR_RESULTS] = results;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t finalize_engine(descriptor &d)
{
    const auto *graph = d.get_made<graph_spec>(CUDNN_ATTR_ENGINE_OPERATION_GRAPH);
    if (graph == nullptr || !d.has(CUDNN_ATTR_ENGINE_GLOBAL_INDEX))
        return cudnn_failure(CUDNN_STATUS_BAD_PARAM, "an engine without graph or index");
    int64_t id = d.get<int64_t>(CUDNN_ATTR_ENGINE_GLOBAL_INDEX);
    if (find_kind(id) == nullptr || finds_nothing(*graph))
        return cudnn_failure(CUDNN_STATUS_NOT_SUPPORTED, "engine %lld cannot run this graph",
                             static_cast<long long>(id));
    if (cudnnStatus_t status = check_support(*graph))
        return status;
    publish_engine({id, *graph}, &d);
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t finalize_configuration(descriptor &d)
{
    const auto *engine = d.get_made<engine_spec>(CUDNN_ATTR_ENGINECFG_ENGINE);
    if (engine == nullptr)
        return cudnn_failure(CUDNN_STATUS_BAD_PARAM, "a configuration without engine");
    d.made = *engine;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t finalize_plan(descriptor &d)
{
    const auto *engine = d.get_made<engine_spec>(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG);
    if (engine == nullptr)
        return cudnn_failure(CUDNN_STATUS_BAD_PARAM, "a plan without configuration");
    if (engine->id == ENGINE_REFUSING)
        return cudnn_failure(CUDNN_STATUS_NOT_SUPPORTED, "engine %lld cannot run this graph",
                             static_cast<long long>(engine->id));
    int64_t workspace_bytes = find_kind(engine->id)->workspace_bytes;
    d.publish(CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, &workspace_bytes, 1);
    d.made = plan_spec{*engine, workspace_bytes};
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t finalize_variant_pack(descriptor &d)
{
    if (!d.has(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS) ||
        !d.has(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS) ||
        d.attributes[CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS].count !=
            d.attributes[CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS].count)
        return cudnn_failure(CUDNN_STATUS_BAD_PARAM, "as many pointers as ids are needed");
    return CUDNN_STATUS_SUCCESS;
}

} // namespace emulated
