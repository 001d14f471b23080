/* Fibers: stacks that the device thread runs on in turn. The device thread's alone. */
#ifndef MNIST_DDP_TESTS_EMULATOR_FIBERS_H
#define MNIST_DDP_TESTS_EMULATOR_FIBERS_H

#include <cstddef>
#include <cstdint>

#if !defined(__x86_64__) || defined(EMULATED_UCONTEXT)
#include <ucontext.h>
#define EMULATED_USES_UCONTEXT 1
#endif

namespace emulated
{

class fiber
{
  public:
    /* body() runs at the first resume(), and must not return. */
    explicit fiber(void (*body)());
    fiber(const fiber &) = delete;
    fiber &operator=(const fiber &) = delete;

    /* Runs on this fiber until it calls suspend(). Not from within a fiber. */
    void resume();

    /* Returns from the running fiber's resume(). */
    static void suspend();

    static fiber *running();

    bool is_guard(uintptr_t address) const;

  private:
    static void enter();

    void (*body)();
    char *stack;                /* after a guard page */
    void *fake_stack = nullptr; /* AddressSanitizer's */
#ifdef EMULATED_USES_UCONTEXT
    ucontext_t context;
#else
    void *position;
#endif
};

} // namespace emulated

#endif
