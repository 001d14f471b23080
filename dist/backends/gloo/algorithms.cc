#include "dist/backends/gloo/algorithms.h"

extern "C" {
#include "base/clock.h"
#include "base/digest.h"
}

#include <algorithm>
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

// Ranks exchange directly, without a ring. A part of a sum takes two steps, whatever the world
// size: one rank gets it from all, adds it up in rank order, and sends the sum to all.
namespace
{

const size_t CHUNK_BYTES = 2 << 20;   // at most: summed or passed on while the next one arrives
const size_t WHOLE_BYTES = 128 << 10; // at most, of all peers: every rank sums everything itself
const size_t LINE_BYTES = 64;
const int ROWS = 2; // of chunks: one is summed, the others are received

// The bytes of one rank's part of a reduction.
struct span {
    size_t begin, size_bytes;
};

// The work of one call.
struct task {
    const place &p;
    const collective &c;
    int64_t deadline_ns;
    match_bits bits;
    size_t row_bytes; // of c.count elements

    task(const place &p_, const collective &c_, int64_t deadline_ns_)
        : p(p_), c(c_), deadline_ns(deadline_ns_), bits(c_),
          row_bytes(c_.count * dtype_size(c_.type))
    {
    }

    messages memory(const void *at, size_t size_bytes) const
    {
        return messages(p.context, bits, at, size_bytes);
    }

    // The others, each rank beginning with the one after it, so that not all send to one at once.
    template <typename Fn> void each_peer(Fn fn) const
    {
        for (int i = 1; i < p.world_size; i++)
            fn((p.rank + i) % p.world_size);
    }

    // Row r of a matrix of rows.
    size_t row(int r) const
    {
        return size_t(r) * row_bytes;
    }

    char *scratch(size_t size_bytes) const
    {
        if (p.scratch.size() < size_bytes)
            p.scratch.resize(size_bytes);
        return p.scratch.data();
    }
};

void copy(void *to, const void *from, size_t size_bytes)
{
    if (to != from)
        std::memcpy(to, from, size_bytes);
}

char *offset(void *base, size_t at)
{
    return static_cast<char *>(base) + at;
}

const char *offset(const void *base, size_t at)
{
    return static_cast<const char *>(base) + at;
}

// What of the input each rank adds up, and whether it sends the sums to all.
struct reduction_plan {
    std::vector<span> parts; // (world_size)
    bool to_all;
};

// Of an all_reduce that all ranks share.
span part_of(const collective &c, int rank, int world_size)
{
    const exchange_part part = exchange_part_of(&c, c.count, rank, world_size);
    const size_t size = dtype_size(c.type);
    return {part.begin * size, (part.end - part.begin) * size};
}

// An all_reduce in one step: more bytes, half the messages.
bool is_whole(const collective &c, int world_size)
{
    const size_t size_bytes = c.count * dtype_size(c.type);
    return c.kind == COLLECTIVE_ALL_REDUCE && size_bytes <= WHOLE_BYTES / size_t(world_size - 1);
}

reduction_plan plan_of(const collective &c, int world_size)
{
    const size_t size_bytes = c.count * dtype_size(c.type);
    const bool shared = c.kind == COLLECTIVE_ALL_REDUCE && !is_whole(c, world_size);
    reduction_plan plan = {{}, shared};
    for (int i = 0; i < world_size; i++)
        if (shared)
            plan.parts.push_back(part_of(c, i, world_size));
        else if (c.kind == COLLECTIVE_REDUCE_SCATTER)
            plan.parts.push_back({size_t(i) * size_bytes, size_bytes});
        else
            plan.parts.push_back({0, is_whole(c, world_size) || i == c.root ? size_bytes : 0});
    return plan;
}

// Chunks of one size, but for the last, cut at whole cache lines.
size_t chunk_of(size_t size_bytes)
{
    const size_t n = (size_bytes + CHUNK_BYTES - 1) / CHUNK_BYTES;
    const size_t lines = (size_bytes + LINE_BYTES - 1) / LINE_BYTES;
    return n > 1 ? (lines + n - 1) / n * LINE_BYTES : size_bytes;
}

template <typename Fn> void each_chunk(const span &s, Fn fn)
{
    const size_t chunk = chunk_of(s.size_bytes);
    for (size_t at = 0; at < s.size_bytes; at += chunk)
        fn(s.begin + at, std::min(chunk, s.size_bytes - at));
}

// The inputs of all other ranks to this rank's part, chunk by chunk in rows of scratch memory.
class arriving_inputs
{
  public:
    arriving_inputs(const task &t, const span &mine)
        : t_(t), mine_(mine), chunk_(chunk_of(mine.size_bytes)),
          row_bytes_(size_t(t.p.world_size - 1) * chunk_), ins_(size_t(t.p.world_size))
    {
        const size_t rows = chunk_ < mine.size_bytes ? ROWS : 1;
        memory_ = t.scratch(rows * row_bytes_);
        for (size_t i = 0; i < rows; i++)
            rows_.push_back(t.memory(memory_ + i * row_bytes_, row_bytes_));
        for (size_t i = 0; i < rows; i++)
            receive(i * chunk_);
    }

