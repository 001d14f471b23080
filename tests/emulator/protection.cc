/* Host code that touches device memory faults, if the machine has memory protection keys. The
 * fault's message says what was touched, and by which code. */
#include "runtime.h"

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <sys/mman.h>
#include <unistd.h>

namespace emulated
{

namespace
{

struct sigaction earlier; /* the handler that was there before: a sanitizer's, or the default */

thread_local bool is_device_thread = false;
int working_on = -1;             /* the device thread's */
const char *operation = nullptr; /* the device thread's */

void write_text(const char *text)
{
    if (write(STDERR_FILENO, text, std::strlen(text)) < 0)
        return;
}

/* Prints what it knows, then the earlier handler or the default ends the process. */
void on_fault(int number, siginfo_t *info, void *context)
{
    uintptr_t address = reinterpret_cast<uintptr_t>(info->si_addr);
    char what[128], message[512];
    bool ours = describe_device_address(address, what, sizeof what);
    if (!ours && is_device_thread && is_kernel_stack_guard(address)) {
        std::snprintf(what, sizeof what, "the end of its stack");
        ours = true;
    }
    if (ours || is_device_thread) {
        std::snprintf(message, sizeof message,
                      "emulated device: %s touched %s%s at %p (seed %llu)\n",
                      is_device_thread ? "device code" : "host code",
                      ours ? what : "what is not device memory", where_on_device(), info->si_addr,
                      static_cast<unsigned long long>(seed()));
        write_text(message);
    }
    if ((earlier.sa_flags & SA_SIGINFO) != 0) {
        earlier.sa_sigaction(number, info, context);
    } else if (earlier.sa_handler != SIG_DFL && earlier.sa_handler != SIG_IGN) {
        earlier.sa_handler(number);
    } else {
        std::signal(number, SIG_DFL); /* the access happens again */
    }
}

void install_handler()
{
    struct sigaction action = {};
    action.sa_sigaction = on_fault;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigemptyset(&action.sa_mask);
    sigaction(SIGSEGV, &action, &earlier);
}

} // namespace

const char *where_on_device()
{
    static thread_local char text[256];
    char thread[128];
    if (!is_device_thread || operation == nullptr)
        return "";
    describe_kernel_thread(thread, sizeof thread);
    int length = std::snprintf(text, sizeof text, ", in %s", operation);
    if (visible_devices() > 1 && working_on >= 0)
        length += std::snprintf(text + length, sizeof text - static_cast<size_t>(length),
                                " on device %d", working_on);
    std::snprintf(text + length, sizeof text - static_cast<size_t>(length), "%s", thread);
    return text;
}

void set_operation(const char *name)
{
    operation = name;
}

bool on_device_thread()
{
    return is_device_thread;
}

int working_device()
{
    return is_device_thread ? working_on : -1;
}

int work_on_device(int device)
{
    int before = working_on;
    working_on = device;
    return before;
}

int protection_key()
{
#ifdef PKEY_DISABLE_ACCESS
    static const int key = pkey_alloc(0, PKEY_DISABLE_ACCESS);
    return key;
#else
    return -1;
#endif
}

void protect_device_memory(void *pages, size_t size_bytes)
{
    static std::once_flag installed;
    std::call_once(installed, install_handler);
#ifdef PKEY_DISABLE_ACCESS
    if (protection_key() >= 0 &&
        pkey_mprotect(pages, size_bytes, PROT_READ | PROT_WRITE, protection_key()) != 0)
        fatal("pkey_mprotect of %zu bytes fails", size_bytes);
#else
    (void)pages;
    (void)size_bytes;
#endif
}

/* A kernel that overflows its stack leaves no room for the signal handler, so the handler has its
 * own stack. */
void become_device_thread()
{
    is_device_thread = true;
    stack_t stack = {};
    if (sigaltstack(nullptr, &stack) == 0 && (stack.ss_flags & SS_DISABLE) != 0) {
        static char *memory = new char[1 << 16]; /* for as long as the process lives */
        stack = {};
        stack.ss_sp = memory;
        stack.ss_size = 1 << 16;
        sigaltstack(&stack, nullptr);
    }
#ifdef PKEY_DISABLE_ACCESS
    if (protection_key() >= 0)
        pkey_set(protection_key(), 0);
#endif
}

device_access::device_access() : before(0)
{
#ifdef PKEY_DISABLE_ACCESS
    if (protection_key() >= 0) {
        before = static_cast<unsigned>(pkey_get(protection_key()));
        pkey_set(protection_key(), 0);
    }
#endif
}

device_access::~device_access()
{
#ifdef PKEY_DISABLE_ACCESS
    if (protection_key() >= 0)
        pkey_set(protection_key(), before);
#endif
}

} // namespace emulated
