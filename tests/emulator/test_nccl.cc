/* The emulated NCCL among processes and threads. */
#include "nccl_test.h"

#include <thread>

using namespace library_test;
using namespace nccl_test;

#define ENVIRONMENT "MNIST_DDP_EMULATED_DEVICES=4 MNIST_DDP_EMULATED_STRICT=1"

namespace
{

template <typename T> void all_kinds_of(rank_of &r, ncclDataType_t type, size_t count)
{
    auto ranks = static_cast<size_t>(r.ranks), rank = static_cast<size_t>(r.rank);
    int root = r.ranks - 1;
    for (ncclRedOp_t op : {ncclSum, ncclMin, ncclMax}) {
        auto wanted = [&](size_t i) { return reduced<T>(r.ranks, i, op); };
        device_array<T> in(r.q, numbers<T>(r.rank, count)), out(r.q, std::vector<T>(count));
        r.done(ncclAllReduce(in.memory(), out.memory(), count, type, op, r.comm, r.q.stream));
        r.done(ncclAllReduce(in.memory(), in.memory(), count, type, op, r.comm, r.q.stream));
        expect_each(out, 0, count, wanted);
        expect_each(in, 0, count, wanted);

        device_array<T> once(r.q, numbers<T>(r.rank, count)), there(r.q, std::vector<T>(count));
        r.done(ncclReduce(once.memory(), r.rank == root ? there.memory() : nullptr, count, type, op,
                          root, r.comm, r.q.stream));
        if (r.rank == root)
            expect_each(there, 0, count, wanted);

        std::vector<T> rows;
        for (size_t row = 0; row < ranks; row++)
            for (T value : numbers<T>(r.rank, count))
                rows.push_back(value + static_cast<T>(row));
        device_array<T> all(r.q, rows), mine(r.q, std::vector<T>(count));
        r.done(ncclReduceScatter(all.memory(), mine.memory(), count, type, op, r.comm, r.q.stream));
        T more = static_cast<T>(rank * (op == ncclSum ? ranks : 1));
        expect_each(mine, 0, count, [&](size_t i) { return wanted(i) + more; });
    }
    device_array<T> in(r.q, numbers<T>(r.rank, count)), all(r.q, std::vector<T>(count * ranks));
    r.done(ncclAllGather(in.memory(), all.memory(), count, type, r.comm, r.q.stream));
    for (int from = 0; from < r.ranks; from++)
        expect_each(all, static_cast<size_t>(from) * count, count,
                    [&](size_t i) { return number<T>(from, i); });
    const T *from = r.rank == root ? in.memory() : nullptr;
    r.done(ncclBroadcast(from, in.memory(), count, type, root, r.comm, r.q.stream));
    expect_each(in, 0, count, [&](size_t i) { return number<T>(root, i); });
}

void all_kinds(rank_of &r)
{
    GOOD(settle(r.comm));
    for (size_t count : {size_t{1}, size_t{7}, size_t{1000}, size_t{270001}}) {
        all_kinds_of<float>(r, ncclFloat32, count);
        if (count < 270001) {
            all_kinds_of<double>(r, ncclFloat64, count);
            all_kinds_of<int64_t>(r, ncclInt64, count);
        }
    }
    r.leave();
}

void half_types(rank_of &r)
{
    GOOD(settle(r.comm));
    for (auto [type, cuda] : {std::pair{ncclBfloat16, CUDA_R_16BF}, {ncclFloat16, CUDA_R_16F}}) {
        device_floats x(r.q, cuda, numbers<float>(r.rank, 5000));
        r.done(ncclAllReduce(x.memory(), x.memory(), 5000, type, ncclSum, r.comm, r.q.stream));
        std::vector<float> values = x.get();
        for (size_t i = 0; i < values.size(); i++)
            EXPECT(values[i] == reduced<float>(r.ranks, i, ncclSum));
    }
    r.leave();
}

/* Where 1/n is exact, averages of floats are; those of integers round toward zero. */
template <typename T> void averages_of(rank_of &r, ncclDataType_t type, size_t count)
{
    T ranks = static_cast<T>(r.ranks);
    device_array<T> in(r.q, numbers<T>(r.rank, count)), out(r.q, std::vector<T>(count));
    r.done(ncclAllReduce(in.memory(), out.memory(), count, type, ncclAvg, r.comm, r.q.stream));
    expect_each(out, 0, count,
                [&](size_t i) { return static_cast<T>(reduced<T>(r.ranks, i, ncclSum) / ranks); });
    r.done(ncclAllReduce(in.memory(), out.memory(), count, type, ncclProd, r.comm, r.q.stream));
    expect_each(out, 0, count, [&](size_t i) {
        T product = number<T>(0, i);
        for (int rank = 1; rank < r.ranks; rank++)
            product = static_cast<T>(product * number<T>(rank, i));
        return product;
    });
}

void averages_and_products(rank_of &r)
{
    GOOD(settle(r.comm));
    for (size_t count : {size_t{1}, size_t{1000}}) {
        averages_of<float>(r, ncclFloat32, count);
        averages_of<double>(r, ncclFloat64, count);
        averages_of<int64_t>(r, ncclInt64, count);
    }
    r.leave();
}

/* Float sums in the order of the ranks, whoever comes first. */
void order_of_sums(rank_of &r)
{
    GOOD(settle(r.comm));
    for (int round = 0; round < 5; round++) {
        const float parts[] = {1e8f, 1.0f, -1e8f, 1.0f};
        usleep(static_cast<useconds_t>((r.rank * 7 + round * 3) % 4) * 1000);
        device_array<float> x(r.q, {parts[r.rank]});
        r.done(ncclAllReduce(x.memory(), x.memory(), 1, ncclFloat32, ncclSum, r.comm, r.q.stream));
        expect_each(x, 0, 1, [](size_t) { return 1.0f; });
    }
    r.leave();
}

/* NVLS adds up in another order on each call, the same one on all ranks. */
void order_of_nvls(rank_of &r)
{
    GOOD(settle(r.comm));
    const float parts[] = {1e8f, 1.0f, -1e8f, 1.0f};
    bool differs = false;
    float first = 0;
    for (int round = 0; round < 30; round++) {
        device_array<float> x(r.q, {parts[r.rank]}), all(r.q, std::vector<float>(4));
        r.done(ncclAllReduce(x.memory(), x.memory(), 1, ncclFloat32, ncclSum, r.comm, r.q.stream));
        r.done(ncclAllGather(x.memory(), all.memory(), 1, ncclFloat32, r.comm, r.q.stream));
        float mine = x.get()[0];
        expect_each(all, 0, 4, [=](size_t) { return mine; });
        first = round == 0 ? mine : first;
        differs = differs || mine != first;
    }
    EXPECT(differs);
    r.leave();
}

/* The root does not write over what the others have not taken. */
void slow_receivers(rank_of &r)
{
    GOOD(settle(r.comm));
    const size_t rounds = 20;
    device_array<float> in(r.q, numbers<float>(0, rounds)), out(r.q, std::vector<float>(rounds));
    if (r.rank != 0)
        usleep(50000);
    for (size_t i = 0; i < rounds; i++)
        r.done(ncclBroadcast(in.memory() + i, out.memory() + i, 1, ncclFloat32, 0, r.comm,
                             r.q.stream));
    expect_each(out, 0, rounds, [](size_t i) { return number<float>(0, i); });
    r.leave();
}

/* To the next rank, from the one before, and to itself. */
void messages(rank_of &r)
{
    GOOD(settle(r.comm));
    int next = (r.rank + 1) % r.ranks, before = (r.rank + r.ranks - 1) % r.ranks;
    for (size_t count : {size_t{1}, size_t{100003}}) {
        device_array<float> mine(r.q, numbers<float>(r.rank, count));
        device_array<float> first(r.q, std::vector<float>(count));
        device_array<float> second(r.q, std::vector<float>(count));
        GOOD(ncclGroupStart());
        GOOD(ncclSend(mine.memory(), count, ncclFloat32, next, r.comm, r.q.stream));
        GOOD(ncclSend(mine.memory(), count, ncclFloat32, r.rank, r.comm, r.q.stream));
        GOOD(ncclRecv(first.memory(), count, ncclFloat32, before, r.comm, r.q.stream));
        GOOD(ncclRecv(second.memory(), count, ncclFloat32, r.rank, r.comm, r.q.stream));
        r.done(ncclGroupEnd());
        expect_each(first, 0, count, [&](size_t i) { return number<float>(before, i); });
        expect_each(second, 0, count, [&](size_t i) { return number<float>(r.rank, i); });
    }
    device_array<float> data(r.q, {static_cast<float>(r.rank)});
    if (r.rank == 0)
        r.done(ncclSend(data.memory(), 1, ncclFloat32, 1, r.comm, r.q.stream));
    if (r.rank == 1)
        r.done(ncclRecv(data.memory(), 1, ncclFloat32, 0, r.comm, r.q.stream));
    if (r.rank == 1)
        expect_each(data, 0, 1, [](size_t) { return 0.0f; });
    r.leave();
}

/* Each launch of a graph is a collective of its own. */
void replays(rank_of &r)
{
    GOOD(settle(r.comm));
    device_array<float> x(r.q, {1.0f, 2.0f});
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t exec = nullptr;
    OK(cudaStreamBeginCapture(r.q.stream, cudaStreamCaptureModeThreadLocal));
    r.done(ncclAllReduce(x.memory(), x.memory(), 2, ncclFloat32, ncclSum, r.comm, r.q.stream));
    OK(cudaStreamEndCapture(r.q.stream, &graph));
    OK(cudaGraphInstantiate(&exec, graph, 0));
    expect_each(x, 0, 1, [](size_t) { return 1.0f; });
    float wanted = 1.0f;
    for (int i = 0; i < 5; i++, wanted *= static_cast<float>(r.ranks))
        OK(cudaGraphLaunch(exec, r.q.stream));
    expect_each(x, 0, 2, [&](size_t i) { return wanted * static_cast<float>(i + 1); });
    OK(cudaGraphExecDestroy(exec));
    OK(cudaGraphDestroy(graph));
    r.leave();
}

/* Rank 1 comes only after another stream of rank 0 has done its work. */
void others_go_on(rank_of &r)
{
    GOOD(settle(r.comm));
    device_array<float> x(r.q, {1.0f});
    if (r.rank == 1)
        await(r.m->step, 1);
    r.done(ncclAllReduce(x.memory(), x.memory(), 1, ncclFloat32, ncclSum, r.comm, r.q.stream));
    if (r.rank == 0) {
        queue other;
        device_array<float> y(other, {5.0f});
        expect_each(y, 0, 1, [](size_t) { return 5.0f; });
        EXPECT(!r.q.is_done());
        r.m->step = 1;
    }
    expect_each(x, 0, 1, [](size_t) { return 2.0f; });
    r.leave();
}

/* Rank 1 does not come: rank 0 waits until it aborts. */
void abort_ends_it(rank_of &r)
{
    GOOD(settle(r.comm));
    if (r.rank == 0) {
        device_array<float> x(r.q, {1.0f});
        r.done(ncclAllReduce(x.memory(), x.memory(), 1, ncclFloat32, ncclSum, r.comm, r.q.stream));
        usleep(100000);
        EXPECT(!r.q.is_done());
        GOOD(settle(r.comm));
        GOOD(ncclCommAbort(r.comm));
        r.q.wait();
        r.m->step = 1;
    }
    await(r.m->step, 1);
    if (r.rank == 1)
        GOOD(ncclCommAbort(r.comm));
}

void third_hangs(rank_of &r)
{
    GOOD(settle(r.comm));
    device_array<float> x(r.q, {1.0f});
    for (int i = 0; i < 3; i++)
        r.done(ncclAllReduce(x.memory(), x.memory(), 1, ncclFloat32, ncclSum, r.comm, r.q.stream));
    usleep(100000);
    EXPECT(!r.q.is_done());
    GOOD(ncclCommAbort(r.comm));
    expect_each(x, 0, 1, [](size_t) { return 4.0f; });
}

/* Rank 1 ends without a word. */
template <ncclResult_t wanted> void peer_is_gone(rank_of &r)
{
    GOOD(settle(r.comm));
    if (r.rank == 1)
        _exit(EXIT_SUCCESS);
    device_array<float> x(r.q, {1.0f});
    ncclResult_t state = ncclInProgress;
    EXPECT(ncclAllReduce(x.memory(), x.memory(), 1, ncclFloat32, ncclSum, r.comm, r.q.stream) ==
           ncclInProgress);
    for (int i = 0; i < 300 && (state == ncclInProgress || state == ncclSuccess); i++) {
        GOOD(ncclCommGetAsyncError(r.comm, &state));
        usleep(1000);
    }
    EXPECT(state == wanted);
    GOOD(ncclCommAbort(r.comm));
}

void duplicates(rank_of &r)
{
    EXPECT(settle(r.comm) == ncclInvalidUsage);
    EXPECT(std::strstr(ncclGetLastError(nullptr), "Duplicate GPU detected : rank ") != nullptr);
    GOOD(ncclCommAbort(r.comm));
}

void joins_when_all_are_there()
{
    meeting *m = new_meeting();
    rank_of first(m, 0, 2, 0);
    ncclResult_t state = ncclSuccess;
    for (int i = 0; i < 20; i++) {
        GOOD(ncclCommGetAsyncError(first.comm, &state));
        EXPECT(state == ncclInProgress);
    }
    device_array<float> x(first.q, {1.0f});
    EXPECT(ncclAllReduce(x.memory(), x.memory(), 1, ncclFloat32, ncclSum, first.comm,
                         first.q.stream) == ncclInvalidArgument);
    rank_of second(m, 1, 2, 1);
    GOOD(settle(second.comm));
    GOOD(settle(first.comm));
    ncclComm_t third = nullptr;
    EXPECT(ncclCommInitRankConfig(&third, 2, m->id, 1, nullptr) != ncclSuccess);
    first.leave();
    second.leave();
}

/* Not before the one before has settled; and not after the end. */
void impatient(rank_of &r)
{
    GOOD(settle(r.comm));
    device_array<float> x(r.q, {1.0f});
    auto sum = [&] {
        return ncclAllReduce(x.memory(), x.memory(), 1, ncclFloat32, ncclSum, r.comm, r.q.stream);
    };
    EXPECT(sum() == ncclInProgress);
    EXPECT(sum() == ncclInvalidArgument);
    GOOD(settle(r.comm));
    EXPECT(ncclCommFinalize(r.comm) == ncclInProgress);
    EXPECT(sum() == ncclInvalidArgument);
    GOOD(settle(r.comm));
    EXPECT(sum() == ncclInvalidUsage);
    GOOD(ncclCommDestroy(r.comm));
}

/* A child whose calls block, of a parent that does not. */
ncclComm_t split(rank_of &r)
{
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    ncclComm_t child = nullptr;
    config.blocking = 1;
    EXPECT(ncclCommSplit(r.comm, 0, r.rank, &child, &config) == ncclInProgress);
    GOOD(settle(r.comm));
    EXPECT(child != nullptr);
    return child;
}

void a_child_blocks(rank_of &r)
{
    GOOD(settle(r.comm));
    ncclComm_t child = split(r);
    device_array<float> x(r.q, {static_cast<float>(r.rank + 1)});
    for (int i = 0; i < 3; i++)
        GOOD(ncclAllReduce(x.memory(), x.memory(), 1, ncclFloat32, ncclSum, child, r.q.stream));
    expect_each(x, 0, 1, [](size_t) { return 12.0f; });
    GOOD(ncclCommDestroy(child));
    r.leave();
}

/* Rank 0 waits in its first call, for rank 1, which does not come. */
template <bool of_child> void a_call_is_aborted(rank_of &r)
{
    GOOD(settle(r.comm));
    ncclComm_t child = split(r);
    if (r.rank == 1) {
        usleep(300000);
        GOOD(ncclCommAbort(r.comm));
        GOOD(ncclCommAbort(child));
        return;
    }
    std::thread other([&] {
        usleep(100000);
        GOOD(ncclCommAbort(of_child ? child : r.comm));
    });
    device_array<float> x(r.q, {1.0f});
    EXPECT(ncclAllReduce(x.memory(), x.memory(), 1, ncclFloat32, ncclSum, child, r.q.stream) ==
           ncclInternalError);
    other.join();
    GOOD(ncclCommAbort(child));
}

/* Enqueued by NCCL's own thread, even before the caller polls. */
void nobody_asks(rank_of &r)
{
    GOOD(settle(r.comm));
    device_array<float> x(r.q, {static_cast<float>(r.rank + 1)});
    EXPECT(ncclAllReduce(x.memory(), x.memory(), 1, ncclFloat32, ncclSum, r.comm, r.q.stream) ==
           ncclInProgress);
    for (int i = 0; i < 2000 && x.get()[0] < 3; i++)
        usleep(1000);
    expect_each(x, 0, 1, [](size_t) { return 3.0f; });
    GOOD(settle(r.comm));
    r.leave();
}

/* Released while the device thread may still be letting go of its last operation. */
void come_and_go()
{
    for (int i = 0; i < 60; i++) {
        meeting *m = new_meeting();
        rank_of r(m, 0, 1, 0);
        GOOD(settle(r.comm));
        device_array<float> x(r.q, {2.0f});
        r.done(ncclAllReduce(x.memory(), x.memory(), 1, ncclFloat32, ncclSum, r.comm, r.q.stream));
        if (i % 2 == 0)
            GOOD(ncclCommAbort(r.comm));
        else
            r.leave();
        expect_each(x, 0, 1, [](size_t) { return 2.0f; });
        munmap(m, sizeof *m);
    }
}

void threads_sum()
{
    meeting *m = new_meeting();
    std::vector<std::thread> threads;
    for (int rank = 0; rank < 3; rank++)
        threads.emplace_back([m, rank] {
            rank_of r(m, rank, 3, rank);
            GOOD(settle(r.comm));
            all_kinds_of<float>(r, ncclFloat32, 1000);
            r.leave();
        });
    for (std::thread &t : threads)
        t.join();
}

void different_counts(rank_of &r)
{
    GOOD(settle(r.comm));
    device_array<float> x(r.q, std::vector<float>(10));
    r.done(ncclAllReduce(x.memory(), x.memory(), r.rank == 0 ? 5 : 6, ncclFloat32, ncclSum, r.comm,
                         r.q.stream));
    r.q.wait();
}

template <bool sends> void different_kinds(rank_of &r)
{
    GOOD(settle(r.comm));
    device_array<float> x(r.q, std::vector<float>(10));
    if (r.rank == 0)
        r.done(ncclAllReduce(x.memory(), x.memory(), 5, ncclFloat32, ncclMax, r.comm, r.q.stream));
    else if (sends)
        r.done(ncclSend(x.memory(), 5, ncclFloat32, 0, r.comm, r.q.stream));
    else
        r.done(ncclRecv(x.memory(), 5, ncclFloat32, 0, r.comm, r.q.stream));
    r.q.wait();
}

void host_memory(rank_of &r)
{
    GOOD(settle(r.comm));
    float x = 0;
    r.done(ncclAllReduce(&x, &x, 1, ncclFloat32, ncclSum, r.comm, r.q.stream));
    r.q.wait();
}

/* The checks' bodies. */
template <int ranks, rank_fn fn> void with()
{
    EXPECT(run_ranks(ranks, fn));
}

template <rank_fn fn> void with_two_on_one_device()
{
    EXPECT(run_ranks(2, fn, true));
}

template <rank_fn fn> void with_two_that_fail()
{
    EXPECT(!run_ranks(2, fn));
}

} // namespace

