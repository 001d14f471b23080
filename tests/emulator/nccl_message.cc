/* Emulated NCCL: the messages of a group, all of them at the same time. Those between two ranks
 * keep their order. A send is done when the receiver has taken everything, as of a large message in
 * the real library: so that nobody relies on its buffers. */
#include "nccl_execution.h"
#include "nccl_reduce.h"

#include <algorithm>
#include <cstring>

namespace emulated
{

namespace
{

class messages : public execution_of_nccl
{
  public:
    messages(std::shared_ptr<communicator> comm_, const std::vector<nccl_call> &calls)
        : execution_of_nccl(std::move(comm_))
    {
        for (const nccl_call &call : calls)
            all.push_back({call, call.operation.count * nccl_type_bytes(call.operation.type)});
    }

  protected:
    void check_memory() const override
    {
        for (const one_message &m : all) {
            if (m.is_send()) {
                check_device(m.call.send, m.size_bytes, "ncclSend");
            } else {
                check_device(m.call.receive, m.size_bytes, "ncclRecv");
                memory_written(m.call.receive, m.size_bytes);
            }
        }
    }

    void spoil() override
    {
    }

    progress move() override
    {
        progress result = progress::done;
        bool moved = false;
        for (size_t i = 0; i < all.size(); i++) {
            one_message &m = all[i];
            if (m.is_done || is_behind_another(i))
                result = m.is_done ? result : progress::pending;
            else if (m.is_send() ? send(m, &moved) : receive(m, &moved))
                m.is_done = moved = true;
            else
                result = progress::pending;
        }
        return result == progress::pending && moved ? progress::advanced : result;
    }

  private:
    struct one_message {
        nccl_call call;
        size_t size_bytes;
        size_t moved_bytes = 0;
        uint64_t number = 0; /* in its channel, from 1; 0: not begun */
        bool is_done = false;

        bool is_send() const
        {
            return call.operation.kind == nccl_kind::send;
        }
    };

    /* Whether an earlier message to, or from, the same peer is not done. */
    bool is_behind_another(size_t i) const
    {
        const nccl_operation &mine = all[i].call.operation;
        return std::any_of(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(i),
                           [&](const one_message &m) {
                               return !m.is_done && m.call.operation.kind == mine.kind &&
                                      m.call.operation.root == mine.root;
                           });
    }

    /* Moves a piece; whether the message is done. */
    bool send(one_message &m, bool *moved)
    {
        nccl_channel &to = comm->region.channel(comm->rank, m.call.operation.root);
        if (m.number == 0) {
            to.message = m.call.operation;
            to.put = 0;
            to.got = 0;
            m.number = to.begun + 1;
            to.begun = m.number;
            *moved = true;
        }
        size_t room = NCCL_RING_BYTES - (m.moved_bytes - to.got);
        auto *from = static_cast<const char *>(m.call.send);
        size_t now = std::min(room, m.size_bytes - m.moved_bytes);
        each_run(m.moved_bytes, now, [&](size_t at, size_t offset, size_t run_bytes) {
            std::memcpy(to.ring + at, from + offset, run_bytes);
        });
        m.moved_bytes += now;
        to.put = m.moved_bytes;
        *moved = *moved || now > 0;
        return to.done >= m.number;
    }

    bool receive(one_message &m, bool *moved)
    {
        int peer = m.call.operation.root;
        nccl_channel &from = comm->region.channel(peer, comm->rank);
        std::atomic<uint32_t> &waits = comm->region.of(comm->rank).receives;
        if (m.number == 0) {
            m.number = from.done + 1;
            waits |= 1u << peer;
        }
        if (from.begun < m.number)
            return false;
        if ((waits >> peer & 1) != 0) {
            waits &= ~(1u << peer);
            check_same(m.call.operation, peer, from.message);
        }
        auto *to = static_cast<char *>(m.call.receive);
        size_t now = from.put - m.moved_bytes;
        each_run(m.moved_bytes, now, [&](size_t at, size_t offset, size_t run_bytes) {
            std::memcpy(to + offset, from.ring + at, run_bytes);
        });
        m.moved_bytes += now;
        from.got = m.moved_bytes;
        *moved = *moved || now > 0;
        if (m.moved_bytes < m.size_bytes)
            return false;
        from.done = m.number;
        return true;
    }

    /* Calls fn(place in the ring, place in the message, bytes) for the runs of [first, first + n).
     */
    template <typename Fn> static void each_run(size_t first, size_t size_bytes, Fn fn)
    {
        for (size_t end = first + size_bytes; first < end;) {
            size_t at = first % NCCL_RING_BYTES;
            size_t run_bytes = std::min<size_t>(end - first, NCCL_RING_BYTES - at);
            fn(at, first, run_bytes);
            first += run_bytes;
        }
    }

    void check_same(const nccl_operation &mine, int peer, const nccl_operation &theirs) const
    {
        if (mine.type == theirs.type && mine.count == theirs.count)
            return;
        char here[128], there[128];
        nccl_describe(mine, here, sizeof here);
        nccl_describe(theirs, there, sizeof there);
        fatal("NCCL operation %llu: rank %d calls %s, rank %d calls %s",
              static_cast<unsigned long long>(comm->operations), comm->rank, here, peer, there);
    }

    std::vector<one_message> all;
};

} // namespace

std::shared_ptr<execution_of_nccl> make_messages(std::shared_ptr<communicator> comm,
                                                 const std::vector<nccl_call> &calls)
{
    return std::make_shared<messages>(std::move(comm), calls);
}

} // namespace emulated
