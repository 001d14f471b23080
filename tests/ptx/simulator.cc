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
#include <memory>
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
constexpr unsigned MOST_THREADS = 1024, MOST_BLOCKS = 1u << 21, BLOCKS_AT_ONCE = 2;
constexpr unsigned CACHED_PAGES = 1024;

/* Who did something to memory, and when; `time` 0: nobody. */
struct use {
    uint32_t block : 21, thread : 10, is_atomic : 1, time;
};

struct cell {
    use written, read[2];
};

struct page {
    uint64_t low = 0, high = 0;                   /* addresses of the allocation, on this page */
    int device = -1;                              /* whose memory it is; -1: all may use it */
    bool is_pinned = false;                       /* the host may write it at any time */
    std::array<uint64_t, PAGE / 64> written = {}; /* a bit per byte */
    uint32_t launch = 0;                          /* that `cells` are of */
    unsigned unit = 0;                            /* bytes of a cell */
    std::vector<cell> cells;
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
    bool active = false;
    unsigned index = 0, ended = 0, arrived = 0;
    uint32_t barrier = 0; /* when all were at the last one */
    struct fence_record {
        uint32_t time, barrier; /* the block's last barrier then */
    } fences[MOST_THREADS];
    std::vector<acquire> acquires;
    std::vector<page> pages; /* of shared memory */
    std::vector<char> shared;
};

struct module_record {
    const kernel *kernels;
    size_t kernel_count;
    uint32_t *launches; /* of each */
};

struct known_pages {
    std::mutex lock;
    std::unordered_map<uint64_t, std::unique_ptr<page>> by_number;
};

/* Never destroyed: the device thread may still run while the process ends. */
known_pages &all_pages()
{
    static auto *all = new known_pages;
    return *all;
}

std::vector<module_record> &modules()
{
    static auto *all = new std::vector<module_record>;
    return *all;
}

/* The launch that runs. All of it is the device thread's alone. */
uint32_t launch = 0, now = 0;
unsigned long long threads_left = 0;
block_state blocks[BLOCKS_AT_ONCE];
std::map<uint64_t, std::vector<release>> releases; /* by location */
std::vector<page *> used_pages;
std::vector<std::vector<cell>> spare_cells;
struct {
    uint64_t number;
    page *at;
} cache[CACHED_PAGES];

[[noreturn]] void report(const site &from, const std::string &what)
{
    fatal("%s, at %s:%d: %s", what.c_str(), from.file, from.line, from.text);
}

block_state &this_block()
{
    return blocks[blocks[0].active && blocks[0].index == blockIdx.x ? 0 : 1];
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
    if (earlier.block == mine.index)
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
    bool updates = what == UPDATE;
    const char *does = what == READ ? "reads" : "overwrites";
    if (c.written.time != 0 && !(updates && c.written.is_atomic) && !is_ordered(mine, c.written))
        report(from, std::string("race: ") + does + " what " + name_of(c.written) + " wrote");
    for (const use &r : c.read)
        if (what != READ && r.time != 0 && !is_ordered(mine, r))
            report(from, std::string("race: ") + does + " what " + name_of(r) + " read");
}

/* Of readers that nothing orders two are kept, of two blocks if there are: whoever writes without
 * an order then is another than one of them. */
