/* failing_malloc.so: counts the allocations of a process and lets one fail, as $TEST_FAILING_MALLOC
 * says. Only those can fail that the program itself, libc, jansson, libyaml and zlib ask for; what
 * a C++ library needs for itself ends in its own exceptions. A look-up of a host or user is one of
 * them: glibc's own search for name services takes a null pointer there for memory (2.36,
 * nss_database.c). */
#include "tests/support/failing_malloc.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <netdb.h>
#include <pwd.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { RANGES = 64 };

/* glibc's own, under the names that this library takes over. */
void *__libc_malloc(size_t size_bytes);
void *__libc_calloc(size_t count, size_t size_bytes);
void *__libc_realloc(void *memory, size_t size_bytes);
void *__libc_memalign(size_t alignment, size_t size_bytes);

static failing_malloc *plan;
static struct {
    uintptr_t begin, end, base;
    const char *name;
} ranges[RANGES];
static int n_ranges;

/* In a look-up of a host or user. A variable that needs no memory of its own to be reached. */
static _Thread_local bool looks_up __attribute__((tls_model("initial-exec")));

static bool is_counted(const char *name)
{
    static const char *const libraries[] = {"libc.so", "libjansson", "libyaml", "libz.so"};
    for (size_t i = 0; i < sizeof libraries / sizeof libraries[0]; i++)
        if (strstr(name, libraries[i]) != NULL)
            return true;
    return name[0] == '\0'; /* the program */
}

static int note_ranges(struct dl_phdr_info *info, size_t size_bytes, void *unused)
{
    (void)size_bytes, (void)unused;
    if (!is_counted(info->dlpi_name))
        return 0;
    for (int i = 0; i < info->dlpi_phnum && n_ranges < RANGES; i++) {
        const ElfW(Phdr) *part = &info->dlpi_phdr[i];
        if (part->p_type != PT_LOAD || (part->p_flags & PF_X) == 0)
            continue;
        ranges[n_ranges].base = info->dlpi_addr;
        ranges[n_ranges].begin = info->dlpi_addr + part->p_vaddr;
        ranges[n_ranges].end = ranges[n_ranges].begin + part->p_memsz;
        ranges[n_ranges++].name = info->dlpi_name[0] != '\0' ? info->dlpi_name : "mnist_ddp";
    }
    return 0;
}

static bool is_meant(const failing_malloc *p)
{
    static const char program[] = "/mnist_ddp";
    char path[4096];
    const char *rank = getenv("RANK");
    ssize_t length = readlink("/proc/self/exe", path, sizeof path);
    size_t tail = sizeof program - 1;
    return length > (ssize_t)tail && memcmp(path + length - tail, program, tail) == 0 &&
           p->rank == (rank != NULL ? atoi(rank) : FAILING_MALLOC_NO_RANK);
}

__attribute__((constructor)) static void open_plan(void)
{
    const char *path = getenv("TEST_FAILING_MALLOC");
    int fd = path != NULL ? open(path, O_RDWR | O_CLOEXEC) : -1;
    if (fd < 0)
        return;
    void *memory = mmap(NULL, sizeof *plan, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (memory == MAP_FAILED || !is_meant(memory))
        return;
    dl_iterate_phdr(note_ranges, NULL);
    plan = memory;
}

static bool fails(const void *caller)
{
    uintptr_t at = (uintptr_t)caller;
    if (plan != NULL)
        __atomic_add_fetch(&plan->count_all, 1, __ATOMIC_RELAXED);
    for (int i = 0; plan != NULL && !looks_up && i < n_ranges; i++) {
        if (at < ranges[i].begin || at >= ranges[i].end)
            continue;
        if (__atomic_add_fetch(&plan->count, 1, __ATOMIC_RELAXED) != plan->fail_at)
            return false;
        const char *slash = strrchr(ranges[i].name, '/');
        snprintf(plan->place, sizeof plan->place, "%s+0x%lx",
                 slash != NULL ? slash + 1 : ranges[i].name, (unsigned long)(at - ranges[i].base));
        plan->fired = 1;
        errno = ENOMEM;
        return true;
    }
    return false;
}

void *malloc(size_t size_bytes)
{
    return fails(__builtin_return_address(0)) ? NULL : __libc_malloc(size_bytes);
}

void *calloc(size_t count, size_t size_bytes)
{
    return fails(__builtin_return_address(0)) ? NULL : __libc_calloc(count, size_bytes);
}

void *realloc(void *memory, size_t size_bytes)
{
    return fails(__builtin_return_address(0)) ? NULL : __libc_realloc(memory, size_bytes);
}

void *memalign(size_t alignment, size_t size_bytes)
{
    return fails(__builtin_return_address(0)) ? NULL : __libc_memalign(alignment, size_bytes);
}

void *aligned_alloc(size_t alignment, size_t size_bytes)
{
    return fails(__builtin_return_address(0)) ? NULL : __libc_memalign(alignment, size_bytes);
}

int posix_memalign(void **out, size_t alignment, size_t size_bytes)
{
    void *memory =
        fails(__builtin_return_address(0)) ? NULL : __libc_memalign(alignment, size_bytes);
    if (memory == NULL)
        return ENOMEM;
    *out = memory;
    return 0;
}

int getaddrinfo(const char *host, const char *service, const struct addrinfo *hints,
                struct addrinfo **out)
{
    if (fails(__builtin_return_address(0)))
        return EAI_MEMORY;
    int (*look_up)(const char *, const char *, const struct addrinfo *, struct addrinfo **);
    *(void **)&look_up = dlsym(RTLD_NEXT, "getaddrinfo");
    looks_up = true;
    int error = look_up(host, service, hints, out);
    looks_up = false;
    return error;
}

struct passwd *getpwuid(uid_t number)
{
    if (fails(__builtin_return_address(0)))
        return NULL;
    struct passwd *(*look_up)(uid_t);
    *(void **)&look_up = dlsym(RTLD_NEXT, "getpwuid");
    looks_up = true;
    struct passwd *user = look_up(number);
    looks_up = false;
    return user;
}
