/* Kernels: two of their blocks at a time, the threads of a block on fibers.
 *
 * A fiber runs one thread after the other. A thread that comes to a barrier or a shuffle is parked
 * there with its fiber; another fiber goes on with threads that have not begun, or with one that
 * may leave its barrier, drawn at random. So a kernel without barriers needs one fiber. Blocks
 * begin in a random order, threads likewise; whenever a thread is parked, the other block may go
 * on.
 */
#include "fibers.h"
#include "runtime.h"
#include "shared_memory.h"

#include <emulated_launch.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <memory>
#include <mutex>
#include <numeric>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

uint3 threadIdx, blockIdx, blockDim, gridDim;

namespace emulated
{

namespace
{

enum { MOST_THREADS = 1024 };
constexpr long long MOST_BLOCKS = 0x7FFFFFFF;

struct thread_record {
    bool ended;
    fiber *parked_on;
    place here;
    /* At an exchange. */
    unsigned mask, source;
    uint64_t given, received;
};

/* Numbers 0 .. count-1 in an order that looks random, without a table. */
class permutation
{
  public:
    void draw(uint32_t n)
    {
        count = n;
        at = random_below(n);
        do
            stride = 1 + random_below(n);
        while (std::gcd(stride, n) != 1);
    }

    uint32_t next()
    {
        uint32_t number = at;
        at += stride; /* both are below 2^31 */
        if (at >= count)
            at -= count;
        return number;
    }

