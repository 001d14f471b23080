/* For the tests of the emulated NCCL: ranks, as processes, and their data. */
#ifndef MNIST_DDP_TESTS_EMULATOR_NCCL_TEST_H
#define MNIST_DDP_TESTS_EMULATOR_NCCL_TEST_H

#include "library_test.h"

#include <nccl.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <sys/mman.h>

#define GOOD(call) EXPECT((call) == ncclSuccess)

namespace nccl_test
{

using library_test::device_bytes;
using library_test::queue;

/* Memory that the ranks of a check share. */
struct meeting {
    std::atomic<int> has_id, step;
    ncclUniqueId id;
};

inline meeting *new_meeting()
{
    void *memory =
        mmap(nullptr, sizeof(meeting), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    EXPECT(memory != MAP_FAILED);
    return new (memory) meeting{};
}

inline void await(const std::atomic<int> &step, int value)
{
    while (step < value)
        usleep(200);
}

inline ncclResult_t settle(ncclComm_t comm)
{
    ncclResult_t state;
    do {
        GOOD(ncclCommGetAsyncError(comm, &state));
        if (state == ncclInProgress)
            usleep(50);
    } while (state == ncclInProgress);
    return state;
}

/* One rank: its device's stream and its communicator, which does not block. */
class rank_of
{
  public:
    rank_of(meeting *m_, int rank_, int ranks_, int device)
        : m(m_), rank(rank_), ranks(ranks_), q(device)
    {
        if (rank == 0) {
            GOOD(ncclGetUniqueId(&m->id));
            m->has_id = 1;
        }
        await(m->has_id, 1);
        ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
        config.blocking = 0;
        config.splitShare = 1;
        EXPECT(ncclCommInitRankConfig(&comm, ranks, m->id, rank, &config) == ncclInProgress);
    }

    /* Of a call that was enqueued. */
    void done(ncclResult_t result)
    {
        EXPECT(result == ncclInProgress);
        GOOD(settle(comm));
    }

    void leave()
    {
        EXPECT(ncclCommFinalize(comm) == ncclInProgress);
        GOOD(settle(comm));
        GOOD(ncclCommDestroy(comm));
    }

    meeting *m;
    int rank, ranks;
    queue q;
    ncclComm_t comm = nullptr;
};

/* Element i of one rank: small integers, so that sums are exact in every type. */
template <typename T> T number(int rank, size_t i)
{
    return static_cast<T>(static_cast<int>(i % 13) + 3 * rank - 5);
}

template <typename T> std::vector<T> numbers(int rank, size_t count)
{
    std::vector<T> values(count);
    for (size_t i = 0; i < count; i++)
        values[i] = number<T>(rank, i);
    return values;
}

template <typename T> T reduced(int ranks, size_t i, ncclRedOp_t op)
{
    T result = number<T>(0, i);
    for (int rank = 1; rank < ranks; rank++) {
        T value = number<T>(rank, i);
        result = op == ncclSum   ? result + value
                 : op == ncclMax ? std::max(result, value)
                                 : std::min(result, value);
    }
    return result;
}

template <typename T> class device_array
{
  public:
    device_array(const queue &q, std::vector<T> values) : count(values.size()), bytes(q, size())
    {
        bytes.set(values.data());
    }

    std::vector<T> get() const
    {
        std::vector<T> values(count);
        bytes.get(values.data());
        return values;
    }

    T *memory() const
    {
        return static_cast<T *>(bytes.memory);
    }

  private:
    size_t size() const
    {
        return count * sizeof(T);
    }

    size_t count;
    device_bytes bytes;
};

template <typename T, typename Fn>
void expect_each(const device_array<T> &array, size_t first, size_t count, Fn wanted)
{
    std::vector<T> values = array.get();
    for (size_t i = 0; i < count; i++)
        EXPECT(values[first + i] == wanted(i));
}

using rank_fn = void (*)(rank_of &r);

/* Runs each rank in a process of its own, on a device of its own unless `same_device`; whether all
 * ended well. When one dies, the others are ended. */
inline bool run_ranks(int ranks, rank_fn fn, bool same_device = false)
{
    meeting *m = new_meeting();
    std::vector<pid_t> children;
    for (int rank = 0; rank < ranks; rank++) {
        pid_t child = fork();
        if (child == 0) {
            {
                rank_of r(m, rank, ranks, same_device ? 0 : rank);
                fn(r);
            }
            std::exit(EXIT_SUCCESS);
        }
        children.push_back(child);
    }
    bool good = true;
    for (int left = ranks; left > 0; left--) {
        int status = 0;
        wait(&status);
        if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
            continue;
        good = false;
        for (pid_t child : children)
            kill(child, SIGKILL);
    }
    munmap(m, sizeof *m);
    return good;
}

} // namespace nccl_test

#endif
