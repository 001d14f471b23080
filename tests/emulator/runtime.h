/* What the files of the emulated runtime share among themselves. */
#ifndef MNIST_DDP_TESTS_EMULATOR_RUNTIME_H
#define MNIST_DDP_TESTS_EMULATOR_RUNTIME_H

#include "emulator.h"

#if defined(__SANITIZE_ADDRESS__)
#define EMULATED_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define EMULATED_ASAN 1
#endif
#endif

namespace emulated
{

/* Entry points of the runtime begin with one of these. The error, if any, is recorded for
 * cudaGetLastError(). The unsafe ones must not be called by a thread that captures: that fails, and
 * breaks the capture. */
cudaError_t begin_call(const char *name);
cudaError_t begin_unsafe_call(const char *name);

/* Records `code` for the thread's cudaGetLastError(), if it is an error, and returns it. */
cudaError_t record(cudaError_t code);

/* Breaks the captures that forbid the calling thread an unsafe call; whether there was one. */
bool break_captures_of_this_thread();

/* For MNIST_DDP_EMULATED_WORK, a file to which the process appends at its end what its device did,
 * a line "<where> <count> <name>" each. `where` is "stream" for work that ran from a stream, a
 * graph's launch included, "graph" for a node that a launch ran, and "wait" for a wait of the host:
 * a query that found its stream or event done, which ends every loop of queries, and a copy that
 * blocks. `name` is the call that enqueued it, or a kernel's own. The difference between two runs
 * of different length is what their steps did. */
void count_work(const char *where, const char *name);

cudaError_t sticky_error();

/* Whether CUDA recovers from such an error only in a new process. */
bool is_sticky(cudaError_t code);

/* Reads an environment variable as a number; `otherwise` if it is not set; fatal if it is not a
 * number in [least, most]. */
unsigned long long environment_number(const char *name, unsigned long long otherwise,
                                      unsigned long long least, unsigned long long most);

/* A random number below `count`. The device thread's alone. */
uint32_t random_below(uint32_t count);

/* Of the device thread: the operation that runs (NULL: none), for messages. */
void set_operation(const char *name);

/* ", in <operation>, block ..., thread ..." on the device thread; "" elsewhere. */
const char *where_on_device();

bool on_device_thread();

/* The calling thread may touch device memory from now on. */
void become_device_thread();

/* Whether a kernel's thread runs here. */
bool in_kernel();

/* The block and thread that run, into `text`; "" if none does. */
void describe_kernel_thread(char *text, size_t size_bytes);

/* Whether `address` lies in the unused page below the stack of a kernel's thread. */
bool is_kernel_stack_guard(uintptr_t address);

/* Device memory's protection against host threads. -1 if the machine has no keys: then there is no
 * protection. */
int protection_key();
void protect_device_memory(void *pages, size_t size_bytes);

/* Of the device thread: from now on it runs work of `device`, for messages and check_device(); -1:
 * of none. Returns what held before. */
int work_on_device(int device);

/* Whose work the device thread runs; -1 elsewhere. */
int working_device();

/* The device whose memory it is; -1 if it is none. */
int device_of(const void *piece);

/* Of the signal handler: says what `address` is, if it is ours. False if it is not. */
bool describe_device_address(uintptr_t address, char *text, size_t size_bytes);

/* Whether any byte of it lies in live pinned host memory. */
bool overlaps_pinned_memory(const void *memory, size_t size_bytes);

/* Ends the process if something wrote beside an allocation; `name` is what just ran. */
void check_guard_zones(const char *name);

/* Blocks until all streams of the device, or of all devices, are idle. */
enum { ALL_DEVICES = -1 };
void wait_until_device_is_idle(int device, const char *caller);

/* Whether what is submitted to it now is recorded. Takes the streams' lock. */
bool is_capturing(cudaStream_t stream);

size_t visible_devices();

/* Of each device. */
size_t device_memory_bytes();

} // namespace emulated

#endif
