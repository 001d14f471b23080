#include "nccl_execution.h"

#include <algorithm>

namespace emulated
{

execution_of_nccl::execution_of_nccl(std::shared_ptr<communicator> of) : comm(std::move(of))
{
    comm->executions.push_back(this);
}

execution_of_nccl::~execution_of_nccl()
{
    leave();
}

/* Lets the next one go on. */
void execution_of_nccl::leave()
{
    auto &all = comm->executions;
    auto found = std::find(all.begin(), all.end(), this);
    if (found != all.end())
        all.erase(found);
}

progress execution_of_nccl::step()
{
    bool spoils = nccl_aborts_leave_garbage() && comm->a_peer_has_aborted();
    if (comm->was_aborted() || spoils) {
        if (spoils)
            spoil();
        leave();
        return progress::done;
    }
    if (comm->executions.front() != this)
        return progress::pending;
    if (!begun) {
        begun = true;
        comm->operations++;
        hangs = nccl_next_hangs();
        check_memory();
    }
    progress result = hangs ? progress::pending : move();
    if (result == progress::done)
        leave();
    return result;
}

step_fn nccl_begin(const std::shared_ptr<communicator> &comm, const std::vector<nccl_call> &calls)
{
    nccl_kind kind = calls.front().operation.kind;
    bool messages = kind == nccl_kind::send || kind == nccl_kind::receive;
    std::shared_ptr<execution_of_nccl> one =
        messages ? make_messages(comm, calls) : make_collective(comm, calls.front());
    return [one] { return one->step(); };
}

} // namespace emulated
