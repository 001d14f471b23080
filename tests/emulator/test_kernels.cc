/* Kernels: indices, barriers, shuffles, shared memory, atomics; and what must not go unnoticed. */
#include "checks.h"

#include "kernels/cuda/launch.cuh"

#include <cmath>
#include <cuda_bf16.h>
#include <cuda_fp16.h>

namespace
{

__global__ void write_indices(float *out, unsigned count)
{
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count)
        out[i] = static_cast<float>(i) + static_cast<float>(gridDim.x) * 0.0f;
}

void all_threads_run_once()
{
    bench b;
    LAUNCH(b.stream, 17, 250, write_indices, b.memory, 4096u);
    OK(cudaGetLastError());
    std::vector<float> values = b.read();
    for (size_t i = 0; i < values.size(); i++)
        EXPECT(values[i] == static_cast<float>(i));
    b.close();
}

/* Sums the numbers of each block: a tree in shared memory. */
template <bool WITH_BARRIERS> __global__ void sum_in_shared_memory(float *out)
{
    SHARED(float, partial, 128);
    partial[threadIdx.x] = static_cast<float>(threadIdx.x + blockIdx.x);
    for (unsigned half = 64; half > 0; half /= 2) {
        if (WITH_BARRIERS)
            __syncthreads();
        if (threadIdx.x < half)
            partial[threadIdx.x] += partial[threadIdx.x + half];
    }
    if (threadIdx.x == 0)
        out[blockIdx.x] = partial[0];
}

bool sums_are_right(const std::vector<float> &values)
{
    for (size_t block = 0; block < 32; block++)
        if (!(values[block] == static_cast<float>(128 * 127 / 2 + 128 * block)))
            return false;
    return true;
}

void barriers_order_threads()
{
    bench b;
    LAUNCH(b.stream, 32, 128, sum_in_shared_memory<true>, b.memory);
    EXPECT(sums_are_right(b.read()));
    b.close();
}

void missing_barrier_shows()
{
    bench b;
    LAUNCH(b.stream, 32, 128, sum_in_shared_memory<false>, b.memory);
    bool right = sums_are_right(b.read());
    b.close();
    if (!right)
        wrong_result();
}

/* The array is used again without a barrier after it was read. */
__global__ void reuse_shared_memory(float *out)
{
    SHARED(float, value, 64);
    value[threadIdx.x] = 1.0f;
    __syncthreads();
    float next = value[(threadIdx.x + 1) % 64];
    value[threadIdx.x] = 2.0f;
    out[blockIdx.x * 64 + threadIdx.x] = next;
}

void write_after_read_shows()
{
    bench b;
    LAUNCH(b.stream, 64, 64, reuse_shared_memory, b.memory);
    bool right = true;
    for (float value : b.read())
        right = right && value == 1.0f;
    b.close();
    if (!right)
        wrong_result();
}

__global__ void sum_by_shuffles(float *out, unsigned long long *wide)
{
    float sum = static_cast<float>(threadIdx.x);
    for (unsigned delta = 16; delta > 0; delta /= 2)
        sum += __shfl_down_sync(0xFFFFFFFFu, sum, delta);
    float first = __shfl_sync(0xFFFFFFFFu, sum, 0);
    unsigned long long both = threadIdx.x * 0x100000001ull;
    for (int mask = 4; mask > 0; mask /= 2)
        both += __shfl_xor_sync(0xFFFFFFFFu, both, mask, 8);
    __syncwarp();
    out[blockIdx.x * blockDim.x + threadIdx.x] = first;
    wide[blockIdx.x * blockDim.x + threadIdx.x] = both;
}

void shuffles_exchange_values()
{
    bench b;
    void *wide;
    unsigned long long seen[256];
    OK(cudaMalloc(&wide, sizeof seen));
    LAUNCH(b.stream, 2, 128, sum_by_shuffles, b.memory, static_cast<unsigned long long *>(wide));
    OK(cudaMemcpyAsync(seen, wide, sizeof seen, cudaMemcpyDeviceToHost, b.stream));
    std::vector<float> values = b.read();
    for (unsigned i = 0; i < 256; i++) {
        unsigned thread = i % 128, warp = thread / 32, eighth = thread / 8;
        EXPECT(values[i] == static_cast<float>(32 * 31 / 2 + 32 * 32 * warp));
        EXPECT(seen[i] == (8 * 7 / 2 + 8 * 8 * eighth) * 0x100000001ull);
    }
    OK(cudaFree(wide));
    b.close();
}