    // Until all ranks' inputs to the chunk `at` bytes from the part's begin are here.
    void wait(size_t at)
    {
        rows_[at / chunk_ % ROWS].finish(t_.deadline_ns);
    }

    // Adds that chunk up in rank order.
    void add_up(size_t at, size_t size_bytes, void *sum)
    {
        const collective &c = t_.c;
        const size_t row = at / chunk_ % ROWS;
        t_.each_peer(
            [&](int peer) { ins_[size_t(peer)] = memory_ + row * row_bytes_ + place_of(peer); });
        ins_[size_t(t_.p.rank)] = offset(c.in, mine_.begin + at);
        reduce_parts parts = {ins_.data(), t_.p.world_size, &sum, 1};
        reduce_into(c.type, c.op, c.prescale, &parts, size_bytes / dtype_size(c.type));
        receive(at + ROWS * chunk_);
    }

  private:
    // In a row, which has no place for this rank.
    size_t place_of(int peer) const
    {
        return size_t(peer < t_.p.rank ? peer : peer - 1) * chunk_;
    }

    void receive(size_t at)
    {
        if (at < mine_.size_bytes)
            t_.each_peer([&](int peer) {
                rows_[at / chunk_ % ROWS].recv(peer, MESSAGE_INPUT, place_of(peer),
                                               std::min(chunk_, mine_.size_bytes - at));
            });
    }

