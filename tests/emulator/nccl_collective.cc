/* Emulated NCCL: collectives on the device thread, in rounds as nccl_region.h tells. */
#include "nccl_execution.h"
#include "nccl_reduce.h"

#include <algorithm>
#include <cstring>
#include <random>

namespace emulated
{

namespace
{

class collective : public execution_of_nccl
{
  public:
    collective(std::shared_ptr<communicator> comm_, const nccl_call &call_)
        : execution_of_nccl(std::move(comm_)), call(call_),
          width(nccl_type_bytes(call_.operation.type))
    {
        size_t pieces =
            call.operation.kind == nccl_kind::reduce_scatter ? static_cast<size_t>(comm->ranks) : 1;
        longest = NCCL_PIECE_BYTES / pieces / width;
    }

  protected:
    void check_memory() const override
    {
        const nccl_operation &o = call.operation;
        auto ranks = static_cast<size_t>(comm->ranks);
        size_t block = o.count * width;
        bool scatters = o.kind == nccl_kind::reduce_scatter;
        bool gathers = o.kind == nccl_kind::all_gather;
        if (reads_input())
            check_device(call.send, scatters ? ranks * block : block, "NCCL: what is sent");
        size_t received = gathers ? ranks * block : block;
        if (sets_output()) {
            check_device(call.receive, received, "NCCL: what is received");
            memory_written(call.receive, received);
        }
    }

    progress move() override
    {
        progress result = progress::pending;
        while (offset < call.operation.count) {
            if (!is_written)
                write();
            if (!take())
                return result;
            result = progress::advanced;
        }
        return progress::done;
    }

    void spoil() override
    {
        int rows = call.operation.kind == nccl_kind::all_gather ? comm->ranks : 1;
        if (sets_output()) /* as a float NaN, as an integer -1 */
            std::memset(call.receive, 0xff,
                        static_cast<size_t>(rows) * call.operation.count * width);
    }

  private:
    bool reads_input() const
    {
        return call.operation.kind != nccl_kind::broadcast || comm->rank == call.operation.root;
    }

    bool sets_output() const
    {
        return call.operation.kind != nccl_kind::reduce || comm->rank == call.operation.root;
    }

    size_t now_count() const
    {
        return std::min<size_t>(longest, call.operation.count - offset);
    }

    /* This rank's piece of the next round. */
    void write()
    {
        uint64_t round = comm->round + 1;
        nccl_rank &me = comm->region.of(comm->rank);
        me.operation[round % 2] = call.operation;
        if (reads_input())
            fill(comm->region.piece(comm->rank, round));
        comm->round = round;
        me.written = round;
        is_written = true;
    }

    void fill(char *piece) const
    {
        auto *from = static_cast<const char *>(call.send) + offset * width;
        size_t size_bytes = now_count() * width;
        int rows = call.operation.kind == nccl_kind::reduce_scatter ? comm->ranks : 1;
        for (int row = 0; row < rows; row++)
            std::memcpy(piece + static_cast<size_t>(row) * size_bytes,
                        from + static_cast<size_t>(row) * call.operation.count * width, size_bytes);
    }

    /* What this rank wants of the round; false while a peer has not written its piece. */
    bool take()
    {
        for (int peer = 0; peer < comm->ranks; peer++) {
            const nccl_rank &other = comm->region.of(peer);
            if (other.written < comm->round) {
                check_messages(peer);
                return false;
            }
            check_same(peer, other.operation[comm->round % 2]);
        }
        if (sets_output())
            combine();
        offset += now_count();
        is_written = false;
        return true;
    }

    void combine()
    {
        const nccl_operation &o = call.operation;
        size_t count = now_count(), size_bytes = count * width;
        char *to = static_cast<char *>(call.receive) + offset * width;
        if (o.kind == nccl_kind::broadcast) {
            std::memcpy(to, comm->region.piece(o.root, comm->round), size_bytes);
            return;
        }
        if (o.kind == nccl_kind::all_gather) {
            for (int peer = 0; peer < comm->ranks; peer++)
                std::memcpy(to + static_cast<size_t>(peer) * o.count * width,
                            comm->region.piece(peer, comm->round), size_bytes);
            return;
        }
        size_t mine =
            o.kind == nccl_kind::reduce_scatter ? static_cast<size_t>(comm->rank) * size_bytes : 0;
        std::vector<const void *> pieces;
        for (int peer = 0; peer < comm->ranks; peer++)
            pieces.push_back(comm->region.piece(peer, comm->round) + mine);
        if (uses_nvls())
            std::shuffle(pieces.begin(), pieces.end(),
                         std::mt19937_64(comm->region.cookie() + comm->round));
        nccl_reduce(pieces, o.type, o.op, count, to);
    }

    /* The switch adds up: in another order in every round and every run, alike on all ranks. The
     * other algorithms keep theirs. */
    bool uses_nvls() const
    {
        return call.operation.kind == nccl_kind::reduce_scatter
                   ? comm->algorithms.nvls_reduce_scatter
                   : call.operation.kind == nccl_kind::all_reduce &&
                         comm->algorithms.nvls_all_reduce;
    }

    void check_same(int peer, const nccl_operation &theirs) const
    {
        const nccl_operation &mine = call.operation;
        if (mine.kind == theirs.kind && mine.type == theirs.type && mine.op == theirs.op &&
            mine.root == theirs.root && mine.count == theirs.count)
            return;
        char here[128], there[128];
        nccl_describe(mine, here, sizeof here);
        nccl_describe(theirs, there, sizeof there);
        fatal("NCCL operation %llu: rank %d calls %s, rank %d calls %s",
              static_cast<unsigned long long>(comm->operations), comm->rank, here, peer, there);
    }

    /* A peer that has not come may wait for a message to or from this rank: in vain, as this rank
     * must first get through its collective. */
    void check_messages(int peer) const
    {
        const nccl_channel &from = comm->region.channel(peer, comm->rank);
        const nccl_channel &to = comm->region.channel(comm->rank, peer);
        char here[128], there[128] = "ncclRecv";
        uint64_t done = from.done;
        if (from.begun > done) {
            nccl_describe(from.message, there, sizeof there);
        } else {
            done = to.done;
            if (to.begun != done || (comm->region.of(peer).receives >> comm->rank & 1) == 0)
                return;
        }
        nccl_describe(call.operation, here, sizeof here);
        fatal("NCCL operation %llu: rank %d calls %s, rank %d calls %s with it",
              static_cast<unsigned long long>(comm->operations), comm->rank, here, peer, there);
    }

    const nccl_call call;
    const size_t width;
    size_t longest; /* elements of a round */
    size_t offset = 0;
    bool is_written = false; /* this round's piece */
};

} // namespace

std::shared_ptr<execution_of_nccl> make_collective(std::shared_ptr<communicator> comm,
                                                   const nccl_call &call)
{
    return std::make_shared<collective>(std::move(comm), call);
}

} // namespace emulated
