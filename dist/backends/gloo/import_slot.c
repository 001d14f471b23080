#include "dist/backends/gloo/import_slot.h"

#include <arpa/inet.h>
#include <errno.h>
#include <link.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

/* The tables of a shared library in memory: its dynamic section (PT_DYNAMIC) names the relocations,
 * the symbols that they are for, and the symbols' names. Relocations without addends (REL: 32-bit
 * x86 and ARM) are not read: there no slot is found.
 */

#if __ELF_NATIVE_CLASS == 64
#define SYMBOL_OF(info) ELF64_R_SYM(info)
#else
#define SYMBOL_OF(info) ELF32_R_SYM(info)
#endif

typedef struct relocations {
    const ElfW(Rela) * first;
    size_t n;
} relocations;

typedef struct tables {
    const ElfW(Sym) * symbols;
    const char *names;
    relocations calls, others; /* calls: DT_JMPREL */
} tables;

typedef struct search {
    uintptr_t inside;
    const char *name;
    void **found;
} search;

/* The library's part of the kind `type` that holds the address; NULL: none does. */
static const ElfW(Phdr) *
    find_part(const struct dl_phdr_info *library, ElfW(Word) type, uintptr_t address)
{
    for (size_t i = 0; i < library->dlpi_phnum; i++) {
        const ElfW(Phdr) *part = &library->dlpi_phdr[i];
        uintptr_t begin = library->dlpi_addr + part->p_vaddr;
        if (part->p_type == type && address >= begin && address - begin < part->p_memsz)
            return part;
    }
    return NULL;
}

/* glibc replaces the file's offsets by addresses; other dynamic linkers keep the offsets. */
static const void *at(const struct dl_phdr_info *library, uintptr_t value)
{
    return (const void *)(value < library->dlpi_addr ? library->dlpi_addr + value : value);
}

static tables read_tables(const struct dl_phdr_info *library, const ElfW(Dyn) * entry)
{
    tables out = {0};
    bool has_addends = false;
    for (; entry->d_tag != DT_NULL; entry++) {
        const void *address = at(library, entry->d_un.d_ptr);
        if (entry->d_tag == DT_SYMTAB)
            out.symbols = address;
        else if (entry->d_tag == DT_STRTAB)
            out.names = address;
        else if (entry->d_tag == DT_JMPREL)
            out.calls.first = address;
        else if (entry->d_tag == DT_PLTRELSZ)
            out.calls.n = entry->d_un.d_val / sizeof(ElfW(Rela));
        else if (entry->d_tag == DT_PLTREL)
            has_addends = entry->d_un.d_val == DT_RELA;
        else if (entry->d_tag == DT_RELA)
            out.others.first = address;
        else if (entry->d_tag == DT_RELASZ)
            out.others.n = entry->d_un.d_val / sizeof(ElfW(Rela));
    }
    if (!has_addends)
        out.calls.n = 0;
    return out;
}

static void **find_in(const struct dl_phdr_info *library, const tables *t, relocations in,
                      const char *name)
{
    for (size_t i = 0; in.first != NULL && i < in.n; i++) {
        const ElfW(Rela) *r = &in.first[i];
        const ElfW(Sym) *symbol = &t->symbols[SYMBOL_OF(r->r_info)];
        if (SYMBOL_OF(r->r_info) != 0 && symbol->st_shndx == SHN_UNDEF && r->r_addend == 0 &&
            strcmp(t->names + symbol->st_name, name) == 0)
            return (void **)(library->dlpi_addr + r->r_offset);
    }
    return NULL;
}

/* Of dl_iterate_phdr: 1 ends it. */
static int look(struct dl_phdr_info *library, size_t size_bytes, void *ctx)
{
    search *s = ctx;
    (void)size_bytes;
    if (find_part(library, PT_LOAD, s->inside) == NULL)
        return 0;
    for (size_t i = 0; i < library->dlpi_phnum; i++) {
        const ElfW(Phdr) *part = &library->dlpi_phdr[i];
        if (part->p_type != PT_DYNAMIC)
            continue;
        tables t = read_tables(library, (const void *)(library->dlpi_addr + part->p_vaddr));
        if (t.symbols == NULL || t.names == NULL)
            continue;
        s->found = find_in(library, &t, t.calls, s->name);
        if (s->found == NULL)
            s->found = find_in(library, &t, t.others, s->name);
    }
    return 1;
}

void **import_slot_find(const void *inside, const char *name)
{
    search s = {.inside = (uintptr_t)inside, .name = name};
    (void)dl_iterate_phdr(look, &s);
    return s.found;
}

typedef struct page {
    uintptr_t begin, end;
} page;

/* Of dl_iterate_phdr: whether the page is read-only by now (RELRO), as only whole pages are. */
static int look_for_relro(struct dl_phdr_info *library, size_t size_bytes, void *ctx)
{
    const page *p = ctx;
    (void)size_bytes;
    return find_part(library, PT_GNU_RELRO, p->end - 1) != NULL;
}

/* The dynamic linker may have made the slot's page read-only. false with errno if it stays so. */
static bool set(void **slot, void *function)
{
    uintptr_t size_bytes = (uintptr_t)sysconf(_SC_PAGESIZE);
    uintptr_t begin = (uintptr_t)slot / size_bytes * size_bytes;
    page p = {begin, begin + size_bytes};
    bool read_only = dl_iterate_phdr(look_for_relro, &p) != 0;
    if (read_only && mprotect((void *)begin, size_bytes, PROT_READ | PROT_WRITE) != 0)
        return false;
    __atomic_store_n(slot, function, __ATOMIC_RELEASE);
    if (read_only)
        (void)mprotect((void *)begin, size_bytes, PROT_READ); /* else it stays writable */
    return true;
}

status import_slot_redirect(const void *inside, const char *name, void *function)
{
    void **slot = import_slot_find(inside, name);
    if (slot == NULL)
        return FAIL(STATUS_INVALID, "the library imports no %s()", name);
    if (slot == import_slot_find(function, name))
        return FAIL(STATUS_INVALID, "the library is part of the one that would replace its %s()",
                    name);
    if (!set(slot, function))
        return FAIL(STATUS_IO, "the library's %s() cannot be replaced: %s", name, strerror(errno));
    return STATUS_OK;
}

enum { SEGMENT_BYTES = 1448 }; /* an Ethernet frame's, less TCP's timestamps */

static _Thread_local loopback_mss thread_mode;

void loopback_mss_set(loopback_mss mode)
{
    thread_mode = mode;
}

static bool on_loopback(int fd)
{
    union {
        struct sockaddr any;
        struct sockaddr_in v4;
        struct sockaddr_in6 v6;
        struct sockaddr_storage room;
    } address;
    socklen_t size = sizeof address;
    if (getsockname(fd, &address.any, &size) != 0)
        return false;
    if (address.any.sa_family == AF_INET)
        return ntohl(address.v4.sin_addr.s_addr) >> 24 == 127;
    return address.any.sa_family == AF_INET6 && IN6_IS_ADDR_LOOPBACK(&address.v6.sin6_addr);
}

int loopback_mss_listen(int fd, int backlog)
{
    if (thread_mode == LOOPBACK_MSS_CLAMP && on_loopback(fd)) {
        int segment = SEGMENT_BYTES;
        /* Without it gloo is slow, not wrong. */
        (void)setsockopt(fd, IPPROTO_TCP, TCP_MAXSEG, &segment, sizeof segment);
    }
    return listen(fd, backlog);
}