  private:
    uint32_t count = 1, at = 0, stride = 1;
};

/* A block that has begun. */
struct block_record {
    bool active = false;
    unsigned index = 0;
    thread_record threads[MOST_THREADS];
    permutation thread_order;
    unsigned begun = 0, ended = 0, in_barrier = 0;
    place barrier_place;                               /* of that barrier */
    unsigned in_exchange[MOST_THREADS / WARP_THREADS]; /* of each warp, the lanes that wait */
    std::vector<unsigned> released;                    /* threads that may go on */
};

/* The other block runs next one time in N; N is drawn for each kernel: 4, 8 ... 512. If N is large,
 * a block is held up in its middle while others run. */
enum : uint32_t { MOST_CHANGES = 4, CHANGE_RATES = 8 };

block_record blocks_at_once[SHARED_MEMORIES];
block_record *now = &blocks_at_once[0]; /* the one that runs */
unsigned thread_count = 0;              /* of each block */
const std::function<void()> *kernel_thread = nullptr;

std::vector<std::unique_ptr<fiber>> fibers;
std::vector<fiber *> idle_fibers;

thread_record &self()
{
    return now->threads[threadIdx.x];
}

/* The running thread is at a barrier or an exchange; returns when it is released. */
void arrive(place here)
{
    thread_record &me = self();
    me.here = here;
    me.parked_on = fiber::running();
}

/* The loop of every fiber. */
void run_threads()
{
    fiber *own = fiber::running();
    for (;;) {
        bool parked = false;
        while (!parked && now->begun < thread_count) {
            now->begun++;
            threadIdx.x = now->thread_order.next();
            self().ended = false;
            self().parked_on = nullptr;
            (*kernel_thread)();
            parked = self().parked_on != nullptr;
            self().ended = true;
            now->ended++;
        }
        idle_fibers.push_back(own);
        fiber::suspend();
    }
}

fiber *idle_fiber()
{
    if (idle_fibers.empty()) {
        fibers.push_back(std::make_unique<fiber>(run_threads));
        idle_fibers.push_back(fibers.back().get());
    }
    fiber *one = idle_fibers.back();
    idle_fibers.pop_back();
    return one;
}

/* No thread can go on. */
[[noreturn]] void report_divergence()
{
    std::string text;
    unsigned shown = 0;
    for (unsigned t = 0; t < thread_count && shown < 2; t++) {
        const thread_record &r = now->threads[t];
        if (r.ended || (shown > 0 && text.find(std::to_string(r.here.line)) != std::string::npos))
            continue;
        text += "; thread " + std::to_string(t) + " waits at " + r.here.file + ":" +
                std::to_string(r.here.line);
        shown++;
    }
    fatal("divergence: %u of %u threads have ended, %u wait at a barrier, %u at a shuffle%s",
          now->ended, thread_count, now->in_barrier, thread_count - now->ended - now->in_barrier,
          text.c_str());
}

void resume_one()
{
    bool can_begin = now->begun < thread_count;
    if (can_begin && (now->released.empty() || random_below(2) == 0)) {
        idle_fiber()->resume();
        return;
    }
    if (now->released.empty())
        report_divergence();
    size_t drawn = random_below(static_cast<uint32_t>(now->released.size()));
    unsigned thread = now->released[drawn];
    now->released[drawn] = now->released.back();
    now->released.pop_back();
    threadIdx.x = thread;
    now->threads[thread].parked_on->resume();
}

/* From now on that one runs. */
void go_on_with(unsigned which)
{
    now = &blocks_at_once[which];
    blockIdx.x = now->index;
    use_shared_memory(which);
}

void begin_block(unsigned which, unsigned index)
{
    blocks_at_once[which].index = index;
    blocks_at_once[which].active = true;
    go_on_with(which);
    now->begun = now->ended = now->in_barrier = 0;
    now->thread_order.draw(thread_count);
    begin_shared_memory();
}

/* Some of the block's threads run; whether that was the last of them. */
bool advance_block()
{
    resume_one();
    if (now->ended < thread_count)
        return false;
    check_shared_memory();
    now->active = false;
    return true;
}

void run_kernel(unsigned blocks, unsigned block_threads, const std::function<void()> &thread)
{
    permutation block_order;
    block_order.draw(blocks);
    gridDim = {blocks, 1, 1};
    blockDim = {block_threads, 1, 1};
    thread_count = block_threads;
    kernel_thread = &thread;
    forget_shared_memory();
    unsigned started = 0, which = 0, change_rate = MOST_CHANGES << random_below(CHANGE_RATES);
    for (unsigned done = 0; done < blocks; done += advance_block() ? 1 : 0) {
        for (unsigned i = 0; i < SHARED_MEMORIES && started < blocks; i++)
            if (!blocks_at_once[i].active) {
                begin_block(i, block_order.next());
                started++;
            }
        if (random_below(change_rate) == 0)
            which = (which + 1) % SHARED_MEMORIES;
        while (!blocks_at_once[which].active)
            which = (which + 1) % SHARED_MEMORIES;
        go_on_with(which);
    }
    kernel_thread = nullptr;
}

bool same_place(place a, place b)
{
    return a.line == b.line && (a.file == b.file || std::string_view(a.file) == b.file);
}

/* The lanes of a warp that `mask` names are all at an exchange, which must be the same one: each
 * gets what its source gave, and may go on. */
void deliver(unsigned warp, unsigned mask, place here)
{
    for (unsigned left = mask; left != 0; left &= left - 1) {
        unsigned own = static_cast<unsigned>(__builtin_ctz(left));
        thread_record &r = now->threads[warp + own];
        if (r.mask != mask || !same_place(r.here, here))
            fatal("shuffle at %s:%d with mask %08x: lane %u waits at %s:%d with mask %08x",
                  here.file, here.line, mask, own, r.here.file, r.here.line, r.mask);
        if (r.source >= WARP_THREADS || (mask >> r.source & 1) == 0)
            fatal("shuffle at %s:%d: lane %u reads lane %u, which is not in the mask %08x",
                  here.file, here.line, own, r.source, mask);
        r.received = now->threads[warp + r.source].given;
        now->released.push_back(warp + own);
    }
}

/* `start` is device memory. No program of ours enables peer access. */
void check_owner(cudaStream_t stream, const char *kernel, const void *start)
{
    int device = stream_device(stream), owner = device_of(start);
    if (device >= 0 && owner != device)
        fatal("%s on device %d is given %p, which is of device %d: peer access is not enabled",
              kernel, device, start, owner);
}

void need_kernel(const char *what)
{
    if (!in_kernel())
        fatal("%s outside a kernel", what);
}

} // namespace

bool in_kernel()
{
    return fiber::running() != nullptr;
}

void describe_kernel_thread(char *text, size_t size_bytes)
{
    text[0] = '\0';
    if (in_kernel())
        std::snprintf(text, size_bytes, ", block %u of %u, thread %u of %u", blockIdx.x, gridDim.x,
                      threadIdx.x, blockDim.x);
}

bool is_kernel_stack_guard(uintptr_t address)
{
    return std::any_of(fibers.begin(), fibers.end(),
                       [=](const auto &f) { return f->is_guard(address); });
}

void barrier(place here)
{
    need_kernel("__syncthreads");
    if (now->in_barrier > 0 && !same_place(here, now->barrier_place))
        fatal("__syncthreads at %s:%d while others wait at %s:%d", here.file, here.line,
              now->barrier_place.file, now->barrier_place.line);
    arrive(here);
    now->barrier_place = here;
    now->in_barrier++;
    if (now->in_barrier == thread_count) {
        now->in_barrier = 0;
        for (unsigned t = 0; t < thread_count; t++)
            now->released.push_back(t);
    }
    fiber::suspend();
}

uint64_t exchange(unsigned mask, uint64_t bits, unsigned source, place here)
{
    need_kernel("a shuffle");
    unsigned warp = threadIdx.x / WARP_THREADS * WARP_THREADS;
    thread_record &me = self();
    if ((mask >> lane() & 1) == 0)
        fatal("shuffle at %s:%d: the mask %08x does not name the calling lane", here.file,
              here.line, mask);
    unsigned last = WARP_THREADS - 1 - static_cast<unsigned>(__builtin_clz(mask));
    if (warp + last >= thread_count)
        fatal("shuffle at %s:%d: the mask %08x names lane %u, which does not exist", here.file,
              here.line, mask, last);
    arrive(here);
    me.mask = mask;
    me.source = source;
    me.given = bits;
    unsigned &present = now->in_exchange[warp / WARP_THREADS];
    present |= 1u << lane();
    if ((present & mask) == mask) {
        present &= ~mask;
        deliver(warp, mask, here);
    }
    fiber::suspend();
    return me.received;
}

void check_kernel_pointer(cudaStream_t stream, const char *kernel, const volatile void *pointer)
{
    const void *start = const_cast<const void *>(pointer);
    if (start == nullptr || is_pinned_memory(start, 0))
        return;
    if (!is_device_memory(start, 0))
        fatal("%s is given %p, which is neither device memory nor pinned", kernel, start);
    check_owner(stream, kernel, start);
}

void check_kernel_struct(cudaStream_t stream, const char *kernel, const void *value,
                         size_t size_bytes)
{
    const char *bytes = static_cast<const char *>(value);
    for (size_t at = 0; at + sizeof(void *) <= size_bytes; at += alignof(void *)) {
        const void *word;
        std::memcpy(&word, bytes + at, sizeof word);
        if (word != nullptr && is_device_memory(word, 0))
            check_owner(stream, kernel, word);
    }
}

void load_kernel(cudaStream_t stream, const std::string &name)
{
    static const auto waits_for = environment_number("MNIST_DDP_EMULATED_LAZY", 1, 0, 2);
    static std::mutex lock;
    static std::set<std::pair<int, std::string>> loaded;
    int device = stream_device(stream);
    if (waits_for == 0 || device < 0 || sticky_error() != cudaSuccess)
        return;
    {
        std::lock_guard<std::mutex> hold(lock);
        if (!loaded.emplace(device, name).second)
            return;
    }
    wait_until_device_is_idle(waits_for == 2 ? ALL_DEVICES : device, "cudaLaunchKernel");
}

void launch_kernel(cudaStream_t stream, long long blocks, long long block_threads, const char *name,
                   std::function<void()> thread)
{
    if (begin_call("cudaLaunchKernel") != cudaSuccess)
        return;
    if (blocks < 1 || blocks > MOST_BLOCKS || block_threads < 1 || block_threads > MOST_THREADS) {
        record(cudaErrorInvalidConfiguration);
        return;
    }
    auto run = [=] {
        run_kernel(static_cast<unsigned>(blocks), static_cast<unsigned>(block_threads), thread);
    };
    load_kernel(stream, name);
    record(enqueue(stream, name, run));
}

} // namespace emulated