/* The last block, found by a ticket, sums what all wrote. */
__global__ void sum_by_last_block(float *partial, unsigned *ticket, float *out)
{
    SHARED(unsigned, mine, 1);
    if (threadIdx.x == 0) {
        partial[blockIdx.x] = static_cast<float>(blockIdx.x);
        __threadfence();
        mine[0] = atomicInc(ticket, gridDim.x - 1);
    }
    __syncthreads();
    if (mine[0] != gridDim.x - 1 || threadIdx.x != 0)
        return;
    float sum = 0.0f;
    for (unsigned i = 0; i < gridDim.x; i++)
        sum += partial[i];
    *out += sum;
}

void tickets_count()
{
    bench b;
    void *ticket;
    OK(cudaMalloc(&ticket, sizeof(unsigned)));
    OK(cudaMemsetAsync(ticket, 0, sizeof(unsigned), b.stream));
    OK(cudaMemsetAsync(b.memory, 0, 4, b.stream));
    for (int i = 0; i < 3; i++)
        LAUNCH(b.stream, 100, 32, sum_by_last_block, b.memory + 1, static_cast<unsigned *>(ticket),
               b.memory);
    EXPECT(b.read()[0] == 3 * 4950.0f);
    OK(cudaFree(ticket));
    b.close();
}

__global__ void see_shared_memory(float *out)
{
    SHARED(float, before, 32);
    out[blockIdx.x * 32 + threadIdx.x] = before[threadIdx.x];
    before[threadIdx.x] = 1.0f;
}

/* Every block adds up its threads' numbers in parts; the block that draws the last ticket adds up
 * the parts of all. Without a barrier before, a ticket says nothing about the block's other
 * threads.
 */
template <bool WITH_BARRIER>
__global__ void sum_by_tickets(float *parts, unsigned *ticket, float *out)
{
    SHARED(unsigned, drawn, 1);
    parts[blockIdx.x * blockDim.x + threadIdx.x] = 1.0f;
    __threadfence();
    if (WITH_BARRIER)
        __syncthreads();
    if (threadIdx.x == 0)
        drawn[0] = atomicInc(ticket, gridDim.x - 1);
    __syncthreads();
    if (drawn[0] != gridDim.x - 1 || threadIdx.x != 0)
        return;
    float sum = 0.0f;
    for (unsigned i = 0; i < gridDim.x * blockDim.x; i++)
        sum += parts[i];
    out[0] = sum;
}

template <bool WITH_BARRIER> void last_block_sums()
{
    bench b;
    unsigned *ticket;
    OK(cudaMalloc(reinterpret_cast<void **>(&ticket), sizeof *ticket));
    OK(cudaMemsetAsync(ticket, 0, sizeof *ticket, b.stream));
    OK(cudaMemsetAsync(b.memory, 0, bench::COUNT * sizeof(float), b.stream));
    LAUNCH(b.stream, 2, 64, sum_by_tickets<WITH_BARRIER>, b.memory, ticket, b.memory + 1000);
    bool right = b.read()[1000] == 128.0f;
    OK(cudaFree(ticket));
    b.close();
    if (!right)
        wrong_result();
}

void shared_memory_begins_as_nan()
{
    bench b;
    LAUNCH(b.stream, 128, 32, see_shared_memory, b.memory);
    for (float value : b.read())
        EXPECT(std::isnan(value));
    b.close();
}

__global__ void overrun_shared_memory(float *out, unsigned count)
{
    SHARED(float, small, 8);
    volatile float *all = small;
    for (unsigned i = 0; i < count; i++)
        all[i] = 1.0f;
    *out = 1.0f;
}

void shared_memory_overrun_dies()
{
    bench b;
    LAUNCH(b.stream, 1, 1, overrun_shared_memory, b.memory, 9u);
    b.read();
}

__global__ void declare_too_much(char *out)
{
    SHARED(char, first, 40000);
    SHARED(char, second, 10000);
    first[0] = second[0] = 1;
    *out = first[0];
}

void too_much_shared_memory_dies()
{
    bench b;
    LAUNCH(b.stream, 1, 1, declare_too_much, reinterpret_cast<char *>(b.memory));
    b.read();
}

__global__ void barrier_for_some(float *out)
{
    if (threadIdx.x == 7)
        return;
    __syncthreads();
    out[threadIdx.x] = 1.0f;
}

