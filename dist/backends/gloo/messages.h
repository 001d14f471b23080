// The messages of one collective among the ranks of a gloo context: sends and receives that gloo
// moves by itself, and waits for them.
#ifndef MNIST_DDP_DIST_BACKENDS_GLOO_MESSAGES_H
#define MNIST_DDP_DIST_BACKENDS_GLOO_MESSAGES_H

extern "C" {
#include "dist/collective/collective.h"
}

#include <gloo/context.h>
#include <gloo/transport/unbound_buffer.h>

#include <cstddef>
#include <cstdint>
#include <memory>

namespace mnist_ddp
{

// A collective may have several sorts of messages between the same two ranks. Those of one sort
// arrive in the order of their sending.
enum message_sort { MESSAGE_INPUT, MESSAGE_RESULT, MESSAGE_SORTS };

// What gloo matches the messages of one collective by, and calls a slot: a hash of all that the
// ranks must agree on, and of the collective's number, or of a send's tag. So the messages of a
// rank that issues another collective match none, which is a timeout. Matched messages of different
// sizes would make gloo end the process.
struct match_bits {
    explicit match_bits(const collective &c);
    uint64_t of[MESSAGE_SORTS];
};

// Sends from and receives into one piece of memory, borrowed. Offsets are in bytes. All calls throw
// what gloo throws if a connection breaks. Waits also throw at the deadline, after which the
// context is of no use. The memory stays until all that was started has been waited for, or the
// context is closed.
class messages
{
  public:
    messages(gloo::Context &context, const match_bits &bits, const void *memory, size_t size_bytes);

    void send(int peer, message_sort sort, size_t at, size_t size_bytes);
    void recv(int peer, message_sort sort, size_t at, size_t size_bytes);

    // Until `n` more sends have left the memory, or `n` more receives are in it.
    void wait_sends(int n, int64_t deadline_ns);
    void wait_receives(int n, int64_t deadline_ns);

    // Until all that was started is done.
    void finish(int64_t deadline_ns);

  private:
    match_bits bits_;
    std::unique_ptr<gloo::transport::UnboundBuffer> buffer_;
    int sends_ = 0, receives_ = 0; // under way
};

} // namespace mnist_ddp

#endif