    const task &t_;
    const span mine_;
    const size_t chunk_, row_bytes_;
    char *memory_;
    std::vector<const void *> ins_;
    std::vector<messages> rows_;
};

// Every rank sends each part to the rank that adds it up, and gets the sums that it needs. A sum
// arrives after that part of this rank's input has left, so it may take its place. If every rank
// adds up everything, only this rank's sends say that its input has left.
void reduce(const task &t)
{
    const reduction_plan plan = plan_of(t.c, t.p.world_size);
    const bool whole = is_whole(t.c, t.p.world_size);
    const span &mine = plan.parts[size_t(t.p.rank)];
    messages in = t.memory(t.c.in, collective_in_bytes(&t.c, t.p.rank, t.p.world_size));
    messages out = t.memory(t.c.out, plan.to_all ? t.row_bytes : 0);
    arriving_inputs inputs(t, mine);
    t.each_peer([&](int peer) {
        each_chunk(plan.parts[size_t(peer)], [&](size_t at, size_t size_bytes) {
            in.send(peer, MESSAGE_INPUT, at, size_bytes);
        });
    });
    if (plan.to_all)
        t.each_peer([&](int peer) {
            each_chunk(plan.parts[size_t(peer)], [&](size_t at, size_t size_bytes) {
                out.recv(peer, MESSAGE_RESULT, at, size_bytes);
            });
        });
    each_chunk({0, mine.size_bytes}, [&](size_t at, size_t size_bytes) {
        const size_t to = plan.to_all ? mine.begin + at : at;
        inputs.wait(at);
        if (whole && t.c.in == t.c.out) // there is one chunk
            in.wait_sends(t.p.world_size - 1, t.deadline_ns);
        inputs.add_up(at, size_bytes, offset(t.c.out, to));
        if (plan.to_all)
            t.each_peer([&](int peer) { out.send(peer, MESSAGE_RESULT, to, size_bytes); });
    });
    out.finish(t.deadline_ns); // first: no sum comes from a peer that is gone
    in.finish(t.deadline_ns);
}

// The ranks stand in a binomial tree, counted from the root: in round i those below 2^i have the
// data and pass it on to those 2^i further on. They pass on each chunk as it arrives.
void broadcast(const task &t)
{
    const int n = t.p.world_size, from_root = (t.p.rank - t.c.root + n) % n;
    int ahead = 1;
    messages data = t.memory(t.c.out, t.row_bytes);
    while (ahead <= from_root)
        ahead *= 2; // a rank has the data after the round in which `ahead` passes it
    const int parent = (t.p.rank - ahead / 2 + n) % n;
    if (from_root > 0)
        each_chunk({0, t.row_bytes}, [&](size_t at, size_t size_bytes) {
            data.recv(parent, MESSAGE_INPUT, at, size_bytes);
        });
    each_chunk({0, t.row_bytes}, [&](size_t at, size_t size_bytes) {
        if (from_root > 0)
            data.wait_receives(1, t.deadline_ns);
        for (int i = ahead; from_root + i < n; i *= 2)
            data.send((t.p.rank + i) % n, MESSAGE_INPUT, at, size_bytes);
    });
    data.finish(t.deadline_ns);
}

// In round i, every rank tells the one 2^i after it, and hears from the one 2^i before it.
void barrier(const task &t)
{
    const int n = t.p.world_size;
    messages nothing = t.memory(nullptr, 0);
    for (int ahead = 1; ahead < n; ahead *= 2) {
        nothing.recv((t.p.rank + n - ahead) % n, MESSAGE_INPUT, 0, 0);
        nothing.send((t.p.rank + ahead) % n, MESSAGE_INPUT, 0, 0);
        nothing.finish(t.deadline_ns);
    }
}

// Every rank's row goes to those that need it.
void gather(const task &t)
{
    const bool all = t.c.kind == COLLECTIVE_ALL_GATHER, is_root = t.c.root == t.p.rank;
    const bool gets = all || is_root;
    messages in = t.memory(t.c.in, t.row_bytes);
    messages out = t.memory(t.c.out, gets ? t.row(t.p.world_size) : 0);
    t.each_peer([&](int peer) {
        if (gets)
            out.recv(peer, MESSAGE_INPUT, t.row(peer), t.row_bytes);
    });
    t.each_peer([&](int peer) {
        if (all || peer == t.c.root)
            in.send(peer, MESSAGE_INPUT, 0, t.row_bytes);
    });
    if (gets)
        copy(offset(t.c.out, t.row(t.p.rank)), t.c.in, t.row_bytes);
    out.finish(t.deadline_ns);
    in.finish(t.deadline_ns);
}

void scatter(const task &t)
{
    const bool is_root = t.c.root == t.p.rank;
    messages in = t.memory(t.c.in, is_root ? t.row(t.p.world_size) : 0);
    messages out = t.memory(t.c.out, t.row_bytes);
    if (is_root) {
        t.each_peer([&](int peer) { in.send(peer, MESSAGE_INPUT, t.row(peer), t.row_bytes); });
        copy(t.c.out, offset(t.c.in, t.row(t.p.rank)), t.row_bytes);
    } else {
        out.recv(t.c.root, MESSAGE_INPUT, 0, t.row_bytes);
    }
    out.finish(t.deadline_ns);
    in.finish(t.deadline_ns);
}

void all_to_all(const task &t)
{
    messages in = t.memory(t.c.in, t.row(t.p.world_size));
    messages out = t.memory(t.c.out, t.row(t.p.world_size));
    t.each_peer([&](int peer) { out.recv(peer, MESSAGE_INPUT, t.row(peer), t.row_bytes); });
    t.each_peer([&](int peer) { in.send(peer, MESSAGE_INPUT, t.row(peer), t.row_bytes); });
    copy(offset(t.c.out, t.row(t.p.rank)), offset(t.c.in, t.row(t.p.rank)), t.row_bytes);
    out.finish(t.deadline_ns);
    in.finish(t.deadline_ns);
}

// What arrives would overwrite what is still to be sent, so it waits in scratch memory.
void all_to_all_in_place(const task &t)
{
    const size_t n = size_t(t.p.world_size), chunk = chunk_of(t.row_bytes);
    char *memory = t.scratch(n * chunk);
    messages in = t.memory(t.c.in, n * t.row_bytes), arriving = t.memory(memory, n * chunk);
    each_chunk({0, t.row_bytes}, [&](size_t at, size_t size_bytes) {
        t.each_peer([&](int peer) {
            arriving.recv(peer, MESSAGE_INPUT, size_t(peer) * chunk, size_bytes);
        });
        t.each_peer([&](int peer) { in.send(peer, MESSAGE_INPUT, t.row(peer) + at, size_bytes); });
        arriving.finish(t.deadline_ns);
        in.finish(t.deadline_ns);
        t.each_peer([&](int peer) {
            copy(offset(t.c.out, t.row(peer) + at), memory + size_t(peer) * chunk, size_bytes);
        });
    });
}

} // namespace

