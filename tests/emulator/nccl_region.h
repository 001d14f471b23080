/* Emulated NCCL: the memory that the ranks of a communicator share.
 *
 * It is an unnamed file of the process that made the unique id; the others open it through /proc,
 * so nothing remains however a process ends. That process must live until all have joined.
 *
 * Collectives go in rounds, which all ranks take part in; the round's number counts on over the
 * life of the communicator. In each round a rank writes a piece into its buffer of that round's
 * parity, waits until all ranks have written, and takes what it needs. It may write round r once
 * all ranks have taken round r - 2.
 *
 * A message from rank a to rank b goes through the channel of that pair, one message at a time.
 */
#ifndef MNIST_DDP_TESTS_EMULATOR_NCCL_REGION_H
#define MNIST_DDP_TESTS_EMULATOR_NCCL_REGION_H

#include <nccl.h>

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace emulated
{

enum : size_t { NCCL_PIECE_BYTES = 1 << 20, NCCL_RING_BYTES = 64 << 10 };
enum : int { NCCL_MOST_RANKS = 16 };

enum class nccl_kind : uint32_t {
    all_reduce,
    broadcast,
    reduce,
    all_gather,
    reduce_scatter,
    send,
    receive,
};

/* What a rank was asked to do: alike on all ranks of a collective. */
struct nccl_operation {
    nccl_kind kind;
    ncclDataType_t type;
    ncclRedOp_t op; /* 0 unless it reduces */
    int32_t root;   /* or the peer of a message; 0 unless it has one */
    uint64_t count;
};

enum class nccl_presence : uint32_t { absent, joining, joined, left, aborted };

struct nccl_rank {
    std::atomic<nccl_presence> presence;
    std::atomic<int32_t> pid;
    std::atomic<int32_t> device;    /* its number on this machine */
    std::atomic<uint64_t> written;  /* the last round */
    std::atomic<uint32_t> receives; /* bits of ranks whose next message it waits for */
    std::atomic<bool> has_split;    /* asks for a child */
    std::atomic<bool> connects;     /* has come to its first collective */
    nccl_operation operation[2];    /* of the last round of each parity */
};

/* `begun` counts messages that the sender has announced, `done` those that the receiver has taken.
 * `put` and `got` are bytes of the one between. */
struct nccl_channel {
    std::atomic<uint64_t> begun, done, put, got;
    std::atomic<uint32_t> ends; /* 1: the sender has come to its first message, 2: the receiver */
    nccl_operation message;
    char ring[NCCL_RING_BYTES];
};

class nccl_region
{
  public:
    /* Makes one and sets `id` to what opens it. */
    static ncclResult_t create(ncclUniqueId *id);

    nccl_region() = default;
    ~nccl_region();
    nccl_region(const nccl_region &) = delete;
    nccl_region &operator=(const nccl_region &) = delete;

    /* Joins as `rank` of `ranks`, on GPU `device`. */
    ncclResult_t join(const ncclUniqueId &id, int ranks, int rank, int device);

    bool all_have_joined() const;

    /* Does nothing if it has not joined, or has left before. */
    void leave(int rank, nccl_presence how);

    /* No other rank will join: closes the file in the process that made it. */
    void close_door();

    /* Drawn for this communicator; all its ranks have the same. */
    uint64_t cookie() const;

    nccl_rank &of(int rank) const;
    char *piece(int rank, uint64_t round) const;
    nccl_channel &channel(int from, int to) const;

  private:
    struct header;

    ncclResult_t enter(int ranks, int rank, int device);

    char *memory = nullptr;
    size_t size_bytes = 0;
    int count = 0;
    ncclUniqueId opened_by = {};
};

/* Notes why for ncclGetLastError, and returns `result`. */
ncclResult_t nccl_failure(ncclResult_t result, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

} // namespace emulated

#endif
