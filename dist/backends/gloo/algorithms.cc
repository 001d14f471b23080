// Ranks exchange directly, without a ring. A part of a sum takes two steps, whatever the world
// size: one rank gets it from all, adds it up in rank order, and sends the sum to all.
#include "dist/backends/gloo/algorithms.h"

#include "dist/backends/gloo/messages.h"

extern "C" {
#include "dist/collective/reduce.h"
}

#include <algorithm>
#include <cstring>

namespace mnist_ddp
{
namespace
{

const size_t CHUNK_BYTES = 256 << 10; // summed or passed on at once, while the next one arrives
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
    message_slots slots;
    size_t row_bytes; // of c.count elements

    task(const place &p_, const collective &c_, int64_t deadline_ns_)
        : p(p_), c(c_), deadline_ns(deadline_ns_), slots(c_),
          row_bytes(c_.count * dtype_size(c_.type))
    {
    }

    messages memory(const void *at, size_t size_bytes) const
    {
        return messages(p.context, slots, at, size_bytes);
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

// Which part of the input each rank adds up, and whether all get the sums.
struct reduction_plan {
    std::vector<span> parts; // (world_size)
    bool to_all;
};

// An equal part for each rank, cut at whole cache lines.
std::vector<span> cut(size_t size_bytes, int n)
{
    std::vector<span> parts(static_cast<size_t>(n));
    const size_t lines = (size_bytes + LINE_BYTES - 1) / LINE_BYTES, k = parts.size();
    for (size_t i = 0; i < k; i++) {
        const size_t begin = std::min(lines * i / k * LINE_BYTES, size_bytes);
        parts[i] = {begin, std::min(lines * (i + 1) / k * LINE_BYTES, size_bytes) - begin};
    }
    return parts;
}

reduction_plan plan_of(const collective &c, int world_size)
{
    const size_t size_bytes = c.count * dtype_size(c.type);
    if (c.kind == COLLECTIVE_ALL_REDUCE)
        return {cut(size_bytes, world_size), true};
    reduction_plan plan = {{}, false};
    for (int i = 0; i < world_size; i++)
        if (c.kind == COLLECTIVE_REDUCE_SCATTER)
            plan.parts.push_back({size_t(i) * size_bytes, size_bytes});
        else
            plan.parts.push_back({0, i == c.root ? size_bytes : 0});
    return plan;
}

template <typename Fn> void each_chunk(const span &s, Fn fn)
{
    for (size_t at = 0; at < s.size_bytes; at += CHUNK_BYTES)
        fn(s.begin + at, std::min(CHUNK_BYTES, s.size_bytes - at));
}

// Adds up this rank's part, chunk by chunk, in rank order; `ready` hears of each sum.
template <typename Fn> void add_up(const task &t, const span &mine, char *out, Fn ready)
{
    const collective &c = t.c;
    const size_t n = size_t(t.p.world_size), chunk = std::min(CHUNK_BYTES, mine.size_bytes);
    char *memory = t.scratch(ROWS * n * chunk);
    std::vector<messages> rows;
    for (size_t i = 0; i < ROWS; i++)
        rows.push_back(t.memory(memory + i * n * chunk, n * chunk));
    auto receive = [&](size_t at) {
        if (at < mine.size_bytes)
            t.each_peer([&](int peer) {
                rows[at / chunk % ROWS].recv(peer, MESSAGE_INPUT, size_t(peer) * chunk,
                                             std::min(chunk, mine.size_bytes - at));
            });
    };
    for (size_t i = 0; i < ROWS; i++)
        receive(i * chunk);
    std::vector<const void *> ins(n);
    for (size_t at = 0; at < mine.size_bytes; at += chunk) {
        const size_t row = at / chunk % ROWS, some = std::min(chunk, mine.size_bytes - at);
        rows[row].finish(t.deadline_ns);
        for (size_t peer = 0; peer < n; peer++)
            ins[peer] = memory + (row * n + peer) * chunk;
        ins[size_t(t.p.rank)] = offset(c.in, mine.begin + at);
        void *sum = out + at;
        reduce_parts parts = {ins.data(), t.p.world_size, &sum, 1};
        reduce_into(c.type, c.op, c.prescale, &parts, some / dtype_size(c.type));
        receive(at + ROWS * chunk);
        ready(at, some);
    }
}

// Every rank sends each part to the rank that adds it up, and gets the sums that it needs. A sum
// arrives after that part of this rank's input has left, so it may take its place.
void reduce(const task &t)
{
    const reduction_plan plan = plan_of(t.c, t.p.world_size);
    const span &mine = plan.parts[size_t(t.p.rank)];
    const bool to_all = plan.to_all;
    messages in = t.memory(t.c.in, collective_in_bytes(&t.c, t.p.rank, t.p.world_size));
    messages out = t.memory(t.c.out, to_all ? t.row_bytes : 0);
    if (to_all)
        t.each_peer([&](int peer) {
            each_chunk(plan.parts[size_t(peer)], [&](size_t at, size_t size_bytes) {
                out.recv(peer, MESSAGE_RESULT, at, size_bytes);
            });
        });
    t.each_peer([&](int peer) {
        each_chunk(plan.parts[size_t(peer)], [&](size_t at, size_t size_bytes) {
            in.send(peer, MESSAGE_INPUT, at, size_bytes);
        });
    });
    add_up(t, mine, offset(t.c.out, to_all ? mine.begin : 0), [&](size_t at, size_t size_bytes) {
        if (to_all)
            t.each_peer(
                [&](int peer) { out.send(peer, MESSAGE_RESULT, mine.begin + at, size_bytes); });
    });
    in.finish(t.deadline_ns);
    out.finish(t.deadline_ns);
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
    const size_t n = size_t(t.p.world_size), chunk = std::min(CHUNK_BYTES, t.row_bytes);
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
    if (c.kind == COLLECTIVE_ALL_REDUCE) {
        const uint64_t mine = cut(size_bytes, world_size)[size_t(rank)].size_bytes;
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
