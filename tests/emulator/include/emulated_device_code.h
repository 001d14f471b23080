/* Emulated device: what CUDA C++ adds to the language, as far as kernels use it.
 *
 * The threads of a block take turns on the device thread; they change places at barriers and
 * shuffles only. So an atomic is one for the host's sake alone (mapped memory), and a race between
 * threads shows as a wrong result that depends on the seed, not as a torn value.
 */
#ifndef EMULATED_DEVICE_CODE_H
#define EMULATED_DEVICE_CODE_H

#include <vector_types.h>

#include <cstdint>
#include <cstring>
#include <math.h>
#include <type_traits>

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)

#define EMULATED_LOCAL __attribute__((visibility("hidden")))

extern EMULATED_LOCAL uint3 threadIdx, blockIdx, blockDim, gridDim;

namespace emulated
{

constexpr unsigned WARP_THREADS = 32;

/* The source line of a barrier or a shuffle: threads that meet must have come to the same one. */
struct place {
    const char *file;
    int line;
};

void barrier(place here);

/* Gives `bits` to the lanes named in `mask`, once they are all here, and returns lane `source`'s.
 */
uint64_t exchange(unsigned mask, uint64_t bits, unsigned source, place here);

template <typename T> T shuffle(unsigned mask, T value, unsigned source, place here)
{
    static_assert(std::is_arithmetic<T>::value && (sizeof(T) == 4 || sizeof(T) == 8),
                  "CUDA shuffles 32-bit and 64-bit numbers");
    uint64_t bits = 0;
    std::memcpy(&bits, &value, sizeof value);
    bits = exchange(mask, bits, source, here);
    std::memcpy(&value, &bits, sizeof value);
    return value;
}

inline unsigned lane()
{
    return threadIdx.x % WARP_THREADS;
}

} // namespace emulated

#define EMULATED_PLACE const char *file = __builtin_FILE(), int line = __builtin_LINE()

inline void __syncthreads(EMULATED_PLACE)
{
    emulated::barrier({file, line});
}

inline void __syncwarp(unsigned mask = 0xFFFFFFFFu, EMULATED_PLACE)
{
    emulated::exchange(mask, 0, emulated::lane(), {file, line});
}

template <typename T>
T __shfl_sync(unsigned mask, T value, int source, int width = 32, EMULATED_PLACE)
{
    unsigned first = emulated::lane() & ~(static_cast<unsigned>(width) - 1);
    unsigned from = first + (static_cast<unsigned>(source) & (static_cast<unsigned>(width) - 1));
    return emulated::shuffle(mask, value, from, {file, line});
}

template <typename T>
T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32, EMULATED_PLACE)
{
    unsigned own = emulated::lane();
    unsigned last = own | (static_cast<unsigned>(width) - 1);
    return emulated::shuffle(mask, value, own + delta > last ? own : own + delta, {file, line});
}

template <typename T>
T __shfl_xor_sync(unsigned mask, T value, int lane_mask, int width = 32, EMULATED_PLACE)
{
    unsigned own = emulated::lane();
    unsigned last = own | (static_cast<unsigned>(width) - 1);
    unsigned from = own ^ static_cast<unsigned>(lane_mask);
    return emulated::shuffle(mask, value, from > last ? own : from, {file, line});
}

#undef EMULATED_PLACE

/* ThreadSanitizer knows no fences: to it, all who come here meet at one variable. */
inline void __threadfence()
{
#ifdef __SANITIZE_THREAD__
    static int meeting;
    __atomic_fetch_add(&meeting, 1, __ATOMIC_SEQ_CST);
#else
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
#endif
}

inline void __threadfence_system()
{
    __threadfence();
}

inline int atomicAdd(int *address, int value)
{
    return __atomic_fetch_add(address, value, __ATOMIC_SEQ_CST);
}

inline unsigned atomicAdd(unsigned *address, unsigned value)
{
    return __atomic_fetch_add(address, value, __ATOMIC_SEQ_CST);
}

inline unsigned long long atomicAdd(unsigned long long *address, unsigned long long value)
{
    return __atomic_fetch_add(address, value, __ATOMIC_SEQ_CST);
}

/* Counts up to `last`, then from 0 again. */
inline unsigned atomicInc(unsigned *address, unsigned last)
{
    unsigned old = __atomic_load_n(address, __ATOMIC_SEQ_CST);
    while (!__atomic_compare_exchange_n(address, &old, old >= last ? 0 : old + 1, false,
                                        __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
        ;
    return old;
}

template <typename To, typename From> inline To emulated_bits(From from)
{
    static_assert(sizeof(To) == sizeof(From), "");
    To to;
    std::memcpy(&to, &from, sizeof to);
    return to;
}

inline unsigned __float_as_uint(float x)
{
    return emulated_bits<unsigned>(x);
}

inline int __float_as_int(float x)
{
    return emulated_bits<int>(x);
}

inline float __uint_as_float(unsigned x)
{
    return emulated_bits<float>(x);
}

inline float __int_as_float(int x)
{
    return emulated_bits<float>(x);
}

inline unsigned __umulhi(unsigned a, unsigned b)
{
    return static_cast<unsigned>((static_cast<uint64_t>(a) * b) >> 32);
}

inline int __popc(unsigned x)
{
    return __builtin_popcount(x);
}

template <typename T> inline T __ldg(const T *address)
{
    return *address;
}

inline float rsqrtf(float x)
{
    return 1.0f / sqrtf(x);
}

inline float __expf(float x)
{
    return expf(x);
}

inline float __logf(float x)
{
    return logf(x);
}

inline float __fdividef(float x, float y)
{
    return x / y;
}

#define EMULATED_MIN_MAX(type) \
    inline type min(type a, type b) \
    { \
        return b < a ? b : a; \
    } \
    inline type max(type a, type b) \
    { \
        return a < b ? b : a; \
    }

EMULATED_MIN_MAX(int)
EMULATED_MIN_MAX(unsigned)
EMULATED_MIN_MAX(long)
EMULATED_MIN_MAX(unsigned long)
EMULATED_MIN_MAX(long long)
EMULATED_MIN_MAX(unsigned long long)

inline float min(float a, float b)
{
    return fminf(a, b);
}

inline float max(float a, float b)
{
    return fmaxf(a, b);
}

inline double min(double a, double b)
{
    return fmin(a, b);
}

inline double max(double a, double b)
{
    return fmax(a, b);
}

#undef EMULATED_MIN_MAX

#endif