void note_use(const block_state &mine, cell &c, action what)
{
    use me = {mine.index % MOST_BLOCKS, threadIdx.x % MOST_THREADS, what == UPDATE, now};
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

/* Cells of this launch, no larger than the access. */
void prepare_cells(page &p, access how)
{
    if (p.launch != launch) {
        p.launch = launch;
        p.unit = std::min(how.size_bytes, 4u);
        if (p.cells.empty() && !spare_cells.empty()) {
            p.cells.swap(spare_cells.back());
            spare_cells.pop_back();
        }
        p.cells.assign(PAGE / p.unit, cell());
        if (how.where == GLOBAL)
            used_pages.push_back(&p);
    }
    while (p.unit > how.size_bytes) {
        std::vector<cell> halves;
        for (const cell &c : p.cells)
            halves.insert(halves.end(), 2, c);
        p.cells.swap(halves);
        p.unit /= 2;
    }
}

/* The access lies within the page's allocation, and is aligned. */
void check_use(const site &from, access how, page &p, uint64_t address)
{
    uint64_t at = address % PAGE, bits = ((1ull << how.size_bytes) - 1) << at % 64;
    uint64_t &written = p.written[at / 64];
    if (how.what != WRITE && (written & bits) != bits && !p.is_pinned)
        report(from, "reads memory that nobody wrote");
    if (how.what == WRITE)
        written |= bits;
    const block_state &mine = this_block();
    prepare_cells(p, how);
    for (uint64_t i = at / p.unit; i < (at + how.size_bytes) / p.unit; i++) {
        check_race(from, mine, p.cells[i], how.what);
        note_use(mine, p.cells[i], how.what);
    }
}

/* The page of device memory, or of pinned memory for as long as the launch runs; NULL if it is
 * neither. */
page *look_up(uint64_t address)
{
    uint64_t number = address / PAGE;
    auto &cached = cache[number % CACHED_PAGES];
    if (cached.number == number && cached.at != nullptr)
        return cached.at;
    known_pages &all = all_pages();
    std::lock_guard<std::mutex> hold(all.lock);
    auto found = all.by_number.find(number);
    if (found == all.by_number.end()) {
        if (!emulated::is_pinned_memory(reinterpret_cast<const void *>(address), 1)) // NOLINT
            return nullptr;
        found = all.by_number.emplace(number, std::make_unique<page>()).first;
        found->second->is_pinned = true;
    }
    cached = {number, found->second.get()};
    return cached.at;
}

void check_bounds(const site &from, access how, const page *p, uint64_t address)
{
    if (address % how.size_bytes != 0)
        report(from, "misaligned: address " + std::to_string(address) + " for " +
                         std::to_string(how.size_bytes) + " bytes");
    bool inside = p != nullptr && address >= p->low && address + how.size_bytes <= p->high;
    if (p != nullptr && p->is_pinned)
        inside = emulated::is_pinned_memory(reinterpret_cast<const void *>(address), // NOLINT
                                            how.size_bytes);
    if (inside && p->device >= 0 && p->device != emulated::working_device())
        report(from, "memory of device " + std::to_string(p->device));
    if (!inside)
        report(from, std::string("out of bounds: ") + (how.what == READ ? "reads " : "writes ") +
                         std::to_string(how.size_bytes) + " bytes");
}

/* In the page's place: [low, high) is what an allocation has of it. */
void set_pages(uint64_t start, size_t size_bytes, int device, bool is_written)
{
    known_pages &all = all_pages();
    std::lock_guard<std::mutex> hold(all.lock);
    for (uint64_t at = start / PAGE * PAGE; at < start + size_bytes; at += PAGE) {
        auto made = std::make_unique<page>();
        made->low = std::max(at, start);
        made->high = std::min(at + PAGE, start + size_bytes);
        made->device = device;
        if (is_written)
            made->written.fill(~0ull);
        all.by_number[at / PAGE] = std::move(made);
    }
}

void end_launch()
{
    known_pages &all = all_pages();
    std::lock_guard<std::mutex> hold(all.lock);
    for (page *p : used_pages) {
        spare_cells.emplace_back();
        spare_cells.back().swap(p->cells);
    }
    used_pages.clear();
    for (auto &c : cache)
        if (c.at != nullptr && c.at->is_pinned)
            all.by_number.erase(c.number);
    std::fill(std::begin(cache), std::end(cache), std::decay_t<decltype(cache[0])>());
    releases.clear();
}

void begin_launch(const kernel &k)
{
    launch++;
    now = 1;
    threads_left = static_cast<unsigned long long>(gridDim.x) * blockDim.x;
    if (blockDim.x > k.most_threads || gridDim.x > MOST_BLOCKS)
        fatal("%u blocks of %u threads, of %u at most", gridDim.x, blockDim.x, k.most_threads);
    for (module_record &m : modules())
        if (&k >= m.kernels && &k < m.kernels + m.kernel_count)
            __atomic_fetch_add(&m.launches[&k - m.kernels], 1, __ATOMIC_RELAXED);
}

void begin_block(const kernel &k)
{
    block_state &b = blocks[blocks[0].active ? 1 : 0];
    b.active = true;
    b.index = blockIdx.x;
    b.ended = b.arrived = 0;
    b.barrier = now;
    std::fill(std::begin(b.fences), std::end(b.fences), block_state::fence_record());
    b.acquires.clear();
    uint64_t end = 0;
    for (const range &r : k.shared)
        end = std::max<uint64_t>(end, r.at + r.size_bytes);
    b.pages.assign((end + PAGE - 1) / PAGE, page());
    b.shared.assign(b.pages.size() * PAGE, '\xFF');
    for (const range &r : k.shared)
        for (uint64_t at = r.at / PAGE * PAGE; at < r.at + r.size_bytes; at += PAGE) {
            b.pages[at / PAGE].low = std::max<uint64_t>(at, r.at);
            b.pages[at / PAGE].high = std::min<uint64_t>(at + PAGE, r.at + r.size_bytes);
        }
}

/* Of a file in $PTX_COVERAGE, which all processes of a test share; without it, memory. */
void *map_coverage(const char *name, size_t size_bytes)
{
    const char *folder = std::getenv("PTX_COVERAGE");
    int file = -1, how = MAP_PRIVATE | MAP_ANONYMOUS;
    if (folder != nullptr) {
        std::string path = std::string(folder) + "/" + name;
        file = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
        how = MAP_SHARED;
        if (file < 0 || ftruncate(file, static_cast<off_t>(size_bytes)) != 0)
            fatal("%s: cannot be made", path.c_str());
    }
    void *memory = mmap(nullptr, size_bytes, PROT_READ | PROT_WRITE, how, file, 0);
    if (memory == MAP_FAILED)
        fatal("no memory for what %s covers", name);
    return memory;
}

} // namespace

