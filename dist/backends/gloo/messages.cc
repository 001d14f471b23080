#include "dist/backends/gloo/messages.h"

#include "dist/backends/gloo/failure.h"

extern "C" {
#include "base/clock.h"
#include "base/digest.h"
}

#include <chrono>
#include <cstring>

namespace mnist_ddp
{
namespace
{

// gloo's own collectives use other first bytes.
const uint64_t PREFIX = 0xf0, PREFIX_SHIFT = 56;

std::chrono::milliseconds remaining(int64_t deadline_ns)
{
    int64_t left_ms = clock_remaining_ms(deadline_ns);
    return std::chrono::milliseconds(left_ms > 0 ? left_ms : 1);
}

} // namespace

match_bits::match_bits(const collective &c)
{
    uint32_t prescale;
    std::memcpy(&prescale, &c.prescale, sizeof prescale);
    const bool between_two = collective_is_send_or_recv(c.kind);
    const uint64_t parts[] = {between_two ? uint64_t(c.tag) : c.seq,
                              uint64_t(between_two ? COLLECTIVE_SEND : c.kind),
                              uint64_t(c.op),
                              uint64_t(c.type),
                              uint64_t(c.count),
                              uint64_t(between_two ? 0 : c.root),
                              prescale};
    const uint64_t hash = fnv1a(FNV1A_START, parts, sizeof parts);
    for (uint64_t sort = 0; sort < MESSAGE_SORTS; sort++)
        of[sort] = (PREFIX + sort) << PREFIX_SHIFT | hash >> (64 - PREFIX_SHIFT);
}

messages::messages(gloo::Context &context, const match_bits &bits, const void *memory,
                   size_t size_bytes)
    : bits_(bits), buffer_(context.createUnboundBuffer(const_cast<void *>(memory), size_bytes))
{
}

void messages::send(int peer, message_sort sort, size_t at, size_t size_bytes)
{
    buffer_->send(peer, bits_.of[sort], at, size_bytes);
    sends_++;
}

void messages::recv(int peer, message_sort sort, size_t at, size_t size_bytes)
{
    buffer_->recv(peer, bits_.of[sort], at, size_bytes);
    receives_++;
}

void messages::wait_sends(int n, int64_t deadline_ns)
{
    for (; n > 0; n--, sends_--)
        if (!buffer_->waitSend(remaining(deadline_ns)))
            throw failure(STATUS_PEER, "a send was aborted");
}

void messages::wait_receives(int n, int64_t deadline_ns)
{
    for (; n > 0; n--, receives_--)
        if (!buffer_->waitRecv(remaining(deadline_ns)))
            throw failure(STATUS_PEER, "a receive was aborted");
}

void messages::finish(int64_t deadline_ns)
{
    wait_receives(receives_, deadline_ns);
    wait_sends(sends_, deadline_ns);
}

} // namespace mnist_ddp
