/* Fibers, by a switch of registers; by ucontext, which costs a system call, on other processors. */
#include "fibers.h"
#include "runtime.h"

#include <sys/mman.h>

#ifdef EMULATED_ASAN
#include <sanitizer/common_interface_defs.h>
#endif

namespace emulated
{

namespace
{

enum { PAGE = 4096, STACK_BYTES = 128 << 10 };

fiber *current = nullptr;

/* The device thread's own stack. */
const void *home_bottom = nullptr;
size_t home_bytes = 0;
void *home_fake_stack = nullptr;
#ifdef EMULATED_USES_UCONTEXT
ucontext_t home;
#else
void *home;
#endif

/* AddressSanitizer is told of each switch, before and after. */
void announce_switch(void **fake_stack, const void *bottom, size_t size_bytes)
{
#ifdef EMULATED_ASAN
    __sanitizer_start_switch_fiber(fake_stack, bottom, size_bytes);
#else
    (void)fake_stack;
    (void)bottom;
    (void)size_bytes;
#endif
}

void finish_switch(void *fake_stack, const void **bottom, size_t *size_bytes)
{
#ifdef EMULATED_ASAN
    __sanitizer_finish_switch_fiber(fake_stack, bottom, size_bytes);
#else
    (void)fake_stack;
    (void)bottom;
    (void)size_bytes;
#endif
}

} // namespace

#ifndef EMULATED_USES_UCONTEXT
/* emulated_switch(from, to): keeps the registers that a function must preserve on the stack, its
 * position in *from, and continues at `to`'s position. */
extern "C" void emulated_switch(void **from, void *to);
asm(R"(
    .text
    .hidden emulated_switch
    .globl emulated_switch
    .type emulated_switch, @function
emulated_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
    .size emulated_switch, . - emulated_switch
)");
#endif

/* The first positions differ, so that the stacks do not all use the same cache sets. */
fiber::fiber(void (*b)()) : body(b)
{
    static size_t made = 0;
    size_t shift = made++ % 32 * 192;
    void *memory = mmap(nullptr, STACK_BYTES + PAGE, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
    if (memory == MAP_FAILED || mprotect(memory, PAGE, PROT_NONE) != 0)
        fatal("no memory for the stack of a kernel's thread");
    stack = static_cast<char *>(memory) + PAGE;
#ifdef EMULATED_USES_UCONTEXT
    getcontext(&context);
    context.uc_stack.ss_sp = stack;
    context.uc_stack.ss_size = STACK_BYTES - shift / 16 * 16;
    context.uc_link = nullptr;
    makecontext(&context, &fiber::enter, 0);
#else
    void **top = reinterpret_cast<void **>(stack + STACK_BYTES - shift);
    top[-1] = nullptr; /* enter()'s return address; also aligns the stack as a call does */
    top[-2] = reinterpret_cast<void *>(&fiber::enter);
    for (int i = 3; i <= 8; i++)
        top[-i] = nullptr;
    position = top - 8;
#endif
}

void fiber::enter()
{
    finish_switch(nullptr, &home_bottom, &home_bytes);
    current->body();
    fatal("a fiber has ended");
}

void fiber::resume()
{
    current = this;
    announce_switch(&home_fake_stack, stack, STACK_BYTES);
#ifdef EMULATED_USES_UCONTEXT
    swapcontext(&home, &context);
#else
    emulated_switch(&home, position);
#endif
    finish_switch(home_fake_stack, nullptr, nullptr);
    current = nullptr;
}

void fiber::suspend()
{
    fiber *self = current;
    announce_switch(&self->fake_stack, home_bottom, home_bytes);
#ifdef EMULATED_USES_UCONTEXT
    swapcontext(&self->context, &home);
#else
    emulated_switch(&self->position, home);
#endif
    finish_switch(self->fake_stack, nullptr, nullptr);
}

fiber *fiber::running()
{
    return current;
}

bool fiber::is_guard(uintptr_t address) const
{
    uintptr_t start = reinterpret_cast<uintptr_t>(stack);
    return address < start && start - address <= PAGE;
}

} // namespace emulated