rank_traffic perform_traffic(const collective &c, int rank, int world_size)
{
    const uint64_t size_bytes = c.count * dtype_size(c.type), others = uint64_t(world_size) - 1;
    if (is_whole(c, world_size))
        return {others * size_bytes, others * size_bytes};
    if (c.kind == COLLECTIVE_ALL_REDUCE) {
        const uint64_t mine = part_of(c, rank, world_size).size_bytes;
        return {size_bytes - mine + others * mine, size_bytes - mine + others * mine};
    }
    if (c.kind != COLLECTIVE_BROADCAST)
        return collective_star_traffic(&c, rank, world_size);
    const int from_root = (rank - c.root + world_size) % world_size;
    rank_traffic moves = {0, from_root > 0 ? size_bytes : 0};
    for (int ahead = 1; ahead < world_size; ahead *= 2)
        if (from_root < ahead && from_root + ahead < world_size)
            moves.sent += size_bytes;
    return moves;
}

void perform(const place &p, const collective &c, int64_t deadline_ns)
{
    const task t(p, c, deadline_ns);
    switch (c.kind) {
    case COLLECTIVE_ALL_REDUCE:
    case COLLECTIVE_REDUCE:
    case COLLECTIVE_REDUCE_SCATTER:
        return reduce(t);
    case COLLECTIVE_BROADCAST:
        return broadcast(t);
    case COLLECTIVE_BARRIER:
        return barrier(t);
    case COLLECTIVE_ALL_GATHER:
    case COLLECTIVE_GATHER:
        return gather(t);
    case COLLECTIVE_SCATTER:
        return scatter(t);
    case COLLECTIVE_ALL_TO_ALL:
        return c.in == c.out ? all_to_all_in_place(t) : all_to_all(t);
    case COLLECTIVE_SEND:
    case COLLECTIVE_RECV:
    case COLLECTIVE_KIND_COUNT:
        break;
    }
}

} // namespace mnist_ddp
