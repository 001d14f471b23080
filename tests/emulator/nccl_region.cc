#include "nccl_region.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fcntl.h>
#include <mutex>
#include <random>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <vector>

namespace emulated
{

namespace
{

/* What a unique id holds. */
struct ticket {
    char magic[16];
    int32_t pid, file;
    uint64_t cookie[2];
};

const char MAGIC[16] = "emulated nccl";

static_assert(sizeof(ticket) <= sizeof(ncclUniqueId), "must fit");
static_assert(std::atomic<uint64_t>::is_always_lock_free, "is shared between processes");

ticket ticket_of(const ncclUniqueId &id)
{
    ticket t;
    std::memcpy(&t, id.internal, sizeof t);
    return t;
}

/* Files of this process that others may still have to open. */
struct doors {
    std::mutex lock;
    std::vector<ticket> open;
};

doors &the_doors()
{
    static auto *all = new doors;
    return *all;
}

size_t round_up(size_t size_bytes)
{
    return (size_bytes + 4095) / 4096 * 4096;
}

} // namespace

struct nccl_region::header {
    uint64_t cookie[2];
    std::atomic<int32_t> ranks, joined;
};

ncclResult_t nccl_region::create(ncclUniqueId *id)
{
    std::random_device random;
    ticket t = {};
    std::memcpy(t.magic, MAGIC, sizeof t.magic);
    t.pid = getpid();
    for (uint64_t &half : t.cookie)
        half = static_cast<uint64_t>(random()) << 32 | random();
    t.file = memfd_create("emulated nccl", MFD_CLOEXEC);
    ssize_t wanted = sizeof t.cookie;
    if (t.file < 0 || write(t.file, t.cookie, sizeof t.cookie) != wanted ||
        ftruncate(t.file, 4096) != 0) {
        int error = errno;
        if (t.file >= 0)
            close(t.file);
        return nccl_failure(ncclSystemError, "shared memory: %s", std::strerror(error));
    }
    doors &all = the_doors();
    std::lock_guard<std::mutex> hold(all.lock);
    all.open.push_back(t);
    *id = {};
    std::memcpy(id->internal, &t, sizeof t);
    return ncclSuccess;
}

nccl_region::~nccl_region()
{
    if (memory == nullptr)
        return;
    close_door();
    munmap(memory, size_bytes);
}

void nccl_region::close_door()
{
    ticket mine = ticket_of(opened_by);
    doors &all = the_doors();
    std::lock_guard<std::mutex> hold(all.lock);
    auto found = std::find_if(all.open.begin(), all.open.end(), [&](const ticket &t) {
        return t.pid == getpid() && std::memcmp(t.cookie, mine.cookie, sizeof t.cookie) == 0;
    });
    if (found == all.open.end())
        return;
    close(found->file);
    all.open.erase(found);
}

ncclResult_t nccl_region::join(const ncclUniqueId &id, int ranks, int rank, int device)
{
    ticket t = ticket_of(id);
    if (std::memcmp(t.magic, MAGIC, sizeof t.magic) != 0)
        return nccl_failure(ncclInvalidArgument, "not a unique id of the emulated NCCL");
    char path[64];
    std::snprintf(path, sizeof path, "/proc/%d/fd/%d", t.pid, t.file);
    auto side = static_cast<size_t>(ranks);
    size_bytes = round_up(sizeof(header)) + round_up(side * sizeof(nccl_rank)) +
                 side * 2 * NCCL_PIECE_BYTES + side * side * sizeof(nccl_channel);
    int file = open(path, O_RDWR | O_CLOEXEC);
    struct stat about;
    void *mapped = MAP_FAILED;
    if (file >= 0 && fstat(file, &about) == 0 &&
        (static_cast<size_t>(about.st_size) >= size_bytes ||
         ftruncate(file, static_cast<off_t>(size_bytes)) == 0))
        mapped = mmap(nullptr, size_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    int error = errno;
    if (file >= 0)
        close(file);
    if (mapped == MAP_FAILED)
        return nccl_failure(ncclSystemError, "bootstrap: process %d that made the unique id: %s",
                            t.pid, std::strerror(error));
    memory = static_cast<char *>(mapped);
    count = ranks;
    opened_by = id;
    if (std::memcmp(reinterpret_cast<header *>(memory)->cookie, t.cookie, sizeof t.cookie) != 0)
        return nccl_failure(ncclSystemError, "bootstrap: the unique id is of the past");
    return enter(ranks, rank, device);
}

ncclResult_t nccl_region::enter(int ranks, int rank, int device)
{
    auto *head = reinterpret_cast<header *>(memory);
    int32_t before = 0;
    if (!head->ranks.compare_exchange_strong(before, ranks) && before != ranks)
        return nccl_failure(ncclInvalidUsage, "rank %d was told of %d ranks, others of %d", rank,
                            ranks, before);
    nccl_rank &me = of(rank);
    auto absent = nccl_presence::absent;
    if (!me.presence.compare_exchange_strong(absent, nccl_presence::joining))
        return nccl_failure(ncclInvalidUsage, "rank %d of %d has already checked in", rank, ranks);
    me.pid = getpid();
    me.device = device;
    me.presence = nccl_presence::joined;
    head->joined++;
    return ncclSuccess;
}

void nccl_region::leave(int rank, nccl_presence how)
{
    auto joined = nccl_presence::joined;
    if (memory != nullptr)
        of(rank).presence.compare_exchange_strong(joined, how);
}

bool nccl_region::all_have_joined() const
{
    return reinterpret_cast<const header *>(memory)->joined == count;
}

uint64_t nccl_region::cookie() const
{
    return reinterpret_cast<const header *>(memory)->cookie[0];
}

nccl_rank &nccl_region::of(int rank) const
{
    char *first = memory + round_up(sizeof(header));
    return reinterpret_cast<nccl_rank *>(first)[rank];
}

char *nccl_region::piece(int rank, uint64_t round) const
{
    char *first = memory + round_up(sizeof(header)) +
                  round_up(static_cast<size_t>(count) * sizeof(nccl_rank));
    return first + (static_cast<size_t>(rank) * 2 + round % 2) * NCCL_PIECE_BYTES;
}

nccl_channel &nccl_region::channel(int from, int to) const
{
    char *first = piece(count, 0);
    return reinterpret_cast<nccl_channel *>(first)[from * count + to];
}

} // namespace emulated
