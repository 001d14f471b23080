// How ranks do a collective with messages; docs/internals/collectives.md has the pictures.
#ifndef MNIST_DDP_DIST_BACKENDS_GLOO_ALGORITHMS_H
#define MNIST_DDP_DIST_BACKENDS_GLOO_ALGORITHMS_H

extern "C" {
#include "base/status.h"
#include "dist/collective/collective.h"
}

#include <gloo/context.h>
#include <gloo/transport/unbound_buffer.h>

#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <vector>

namespace mnist_ddp
{

// What the gloo module's functions throw; backend_gloo.cc turns it into a status.

// A failure as the C side keeps it: code, text, and the place in the sources that made it.
class failure : public std::exception
{
  public:
    // Fails at the place that calls this.
    failure(status code_, const std::string &text, const char *file = __builtin_FILE(),
            int line = __builtin_LINE())
        : code(status_fail(code_, file, line, "%s", text.c_str()))
    {
        status_keep(&kept);
    }

    // This thread's latest FAIL, or with STATUS_OK none.
    explicit failure(status code_) : code(code_)
    {
        status_keep(&kept);
    }

    const char *what() const noexcept override
    {
        return kept.text;
    }

    status code;
    status_kept kept;
};

// The messages of one collective among the ranks of a gloo context: sends and receives that gloo
// moves by itself, and waits for them.

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

// One rank's place in its group.
struct place {
    gloo::Context &context;
    int rank, world_size;
    std::vector<char> &scratch; // kept from one collective to the next; grows
};

// Any kind but send and recv. Blocks until this rank's part is done: then `out` is set and `in` is
// the caller's again. Sums are taken in rank order. Throws as messages do.
void perform(const place &p, const collective &c, int64_t deadline_ns);

// What perform moves on a rank.
rank_traffic perform_traffic(const collective &c, int rank, int world_size);

} // namespace mnist_ddp

#endif