void barrier_never_reached_dies()
{
    bench b;
    LAUNCH(b.stream, 1, 32, barrier_for_some, b.memory);
    b.read();
}

__global__ void two_barriers(float *out)
{
    if (threadIdx.x < 16)
        __syncthreads();
    else
        __syncthreads();
    out[threadIdx.x] = 1.0f;
}

void different_barriers_die()
{
    bench b;
    LAUNCH(b.stream, 1, 32, two_barriers, b.memory);
    b.read();
}

/* Lanes below `leave` leave first; the rest shuffle with `mask`. */
__global__ void shuffle_with(float *out, unsigned leave, unsigned mask)
{
    if (threadIdx.x < leave)
        return;
    out[threadIdx.x] = __shfl_xor_sync(mask, 1.0f, 1);
}

void shuffle_with_ended_lanes_dies()
{
    bench b;
    LAUNCH(b.stream, 1, 32, shuffle_with, b.memory, 8u, 0xFFFFFFFFu);
    b.read();
}

void shuffle_with_missing_lanes_dies()
{
    bench b;
    LAUNCH(b.stream, 1, 24, shuffle_with, b.memory, 0u, 0xFFFFFFFFu);
    b.read();
}

void shuffle_outside_mask_dies()
{
    bench b;
    LAUNCH(b.stream, 1, 32, shuffle_with, b.memory, 0u, 0xFFFFu);
    b.read();
}

__global__ void shuffle_with_two_masks(float *out)
{
    unsigned mask = threadIdx.x < 16 ? 0xFFFFu : 0xFFFFFFFFu;
    out[threadIdx.x] = __shfl_xor_sync(mask, 1.0f, 1);
}

/* The lower half may meet and go on; the upper half waits for it in vain. */
void shuffles_with_different_masks_die()
{
    bench b;
    LAUNCH(b.stream, 1, 32, shuffle_with_two_masks, b.memory);
    b.read();
}

__global__ void read_outside_mask(float *out)
{
    if (threadIdx.x < 16)
        out[threadIdx.x] = __shfl_down_sync(0xFFFFu, 1.0f, 16);
}

void shuffle_from_outside_mask_dies()
{
    bench b;
    LAUNCH(b.stream, 1, 32, read_outside_mask, b.memory);
    b.read();
}

void shuffle_in_part_of_a_warp()
{
    bench b;
    LAUNCH(b.stream, 1, 32, shuffle_with, b.memory, 8u, 0xFFFFFF00u);
    EXPECT(b.read()[8] == 1.0f);
    b.close();
}

void wrong_launches_fail()
{
    bench b;
    LAUNCH(b.stream, 0, 32, write_indices, b.memory, 1u);
    EXPECT(cudaPeekAtLastError() == cudaErrorInvalidConfiguration);
    EXPECT(cudaGetLastError() == cudaErrorInvalidConfiguration);
    EXPECT(cudaGetLastError() == cudaSuccess);
    LAUNCH(b.stream, 1, 1025, write_indices, b.memory, 1u);
    EXPECT(cudaGetLastError() == cudaErrorInvalidConfiguration);
    LAUNCH(b.stream, 0x80000000ll, 1, write_indices, b.memory, 1u);
    EXPECT(cudaGetLastError() == cudaErrorInvalidConfiguration);
    LAUNCH(b.stream, 1, 1024, write_indices, b.memory, 1u);
    EXPECT(cudaGetLastError() == cudaSuccess);
    b.close();
}

__global__ void run_off_the_stack(float *out, int depth)
{
    volatile char room[4096];
    room[depth % 4096] = 1;
    if (depth > 0)
        run_off_the_stack(out, depth - 1);
    *out = static_cast<float>(room[depth % 4096]);
}

void stack_overflow_dies()
{
    bench b;
    LAUNCH(b.stream, 1, 1, run_off_the_stack, b.memory, 1000);
    b.read();
}

