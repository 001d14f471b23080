/* The emulated cuDNN against plain loops. Numbers are small integers, so that all sums are exact.
 */
#include "cudnn_test.h"

#include <chrono>

using namespace cudnn_test;
using namespace library_test;

namespace
{

/* A handle, a stream, a workspace and the operands of a problem. */
class device_problem
{
  public:
    explicit device_problem(const problem &p)
        : t(p.g, p.channels_last), x(small_integers(t.x.count(), 1)),
          w(small_integers(t.w.count(), 2)), y(small_integers(t.y.count(), 3)),
          bias(small_integers(static_cast<size_t>(p.g.k), 4)), on_x(q, element_type(p.type), x),
          on_w(q, element_type(p.weight_type), w), on_y(q, element_type(p.type), y),
          on_bias(q, CUDA_R_32F, bias), workspace(q, 2 << 20)
    {
        GOOD(cudnnCreate(&handle));
        GOOD(cudnnSetStream(handle, q.stream));
    }

    ~device_problem()
    {
        GOOD(cudnnDestroy(handle));
    }

    cudnnStatus_t execute(descriptors &all, cudnnBackendDescriptor_t plan, size_t operands = 4,
                          size_t offset = 0)
    {
        const std::array<int64_t, 4> ids = {ID_X, ID_W, ID_Y, ID_BIAS};
        const std::array<void *, 4> pointers = {static_cast<char *>(on_x.memory()) + offset,
                                                on_w.memory(), on_y.memory(), on_bias.memory()};
        cudnnBackendDescriptor_t pack = all.make(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
        auto count = static_cast<int64_t>(operands);
        set(pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, ids, count);
        set(pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, pointers, count);
        set(pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, workspace.memory);
        GOOD(cudnnBackendFinalize(pack));
        cudnnStatus_t status = cudnnBackendExecute(handle, plan, pack);
        q.wait();
        return status;
    }

    queue q;
    cudnnHandle_t handle = nullptr;
    tensors t;
    std::vector<float> x, w, y, bias;
    device_floats on_x, on_w, on_y, on_bias;
    device_bytes workspace;
};

/* Sets what is to come out. */
void convolve_plainly(const problem &p, device_problem *d)
{
    std::vector<float> &out = p.what == BACKWARD_DATA     ? d->x
                              : p.what == BACKWARD_FILTER ? d->w
                                                          : d->y;
    std::vector<double> sums(out.size());
    for (size_t i = 0; i < out.size(); i++)
        sums[i] = static_cast<double>(p.beta) * static_cast<double>(out[i]);
    each_product(p.g, d->t, [&](size_t x, size_t w, size_t y) {
        size_t to = p.what == BACKWARD_DATA ? x : p.what == BACKWARD_FILTER ? w : y;
        float a = p.what == BACKWARD_DATA ? d->y[y] : d->x[x];
        float b = p.what == BACKWARD_FILTER ? d->y[y] : d->w[w];
        sums[to] += static_cast<double>(a) * static_cast<double>(b);
    });
    cudnnDataType_t type = p.what == BACKWARD_FILTER ? p.weight_type : p.type;
    for (size_t i = 0; i < out.size(); i++) {
        double value = sums[i];
        if (p.what == FUSED) {
            size_t k = i / static_cast<size_t>(d->t.y.stride[1]) % static_cast<size_t>(p.g.k);
            value = std::max(0.0, value + static_cast<double>(d->bias[k]));
        }
        out[i] = rounded(value, element_type(type));
    }
}

/* With each engine that is exact. */
void check_problem(const problem &p)
{
    int plans = 0;
    for (cudnnBackendHeurMode_t mode : {CUDNN_HEUR_MODE_A, CUDNN_HEUR_MODE_FALLBACK}) {
        descriptors all;
        cudnnStatus_t status = CUDNN_STATUS_SUCCESS;
        for (const offer &o : ask(all, make_graph(all, p), mode, &status)) {
            device_problem d(p);
            cudnnBackendDescriptor_t plan = nullptr;
            int64_t workspace_bytes = 0;
            if ((o.numerical >> CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC & 1) != 0 ||
                make_plan(all, d.handle, o, &plan, &workspace_bytes) != CUDNN_STATUS_SUCCESS ||
                workspace_bytes > 2 << 20)
                continue;
            GOOD(d.execute(all, plan));
            convolve_plainly(p, &d);
            EXPECT(d.on_x.get() == d.x);
            EXPECT(d.on_w.get() == d.w);
            EXPECT(d.on_y.get() == d.y);
            plans++;
        }
        GOOD(status);
    }
    EXPECT(plans == 5);
}

const geometry PLAIN = {3, 5, 9, 8, 7, 3, 3, 0, 1, 1};
const geometry ROUNDABOUT = {2, 3, 11, 10, 4, 3, 2, 1, 2, 2};

template <kind what> void convolutions()
{
    for (const geometry &g : {PLAIN, ROUNDABOUT})
        for (bool channels_last : {false, true})
            for (cudnnDataType_t type : {CUDNN_DATA_FLOAT, CUDNN_DATA_BFLOAT16, CUDNN_DATA_HALF})
                for (float beta : {0.0f, 3.0f}) {
                    if (what == FUSED && beta != 0.0f)
                        continue;
                    check_problem({what, g, channels_last, type, type, beta});
                    if (what == BACKWARD_FILTER && type != CUDNN_DATA_FLOAT)
                        check_problem({what, g, channels_last, type, CUDNN_DATA_FLOAT, beta});
                }
}

/* Runs the first plan of FALLBACK that fits, and returns the inner product of what it set with what
 * was there before. */
double inner_product(kind what)
{
    problem p = {what, PLAIN, true, CUDNN_DATA_FLOAT, CUDNN_DATA_FLOAT, 0.0f};
    descriptors all;
    device_problem d(p);
    cudnnStatus_t status = CUDNN_STATUS_SUCCESS;
    cudnnBackendDescriptor_t plan = nullptr;
    int64_t workspace_bytes = 0;
    auto offers = ask(all, make_graph(all, p), CUDNN_HEUR_MODE_FALLBACK, &status);
    GOOD(make_plan(all, d.handle, offers.back(), &plan, &workspace_bytes));
    GOOD(d.execute(all, plan));
    const std::vector<float> &before = what == BACKWARD_DATA     ? d.x
                                       : what == BACKWARD_FILTER ? d.w
                                                                 : d.y;
    std::vector<float> after = what == BACKWARD_DATA     ? d.on_x.get()
                               : what == BACKWARD_FILTER ? d.on_w.get()
                                                         : d.on_y.get();
    double sum = 0;
    for (size_t i = 0; i < before.size(); i++)
        sum += static_cast<double>(before[i]) * static_cast<double>(after[i]);
    return sum;
}

void gradients_are_adjoint()
{
    double forward = inner_product(FORWARD);
    EXPECT(forward != 0);
    EXPECT(inner_product(BACKWARD_DATA) == forward);
    EXPECT(inner_product(BACKWARD_FILTER) == forward);
}

/* Callers must choose by the notes, go on after a refusal, and look at the workspace. */
void engines_differ()
{
    problem p = {FORWARD, PLAIN, true, CUDNN_DATA_FLOAT, CUDNN_DATA_FLOAT, 0.0f};
    descriptors all;
    device_problem d(p);
    cudnnStatus_t status = CUDNN_STATUS_SUCCESS;
    cudnnBackendDescriptor_t graph = make_graph(all, p), plan = nullptr;
    auto first = ask(all, graph, CUDNN_HEUR_MODE_A, &status);
    auto fallback = ask(all, graph, CUDNN_HEUR_MODE_FALLBACK, &status);
    unsigned numerical = 0, behaviour = 0;
    int64_t workspace_bytes = 0;
    bool exact = false;
    for (const offer &o : first) {
        numerical |= o.numerical;
        behaviour |= o.behaviour;
        exact = exact || o.numerical == 0;
    }
    EXPECT(!exact);
    EXPECT(numerical ==
           (1u << CUDNN_NUMERICAL_NOTE_TENSOR_CORE | 1u << CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC |
            1u << CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_13x13));
    EXPECT(behaviour == 1u << CUDNN_BEHAVIOR_NOTE_RUNTIME_COMPILATION);
    EXPECT(make_plan(all, d.handle, first[0], &plan, &workspace_bytes) ==
           CUDNN_STATUS_NOT_SUPPORTED);
    GOOD(make_plan(all, d.handle, fallback[0], &plan, &workspace_bytes));
    EXPECT(workspace_bytes > int64_t{1} << 30);
    GOOD(make_plan(all, d.handle, fallback[1], &plan, &workspace_bytes));
    EXPECT(workspace_bytes == (1 << 20) + 131);
}

void inexact_engines_round()
{
    problem p = {FORWARD, {1, 1, 1, 1, 1, 1, 1, 0, 1, 1}, true, CUDNN_DATA_FLOAT, CUDNN_DATA_FLOAT,
                 0.0f};
    for (cudnnBackendHeurMode_t mode : {CUDNN_HEUR_MODE_A, CUDNN_HEUR_MODE_FALLBACK}) {
        descriptors all;
        cudnnStatus_t status = CUDNN_STATUS_SUCCESS;
        auto offers = ask(all, make_graph(all, p), mode, &status);
        for (size_t last : {size_t{1}, size_t{2}}) {
            device_problem d(p);
            cudnnBackendDescriptor_t plan = nullptr;
            int64_t workspace_bytes = 0;
            d.on_x.set({1.0f + 0x1p-12f});
            d.on_w.set({1.0f});
            GOOD(make_plan(all, d.handle, offers[offers.size() - last], &plan, &workspace_bytes));
            GOOD(d.execute(all, plan));
            EXPECT(d.on_y.get()[0] == (mode == CUDNN_HEUR_MODE_A ? 1.0f : 1.0f + 0x1p-12f));
        }
    }
}

void wrong_executions()
{
    problem p = {FORWARD, PLAIN, true, CUDNN_DATA_FLOAT, CUDNN_DATA_FLOAT, 0.0f};
    descriptors all;
    device_problem d(p);
    cudnnStatus_t status = CUDNN_STATUS_SUCCESS;
    cudnnBackendDescriptor_t plan = nullptr;
    int64_t workspace_bytes = 0;
    auto offers = ask(all, make_graph(all, p), CUDNN_HEUR_MODE_FALLBACK, &status);
    GOOD(make_plan(all, d.handle, offers.back(), &plan, &workspace_bytes));
    EXPECT(d.execute(all, plan, 2) == CUDNN_STATUS_BAD_PARAM);
    EXPECT(d.execute(all, plan, 4, 4) == CUDNN_STATUS_BAD_PARAM_MISALIGNED_POINTER);
}

void wrong_descriptors()
{
    descriptors all;
    int64_t count = 0, number = 4;
    float real = 1.0f;
    cudnnBackendDescriptor_t t = all.make(CUDNN_BACKEND_TENSOR_DESCRIPTOR);
    EXPECT(cudnnBackendFinalize(t) == CUDNN_STATUS_BAD_PARAM);
    EXPECT(cudnnBackendGetAttribute(t, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &count,
                                    &number) == CUDNN_STATUS_NOT_INITIALIZED);
    EXPECT(cudnnBackendSetAttribute(t, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_INT64, 1, &number) ==
           CUDNN_STATUS_BAD_PARAM_ATTRIBUTE_TYPE);
    EXPECT(cudnnBackendSetAttribute(t, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 2, &number) ==
           CUDNN_STATUS_BAD_PARAM);
    EXPECT(cudnnBackendSetAttribute(t, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, nullptr) ==
           CUDNN_STATUS_BAD_PARAM);
    EXPECT(cudnnBackendSetAttribute(t, CUDNN_ATTR_CONVOLUTION_DILATIONS, CUDNN_TYPE_INT64, 1,
                                    &number) == CUDNN_STATUS_BAD_PARAM);
    cudnnBackendDescriptor_t good =
        make_tensor(all, 1, tensor({2, 3, 4, 5}, false), CUDNN_DATA_FLOAT);
    EXPECT(cudnnBackendFinalize(good) == CUDNN_STATUS_BAD_PARAM);
    EXPECT(cudnnBackendSetAttribute(good, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1,
                                    &number) == CUDNN_STATUS_BAD_PARAM);
    EXPECT(cudnnBackendGetAttribute(good, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_FLOAT, 1, &count,
                                    &real) == CUDNN_STATUS_BAD_PARAM_ATTRIBUTE_TYPE);
    int64_t size[8];
    GOOD(cudnnBackendGetAttribute(good, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 8, &count,
                                  size));
    EXPECT(count == 4 && size[3] == 5);

    tensors shapes(PLAIN, true);
    cudnnBackendDescriptor_t op = all.make(CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR);
    set(op, NAMES[0].convolution, make_convolution(all, PLAIN));
    set(op, NAMES[0].x, make_tensor(all, 1, shapes.x, CUDNN_DATA_FLOAT));
    set(op, NAMES[0].w, make_tensor(all, 2, shapes.w, CUDNN_DATA_FLOAT));
    set(op, NAMES[0].y, make_tensor(all, 3, shapes.x, CUDNN_DATA_FLOAT));
    EXPECT(cudnnBackendFinalize(op) == CUDNN_STATUS_BAD_PARAM);
    set(op, NAMES[0].y, make_tensor(all, 3, shapes.y, CUDNN_DATA_FLOAT));
    GOOD(cudnnBackendFinalize(op));
}

void refused_graphs()
{
    cudnnStatus_t status = CUDNN_STATUS_SUCCESS;
    for (cudnnBackendHeurMode_t mode : {CUDNN_HEUR_MODE_A, CUDNN_HEUR_MODE_FALLBACK}) {
        descriptors all;
        auto find = [&](kind what, cudnnDataType_t weight_type) {
            problem p = {what, PLAIN, true, CUDNN_DATA_BFLOAT16, weight_type, 0.0f};
            return ask(all, make_graph(all, p), mode, &status).size();
        };
        EXPECT(find(FUSED, CUDNN_DATA_BFLOAT16) == 0);
        EXPECT(status == CUDNN_STATUS_NOT_SUPPORTED_GRAPH_PATTERN);
        EXPECT(find(BACKWARD_FILTER, CUDNN_DATA_FLOAT) == 0);
        GOOD(status);
        EXPECT(find(BACKWARD_FILTER, CUDNN_DATA_BFLOAT16) > 0);
        EXPECT(find(FORWARD, CUDNN_DATA_BFLOAT16) > 0);
    }
}

void measure()
{
    for (kind what : {FORWARD, BACKWARD_DATA, BACKWARD_FILTER}) {
        problem p = {
            what, {16, 32, 26, 26, 64, 3, 3, 0, 1, 1}, true, CUDNN_DATA_FLOAT, CUDNN_DATA_FLOAT,
            0.0f};
        descriptors all;
        device_problem d(p);
        cudnnStatus_t status = CUDNN_STATUS_SUCCESS;
        cudnnBackendDescriptor_t plan = nullptr;
        int64_t workspace_bytes = 0;
        auto offers = ask(all, make_graph(all, p), CUDNN_HEUR_MODE_FALLBACK, &status);
        GOOD(make_plan(all, d.handle, offers.back(), &plan, &workspace_bytes));
        auto start = std::chrono::steady_clock::now();
        GOOD(d.execute(all, plan));
        std::chrono::duration<double, std::milli> taken = std::chrono::steady_clock::now() - start;
        std::printf("convolution kind %d, 16 images: %.1f ms\n", what, taken.count());
    }
}

} // namespace

int main(int argc, char **argv)
{
    std::vector<check> checks = {
        {"forward convolutions", convolutions<FORWARD>},
        {"convolutions with bias and relu", convolutions<FUSED>},
        {"data gradients", convolutions<BACKWARD_DATA>},
        {"weight gradients", convolutions<BACKWARD_FILTER>},
        {"gradients are adjoint to the convolution", gradients_are_adjoint},
        {"engines of many kinds", engines_differ},
        {"tensor cores and transforms round floats", inexact_engines_round},
        {"executions that are refused", wrong_executions},
        {"descriptors that are refused", wrong_descriptors},
        {"graphs that are to be refused", refused_graphs, ending::succeeds, nullptr,
         "MNIST_DDP_EMULATED_REFUSE=conv_fused,dw_f32"},
        {"convolutions' times", measure},
    };
    for (check &c : checks)
        if (c.environment == nullptr)
            c.environment = "MNIST_DDP_EMULATED_STRICT=1";
    return run_checks(checks, argc, argv);
}
