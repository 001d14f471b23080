/* What the C++ of translate.py is compiled with: PTX's operations, and the kernels' memory, which
 * is checked at each access. Threads, barriers and shuffles are the emulated device's. */
#ifndef MNIST_DDP_TESTS_PTX_SIMULATOR_H
#define MNIST_DDP_TESTS_PTX_SIMULATOR_H

#include <emulated_device_code.h>

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cfenv>
#include <cmath>
#include <cstddef>
#include <limits>
#include <vector>

namespace ptx
{

/* An instruction: "loss.cu:95, loss.ptx", its line there, and what it says. */
struct site {
    const char *file;
    int line;
    const char *text;
};

struct range {
    uint32_t at, size_bytes;
};

struct kernel {
    const char *symbol, *title;
    void (*run)(const char *parameters);
    unsigned most_threads;
    std::vector<range> parameters, shared; /* shared: addresses, which begin at 0 */
    uint32_t *launches = nullptr;          /* how many there were */
};

/* Lies in pages of its own, and is as if written before the first launch. */
struct constant {
    const void *memory;
    size_t size_bytes;
};

/* A file of PTX; made before main(). What runs is noted in the file $PTX_COVERAGE/<name>: launches
 * of each kernel, of 4 bytes, then a byte for each basic block, 1 if it ran. */
struct module {
    module(const char *name, const std::vector<kernel> &kernels,
           const std::vector<constant> &constants, size_t block_count, unsigned char **covered);
};

const kernel &find_kernel(const char *symbol);

/* A thread of the kernel, in emulated::launch_kernel(). */
void run_thread(const kernel &k, const char *parameters);

enum space { GLOBAL, SHARED };
enum action { READ, WRITE, UPDATE }; /* UPDATE: atomically */

struct access {
    space where;
    action what;
    unsigned size_bytes;
};

/* Where the bytes lie for the host. Ends the process if the thread must not do that: out of bounds,
 * misaligned, read and never written, or a race. */
char *reach(const site &from, access how, uint64_t address);

/* The same of a thread's own memory: [start, start + all_bytes). */
char *reach_local(const site &from, unsigned size_bytes, uint64_t address, char *start,
                  size_t all_bytes);

uint32_t atomic_inc(const site &from, uint64_t address, uint32_t last);
void barrier(const site &from);
void fence();

/* `source`, if it lies in the part of the warp that `clamp` says; else the lane's own. */
uint32_t shuffle(const site &from, uint32_t value, uint32_t source, uint32_t clamp, uint32_t mask,
                 bool *in_range);

[[noreturn]] uint64_t divides_by_zero(const site &from);

/* The lowest bits of `x`, as a `To`. At -O1, which compiles in seconds, only this is inlined. */
template <typename To, typename From> __forceinline__ To as(From x)
{
    static_assert(sizeof(To) <= sizeof x, "");
    To same;
    std::memcpy(&same, &x, sizeof same);
    return same;
}

#define GET(type, from) (*reinterpret_cast<const type *>(from))
#define PUT(type, to, value) (*reinterpret_cast<type *>(to) = (value))

/* Rounded towards minus infinity. The compiler moves no volatile variable past a call. */
inline float fma_down(float a, float b, float c)
{
    volatile float factor = a;
    std::fesetround(FE_DOWNWARD);
    volatile float sum = std::fma(factor, b, c);
    std::fesetround(FE_TONEAREST);
    return sum;
}

/* What is subnormal becomes 0. */
inline float flushed(float x)
{
    return std::fpclassify(x) == FP_SUBNORMAL ? std::copysign(0.0f, x) : x;
}

/* Of some 20 bits, as the instruction that begins a division in double precision. */
inline double rough_reciprocal(double x)
{
    return as<double>(as<uint64_t>(1 / x) & 0xFFFFFFFF00000000u);
}

/* A number before a NaN, and +0 before -0. */
inline float larger(float a, float b)
{
    return a > b || b != b || (a == b && std::signbit(b)) ? a : b;
}

/* Of a float without a fraction; NaN is 0. */
template <typename T, typename F> T clamped(F x)
{
    using limits = std::numeric_limits<T>;
    if (x != x)
        return 0;
    if (x <= static_cast<F>(limits::min()))
        return limits::min();
    return x >= static_cast<F>(limits::max()) ? limits::max() : static_cast<T>(x);
}

inline uint32_t keep_carry(uint32_t *carry, uint64_t wide)
{
    *carry = static_cast<uint32_t>(wide >> 32 & 1);
    return static_cast<uint32_t>(wide);
}

inline uint32_t low_bits(uint32_t count)
{
    return count < 32 ? (1u << count) - 1 : ~0u;
}

/* `into`, but `count` bits from `at` on are the lowest of `value`. */
inline uint32_t with_bits(uint32_t value, uint32_t into, uint32_t at, uint32_t count)
{
    uint32_t mask = at < 32 ? low_bits(count) << at : 0;
    return (into & ~mask) | (at < 32 ? value << at & mask : 0);
}

/* Four bytes, each chosen by a nibble of `how`: its lowest bits say which, and its highest bit that
 * the byte is filled with that one's sign. */
inline uint32_t permuted(uint64_t bytes, uint32_t how)
{
    uint32_t out = 0;
    for (int k = 0; k < 4; k++) {
        uint32_t nibble = how >> 4 * k & 15, byte = bytes >> 8 * (nibble & 7) & 255;
        out |= (nibble < 8 ? byte : byte < 128 ? 0 : 255) << 8 * k;
    }
    return out;
}

} // namespace ptx

#endif