int main(int argc, char **argv)
{
    std::vector<check> checks = {
        {"all kinds, 1 rank", with<1, all_kinds>},
        {"all kinds, 2 ranks", with<2, all_kinds>},
        {"all kinds, 3 ranks", with<3, all_kinds>},
        {"all kinds, 4 ranks", with<4, all_kinds>},
        {"16-bit sums", with<2, half_types>},
        {"averages and products, 2 ranks", with<2, averages_and_products>},
        {"averages and products, 4 ranks", with<4, averages_and_products>},
        {"sums in the order of the ranks", with<4, order_of_sums>, ending::succeeds, nullptr,
         ENVIRONMENT " NCCL_ALGO=^NVLS,NVLSTree"},
        {"a ring for all-reduce", with<4, order_of_sums>, ending::succeeds, nullptr,
         ENVIRONMENT " NCCL_ALGO=^PAT;allreduce:ring"},
        {"sums by NVLS", with<4, order_of_nvls>},
        {"slow receivers", with<3, slow_receivers>},
        {"messages among 2", with<2, messages>},
        {"messages among 4", with<4, messages>},
        {"graphs, 1 rank", with<1, replays>},
        {"graphs, 3 ranks", with<3, replays>},
        {"other streams go on", with<2, others_go_on>},
        {"abort ends what waits", with<2, abort_ends_it>},
        {"the third operation hangs", with<2, third_hangs>, ending::succeeds, nullptr,
         ENVIRONMENT " MNIST_DDP_EMULATED_NCCL=hang:3"},
        {"a dead peer is not noticed", with<2, peer_is_gone<ncclSuccess>>},
        {"a dead peer is reported where wanted", with<2, peer_is_gone<ncclRemoteError>>,
         ending::succeeds, nullptr, ENVIRONMENT " MNIST_DDP_EMULATED_NCCL=remote_error"},
        {"two ranks on one device", with_two_on_one_device<duplicates>},
        {"joining takes all", joins_when_all_are_there},
        {"calls before the last one has settled", with<1, impatient>},
        {"a child of a split blocks", with<2, a_child_blocks>},
        {"aborting the parent ends its call", with<2, a_call_is_aborted<false>>},
        {"aborting it in a call ends the process", with_two_that_fail<a_call_is_aborted<true>>,
         ending::succeeds, "another thread is in a call of this communicator"},
        {"enqueued though nobody asks", with<2, nobody_asks>},
        {"communicators come and go", come_and_go},
        {"three ranks as threads", threads_sum},
        {"different counts end the process", with_two_that_fail<different_counts>, ending::succeeds,
         "calls ncclAllReduce(5 x ncclFloat32, ncclSum)"},
        {"a message against a collective ends the process",
         with_two_that_fail<different_kinds<true>>, ending::succeeds,
         "rank 0 calls ncclAllReduce(5 x ncclFloat32, ncclMax), rank 1 calls ncclSend"},
        {"a collective against a receive ends the process",
         with_two_that_fail<different_kinds<false>>, ending::succeeds,
         "rank 1 calls ncclRecv with it"},
        {"host memory ends the process", with_two_that_fail<host_memory>, ending::succeeds,
         "needs device memory"},
    };
    for (check &c : checks)
        if (c.environment == nullptr)
            c.environment = ENVIRONMENT;
    return run_checks(checks, argc, argv);
}
