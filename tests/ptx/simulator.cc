/* The memory of kernels, and who used it.
 *
 * A page of device memory is known from cudaMalloc on: where its allocation lies on it, and which
 * of its bytes have been written. During a launch each of its bytes has a record of who wrote it
 * last and of two who read it since. Time is counted in barriers, fences and atomics.
 *
 * An access is ordered after an earlier one of the same block if the same thread did both, or if
 * the block has met at a barrier since. It is ordered after one of another block if that was
 * published before an atomic on a location, and this thread sees an atomic on the same location
 * that came later. A thread publishes with its fence what itself did until then, and what its block
 * did before the last barrier; and what another thread of the block fenced itself counts for this
 * one's atomic after a barrier. Who reads needs a fence after the atomic, its own or, after a
 * barrier, that of the thread which did the atomic. What does not follow from that is a race,
 * whether or not it shows in the result. */
#include "tests/ptx/simulator.h"

#include "tests/emulator/runtime.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <fcntl.h>
#include <map>
#include <mutex>
#include <string>
#include <sys/mman.h>
#include <unistd.h>
#include <unordered_map>

using emulated::fatal;

namespace ptx
{

namespace
{

constexpr uint64_t PAGE = 4096;
constexpr unsigned MOST_THREADS = 1024, MOST_BLOCKS = 1u << 21;

/* Who did something to memory, and when; `time` 0: nobody. */
struct use {
    uint32_t block : 21, thread : 10, is_atomic : 1, time;
};

struct cell {
    use written, read[2];
};

struct page {
    uint64_t low = 0, high = 0;                   /* addresses of the allocation */
    int device = -1;                              /* whose memory it is; -1: all may use it */
    bool is_pinned = false;                       /* the host may write it at any time */
    std::array<uint64_t, PAGE / 64> written = {}; /* a bit per byte */
    unsigned unit = 0;                            /* bytes of a cell */
    std::vector<cell> cells = {};                 /* of this launch; none: not used yet */
};

/* What one atomic published: of each thread of its block, until when. */
struct release {
    uint32_t block;
    std::vector<uint32_t> until;
};

/* An atomic that saw the first `count` releases of its location. */
struct acquire {
    const std::vector<release> *releases;
    size_t count;
    unsigned thread;
    uint32_t time, fenced; /* fenced: when that thread's next fence was; 0: not yet */
};

struct block_state {
    unsigned ended = 0, arrived = 0;
    uint32_t barrier = 0; /* when all were at the last one */
    struct fence_record {
        uint32_t time, barrier; /* the block's last barrier then */
    } fences[MOST_THREADS] = {};
    std::vector<acquire> acquires;
    std::vector<page> pages; /* of shared memory */
    std::vector<char> shared;
};

using page_table = std::unordered_map<uint64_t, page>; /* by address / PAGE */

struct known_pages {
    std::mutex lock;
    page_table pages;
};

/* Never destroyed: the device thread may still run while the process ends. */
known_pages &all_pages()
{
    static auto *all = new known_pages;
    return *all;
}

std::map<std::string, kernel> &kernels()
{
    static auto *all = new std::map<std::string, kernel>;
    return *all;
}

/* The launch that runs. All of it is the device thread's alone. */
uint32_t now = 0;
unsigned long long threads_left = 0;
std::map<unsigned, block_state> blocks;            /* that have begun and not ended */
std::map<uint64_t, std::vector<release>> releases; /* by location */
std::unordered_map<uint64_t, page *> used_pages;
page_table pinned_pages;

[[noreturn]] void report(const site &from, const std::string &what)
{
    fatal("%s, at %s:%d: %s", what.c_str(), from.file, from.line, from.text);
}

char *pointer(uint64_t address)
{
    return reinterpret_cast<char *>(address); // NOLINT
}

block_state &this_block()
{
    return blocks.at(blockIdx.x);
}

std::string name_of(const use &one)
{
    return "block " + std::to_string(one.block) + " thread " + std::to_string(one.thread);
}

/* Whether the running thread sees what the atomic saw. */
bool is_acquired(const block_state &mine, const acquire &a)
{
    if (a.thread == threadIdx.x)
        return a.fenced != 0;
    return (a.fenced != 0 && a.fenced < mine.barrier) || mine.fences[threadIdx.x].barrier > a.time;
}

bool is_ordered(const block_state &mine, const use &earlier)
{
    if (earlier.block == blockIdx.x)
        return earlier.thread == threadIdx.x || earlier.time < mine.barrier;
    for (const acquire &a : mine.acquires) {
        if (!is_acquired(mine, a))
            continue;
        for (size_t i = 0; i < a.count; i++) {
            const release &r = (*a.releases)[i];
            if (r.block == earlier.block && earlier.time < r.until[earlier.thread])
                return true;
        }
    }
    return false;
}

void check_race(const site &from, const block_state &mine, const cell &c, action what)
{
    const char *does = what == READ ? "race: reads what " : "race: overwrites what ";
    bool both_atomic = what == UPDATE && c.written.is_atomic;
    if (c.written.time != 0 && !both_atomic && !is_ordered(mine, c.written))
        report(from, does + name_of(c.written) + " wrote");
    for (const use &r : c.read)
        if (what != READ && r.time != 0 && !is_ordered(mine, r))
            report(from, does + name_of(r) + " read");
}

/* Of readers that nothing orders two are kept, of two blocks if there are: whoever writes without
 * an order then is another than one of them. */
void note_use(const block_state &mine, cell &c, action what)
{
    use me = {blockIdx.x % MOST_BLOCKS, threadIdx.x % MOST_THREADS, what == UPDATE, now};
    if (what != READ) {
        c = {me, {}};
        return;
    }
    for (use &r : c.read)
        if (r.time == 0 || is_ordered(mine, r)) {
            r = me;
            return;
        }
    if (c.read[0].block == c.read[1].block && c.read[0].block != me.block)
        c.read[1] = me;
}

/* Cells no larger than the access. */
void prepare_cells(page &p, unsigned size_bytes)
{
    if (p.cells.empty()) {
        p.unit = std::min(size_bytes, 4u);
        p.cells.resize(PAGE / p.unit);
    }
    if (p.unit > size_bytes) {
        std::vector<cell> parts;
        for (const cell &c : p.cells)
            parts.insert(parts.end(), p.unit / size_bytes, c);
        p.cells.swap(parts);
        p.unit = size_bytes;
    }
}

/* The bits of `size_bytes` bytes in page::written, where a word has those of 64. */
uint64_t bits_of(uint64_t address, uint64_t size_bytes)
{
    return ~0ull >> (64 - size_bytes) << address % 64;
}

/* The access lies within the page's allocation, and is aligned. */
void check_use(const site &from, access how, page &p, uint64_t address)
{
    uint64_t at = address % PAGE, bits = bits_of(at, how.size_bytes);
    uint64_t &written = p.written[at / 64];
    if (how.what != WRITE && (written & bits) != bits && !p.is_pinned)
        report(from, "reads memory that nobody wrote");
    if (how.what == WRITE)
        written |= bits;
    const block_state &mine = this_block();
    prepare_cells(p, how.size_bytes);
    for (uint64_t i = at / p.unit; i < (at + how.size_bytes) / p.unit; i++) {
        check_race(from, mine, p.cells[i], how.what);
        note_use(mine, p.cells[i], how.what);
    }
}

/* The page of device memory, or of pinned memory for as long as the launch runs; NULL if it is
 * neither. */
page *look_up(uint64_t address)
{
    page *&used = used_pages[address / PAGE];
    if (used != nullptr)
        return used;
    known_pages &all = all_pages();
    std::lock_guard<std::mutex> hold(all.lock);
    auto found = all.pages.find(address / PAGE);
    if (found != all.pages.end())
        return used = &found->second;
    if (!emulated::is_pinned_memory(pointer(address), 1))
        return nullptr;
    used = &pinned_pages[address / PAGE];
    used->is_pinned = true;
    return used;
}

void check_bounds(const site &from, access how, const page *p, uint64_t address)
{
    if (address % how.size_bytes != 0)
        report(from, "misaligned: address " + std::to_string(address) + " for " +
                         std::to_string(how.size_bytes) + " bytes");
    bool inside = p != nullptr && address >= p->low && address + how.size_bytes <= p->high;
    if (p != nullptr && p->is_pinned)
        inside = emulated::is_pinned_memory(pointer(address), how.size_bytes);
    if (inside && p->device >= 0 && p->device != emulated::working_device())
        report(from, "memory of device " + std::to_string(p->device));
    if (!inside)
        report(from, std::string("out of bounds: ") + (how.what == READ ? "reads " : "writes ") +
                         std::to_string(how.size_bytes) + " bytes");
}

void begin_launch(const kernel &k)
{
    now = 1;
    threads_left = static_cast<unsigned long long>(gridDim.x) * blockDim.x;
    if (blockDim.x > k.most_threads || gridDim.x > MOST_BLOCKS)
        fatal("%u blocks of %u threads, of %u at most", gridDim.x, blockDim.x, k.most_threads);
    __atomic_fetch_add(k.launches, 1, __ATOMIC_RELAXED);
}

void end_launch()
{
    for (auto &[number, used] : used_pages)
        used->cells = {};
    used_pages.clear();
    pinned_pages.clear();
    releases.clear();
}

void begin_block(const kernel &k, block_state &b)
{
    b.barrier = now;
    for (const range &r : k.shared) {
        uint64_t end = r.at + r.size_bytes;
        b.pages.resize((end + PAGE - 1) / PAGE, page{r.at, end});
    }
    b.shared.assign(b.pages.size() * PAGE, '\xFF');
}

/* Of a file, which all processes of a test share. */
void *map_coverage(const std::string &name, size_t size_bytes)
{
    const char *folder = std::getenv("PTX_COVERAGE");
    if (folder == nullptr)
        fatal("PTX_COVERAGE is not set: the folder for what has run");
    std::string path = folder + ("/" + name);
    int file = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    void *memory = MAP_FAILED;
    if (file >= 0 && ftruncate(file, static_cast<off_t>(size_bytes)) == 0)
        memory = mmap(nullptr, size_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (memory == MAP_FAILED)
        fatal("%s: cannot be made", path.c_str());
    return memory;
}

} // namespace

module::module(const char *name, const std::vector<kernel> &own,
               const std::vector<constant> &constants, size_t block_count, unsigned char **covered)
{
    size_t head = own.size() * sizeof(uint32_t);
    auto *launches = static_cast<uint32_t *>(map_coverage(name, head + block_count));
    *covered = reinterpret_cast<unsigned char *>(launches + own.size());
    for (const kernel &k : own) {
        auto [made, is_new] = kernels().emplace(k.symbol, k);
        if (!is_new)
            fatal("two kernels are called %s", k.symbol);
        made->second.launches = launches++;
    }
    for (const constant &c : constants) {
        emulated::memory_taken(c.memory, c.size_bytes, -1);
        emulated::memory_written(c.memory, c.size_bytes);
    }
}

const kernel &find_kernel(const char *symbol)
{
    auto found = kernels().find(symbol);
    if (found == kernels().end())
        fatal("there is no PTX of %s", symbol);
    return found->second;
}

void run_thread(const kernel &k, const char *parameters)
{
    if (threads_left == 0)
        begin_launch(k);
    auto [mine, is_new] = blocks.try_emplace(blockIdx.x);
    if (is_new)
        begin_block(k, mine->second);
    k.run(parameters);
    if (++mine->second.ended == blockDim.x)
        blocks.erase(mine);
    if (--threads_left == 0)
        end_launch();
}

char *reach(const site &from, access how, uint64_t address)
{
    block_state &mine = this_block();
    bool is_shared = how.where == SHARED, is_there = address / PAGE < mine.pages.size();
    page *p = !is_shared ? look_up(address) : is_there ? &mine.pages[address / PAGE] : nullptr;
    check_bounds(from, how, p, address);
    check_use(from, how, *p, address);
    return is_shared ? &mine.shared[address] : pointer(address);
}

char *reach_local(const site &from, unsigned size_bytes, uint64_t address, char *start,
                  size_t all_bytes)
{
    uint64_t at = address - reinterpret_cast<uintptr_t>(start);
    if (address % size_bytes != 0 || at >= all_bytes || at + size_bytes > all_bytes)
        report(from, "out of bounds of its local memory, or misaligned");
    return start + at;
}

uint32_t atomic_inc(const site &from, uint64_t address, uint32_t last)
{
    char *memory = reach(from, {GLOBAL, UPDATE, sizeof(uint32_t)}, address);
    uint32_t old = GET(uint32_t, memory);
    PUT(uint32_t, memory, old >= last ? 0 : old + 1);
    block_state &mine = this_block();
    unsigned me = threadIdx.x;
    std::vector<release> &all = releases[address];
    now++;
    mine.acquires.push_back({&all, all.size(), me, now, 0});
    release r = {blockIdx.x, std::vector<uint32_t>(blockDim.x)};
    for (unsigned t = 0; t < blockDim.x; t++) {
        uint32_t own = mine.fences[t].time;
        r.until[t] = std::max(mine.fences[me].barrier, t == me || own < mine.barrier ? own : 0);
    }
    all.push_back(std::move(r));
    return old;
}

void barrier(const site &from)
{
    block_state &mine = this_block();
    if (++mine.arrived == blockDim.x) {
        mine.arrived = 0;
        mine.barrier = ++now;
    }
    emulated::barrier({from.file, from.line});
}

void fence()
{
    block_state &mine = this_block();
    unsigned me = threadIdx.x;
    mine.fences[me] = {++now, mine.barrier};
    for (acquire &a : mine.acquires)
        if (a.thread == me && a.fenced == 0)
            a.fenced = now;
}

uint32_t shuffle(const site &from, uint32_t value, uint32_t source, uint32_t clamp, uint32_t mask,
                 bool *in_range)
{
    unsigned own = emulated::lane(), segment = clamp >> 8 & 31;
    *in_range = source <= ((own & segment) | (clamp & 31 & ~segment));
    return emulated::shuffle(mask, value, *in_range ? source : own, {from.file, from.line});
}

uint64_t divides_by_zero(const site &from)
{
    report(from, "divides by zero");
}

} // namespace ptx

namespace emulated
{

using ptx::all_pages;
using ptx::PAGE;

void memory_taken(const void *memory, size_t size_bytes, int device)
{
    ptx::known_pages &all = all_pages();
    std::lock_guard<std::mutex> hold(all.lock);
    uint64_t start = reinterpret_cast<uintptr_t>(memory), end = start + size_bytes;
    for (uint64_t number = start / PAGE; number * PAGE < end; number++)
        all.pages[number] = {start, end, device};
}

void memory_freed(const void *memory, size_t size_bytes)
{
    ptx::known_pages &all = all_pages();
    std::lock_guard<std::mutex> hold(all.lock);
    uint64_t start = reinterpret_cast<uintptr_t>(memory), end = start + size_bytes;
    for (uint64_t number = start / PAGE; number * PAGE < end; number++)
        all.pages.erase(number);
}

void memory_written(const void *memory, size_t size_bytes)
{
    ptx::known_pages &all = all_pages();
    std::lock_guard<std::mutex> hold(all.lock);
    uint64_t at = reinterpret_cast<uintptr_t>(memory), end = at + size_bytes, next;
    for (; at < end; at = next) {
        next = std::min(end, (at / 64 + 1) * 64);
        all.pages.at(at / PAGE).written[at % PAGE / 64] |= ptx::bits_of(at, next - at);
    }
}

} // namespace emulated