module::module(const char *name, const kernel *kernels, size_t kernel_count, size_t block_count,
               unsigned char **covered)
{
    size_t head = kernel_count * sizeof(uint32_t);
    auto *launches = static_cast<uint32_t *>(map_coverage(name, head + block_count));
    *covered = reinterpret_cast<unsigned char *>(launches + kernel_count);
    modules().push_back({kernels, kernel_count, launches});
}

constant_memory::constant_memory(const void *memory, size_t size_bytes)
{
    set_pages(reinterpret_cast<uintptr_t>(memory), size_bytes, -1, true);
}

const kernel &find_kernel(const char *symbol)
{
    const kernel *found = nullptr;
    for (const module_record &m : modules())
        for (size_t i = 0; i < m.kernel_count; i++)
            if (std::strcmp(m.kernels[i].symbol, symbol) == 0) {
                if (found != nullptr)
                    fatal("two kernels are called %s", symbol);
                found = &m.kernels[i];
            }
    if (found == nullptr)
        fatal("there is no PTX of %s", symbol);
    return *found;
}

void run_thread(const kernel &k, const char *parameters)
{
    if (threads_left == 0)
        begin_launch(k);
    block_state *mine = &this_block();
    if (!mine->active || mine->index != blockIdx.x)
        begin_block(k);
    k.run(parameters);
    mine = &this_block();
    if (++mine->ended == blockDim.x)
        mine->active = false;
    if (--threads_left == 0)
        end_launch();
}

char *reach(const site &from, access how, uint64_t address)
{
    if (how.where == GLOBAL) {
        page *p = look_up(address);
        check_bounds(from, how, p, address);
        check_use(from, how, *p, address);
        return reinterpret_cast<char *>(address); // NOLINT
    }
    block_state &mine = this_block();
    page *p = address / PAGE < mine.pages.size() ? &mine.pages[address / PAGE] : nullptr;
    check_bounds(from, how, p, address);
    check_use(from, how, *p, address);
    return &mine.shared[address];
}

char *reach_local(const site &from, unsigned size_bytes, uint64_t address, local_memory memory)
{
    auto start = reinterpret_cast<uintptr_t>(memory.start);
    if (address % size_bytes != 0 || address < start ||
        address + size_bytes > start + memory.size_bytes)
        report(from, "out of bounds of its local memory, or misaligned");
    return memory.start + (address - start);
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
    release r = {mine.index, std::vector<uint32_t>(blockDim.x)};
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

void memory_taken(const void *memory, size_t size_bytes, int device)
{
    ptx::set_pages(reinterpret_cast<uintptr_t>(memory), size_bytes, device, false);
}

void memory_freed(const void *memory, size_t size_bytes)
{
    ptx::known_pages &all = ptx::all_pages();
    std::lock_guard<std::mutex> hold(all.lock);
    auto start = reinterpret_cast<uintptr_t>(memory);
    for (uint64_t at = start / ptx::PAGE; at * ptx::PAGE < start + size_bytes; at++)
        all.by_number.erase(at);
}

void memory_written(const void *memory, size_t size_bytes)
{
    ptx::known_pages &all = ptx::all_pages();
    std::lock_guard<std::mutex> hold(all.lock);
    uint64_t at = reinterpret_cast<uintptr_t>(memory), end = at + size_bytes;
    while (at < end) {
        ptx::page &p = *all.by_number.at(at / ptx::PAGE);
        for (uint64_t next = std::min(end, (at / ptx::PAGE + 1) * ptx::PAGE); at < next;)
            if (at % 64 == 0 && next - at >= 64) {
                p.written[at % ptx::PAGE / 64] = ~0ull;
                at += 64;
            } else {
                p.written[at % ptx::PAGE / 64] |= 1ull << at % 64;
                at++;
            }
    }
}

} // namespace emulated