/* Every half, and floats between them, against their definition. */
void halves_round_to_even()
{
    for (unsigned bits = 0; bits < 0x7C00; bits++) {
        float low = __half2float({static_cast<uint16_t>(bits)});
        float unit = std::ldexp(1.0f, std::max(static_cast<int>(bits >> 10), 1) - 25);
        unsigned even = bits + (bits & 1);
        EXPECT(low ==
               (bits < 0x400 ? static_cast<float>(bits) : static_cast<float>(1024 + bits % 1024)) *
                   unit);
        EXPECT(__float2half(low).bits == bits);
        EXPECT(__float2half(-low).bits == (bits | 0x8000u));
        EXPECT(__float2half(low + 0.5f * unit).bits == even);
        EXPECT(__float2half(low + 0.499f * unit).bits == bits);
        EXPECT(__float2half(low + 0.501f * unit).bits == bits + 1);
    }
    EXPECT(__half2float({0xFC00}) == -INFINITY && std::isnan(__half2float({0x7C01})));
    EXPECT(__float2half(INFINITY).bits == 0x7C00 && __float2half(NAN).bits == 0x7FFF);
    EXPECT(__float2half(-1e30f).bits == 0xFC00 && __float2half(-1e-30f).bits == 0x8000);
}

void bfloats_round_to_even()
{
    for (unsigned bits = 0; bits < 0x7F80; bits++) {
        float low = __bfloat162float({static_cast<uint16_t>(bits)});
        EXPECT(__float_as_uint(low) == bits << 16 &&
               __float2bfloat16(-low).bits == (bits | 0x8000));
        EXPECT(__float2bfloat16(__uint_as_float(bits << 16 | 0x8000)).bits == bits + (bits & 1));
        EXPECT(__float2bfloat16(__uint_as_float(bits << 16 | 0x7FFF)).bits == bits);
        EXPECT(__float2bfloat16(__uint_as_float(bits << 16 | 0x8001)).bits == bits + 1);
    }
    EXPECT(__float2bfloat16(INFINITY).bits == 0x7F80 && __float2bfloat16(NAN).bits == 0x7FFF);
}

} // namespace

static const std::vector<check> CHECKS = {
    {"kernel: all threads run once", all_threads_run_once},
    {"kernel: barriers order threads", barriers_order_threads, ending::succeeds, nullptr, nullptr,
     5},
    {"kernel: a missing barrier shows", missing_barrier_shows, ending::shows, nullptr, nullptr, 3},
    {"kernel: a write after a read shows", write_after_read_shows, ending::shows, nullptr, nullptr,
     3},
    {"kernel: shuffles exchange values", shuffles_exchange_values, ending::succeeds, nullptr,
     nullptr, 5},
    {"kernel: tickets count", tickets_count, ending::succeeds, nullptr, nullptr, 3},
    {"kernel: a last block sees the others' work", last_block_sums<true>, ending::succeeds, nullptr,
     nullptr, 16},
    {"kernel: a ticket drawn too early shows", last_block_sums<false>, ending::shows, nullptr,
     nullptr, 16},
    {"kernel: shared memory begins as NaN", shared_memory_begins_as_nan},
    {"kernel: a write beside shared memory dies", shared_memory_overrun_dies, ending::dies,
     "shared memory"},
    {"kernel: too much shared memory dies", too_much_shared_memory_dies, ending::dies,
     "50000 bytes of shared memory"},
    {"kernel: a barrier that not all reach dies", barrier_never_reached_dies, ending::dies,
     "divergence: 1 of 32 threads have ended, 31 wait at a barrier"},
    {"kernel: different barriers die", different_barriers_die, ending::dies, "while others wait"},
    {"kernel: a shuffle with ended lanes dies", shuffle_with_ended_lanes_dies, ending::dies,
     "divergence: 8 of 32 threads have ended, 0 wait at a barrier, 24 at a shuffle"},
    {"kernel: a shuffle with lanes that are not there dies", shuffle_with_missing_lanes_dies,
     ending::dies, "does not exist"},
    {"kernel: a shuffle outside its mask dies", shuffle_outside_mask_dies, ending::dies,
     "does not name the calling lane"},
    {"kernel: shuffles with different masks die", shuffles_with_different_masks_die, ending::dies,
     nullptr, nullptr, 3},
    {"kernel: a shuffle that reads outside its mask dies", shuffle_from_outside_mask_dies,
     ending::dies, "which is not in the mask"},
    {"kernel: a shuffle in part of a warp", shuffle_in_part_of_a_warp},
    {"kernel: wrong launches fail", wrong_launches_fail},
    {"kernel: a stack overflow dies", stack_overflow_dies, ending::dies, "stack"},
    {"kernel: halves round to even", halves_round_to_even},
    {"kernel: bfloats round to even", bfloats_round_to_even},
};

int main(int argc, char **argv)
{
    return run_checks(CHECKS, argc, argv);
}
