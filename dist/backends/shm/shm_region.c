#include "dist/backends/shm/shm_region.h"

#include "base/memory.h"
#include "dist/membership/keys.h"
#include "dist/net/socket.h"
#include "dist/store/store.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    LAYOUT = 7,                   /* moves on with every change to the structs */
    ALIGN_SLACK_BYTES = 64 << 10, /* what rounding up 1024 allocations can cost */
    NAME_BYTES = 64,
    TAKEN_BYTES = 4 << 20,
};

static const uint64_t MAGIC = 0x6d6e6973742d7368;
static const int SEALS = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

static size_t round_up(size_t size)
{
    size_t page_bytes = memory_page_bytes();
    return (size + page_bytes - 1) / page_bytes * page_bytes;
}

static size_t control_bytes(int world_size)
{
    return round_up(sizeof(shm_control) + sizeof(shm_rank) * (size_t)world_size);
}

/* Of all ranks' annexes and slots, and of all channels. */
static size_t annexes_bytes(int world_size)
{
    return (size_t)world_size * SHM_NOTES * SHM_ANNEX_BYTES;
}

static size_t slots_bytes(int world_size)
{
    return (size_t)world_size * SHM_SLOTS * SHM_SLOT_BYTES;
}

static size_t channels_bytes(int world_size)
{
    return round_up((size_t)world_size * (size_t)world_size * sizeof(shm_channel));
}

static status measure(const process_group_options *o, shm_region *region)
{
    size_t all_heaps;
    size_t limit = SIZE_MAX / 4;
    if (o->world_size > SHM_MAX_RANKS)
        return FAIL(STATUS_INVALID, "backend shm is for up to %d ranks, not %d", (int)SHM_MAX_RANKS,
                    o->world_size);
    if (o->shared_bytes > limit)
        return FAIL(STATUS_NO_MEMORY, "shared_bytes of %zu", o->shared_bytes);
    region->heap_bytes = round_up(o->shared_bytes) + ALIGN_SLACK_BYTES;
    if (!memory_product(region->heap_bytes, (size_t)o->world_size, &all_heaps) || all_heaps > limit)
        return FAIL(STATUS_NO_MEMORY, "%d ranks with %zu shared bytes each", o->world_size,
                    o->shared_bytes);
    region->size_bytes = control_bytes(o->world_size) + annexes_bytes(o->world_size) +
                         slots_bytes(o->world_size) + channels_bytes(o->world_size) + all_heaps;
    region->rank = o->rank;
    region->world_size = o->world_size;
    return STATUS_OK;
}

static status map(int fd, size_t size_bytes, shm_control **out)
{
    void *base = mmap(NULL, size_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (base == MAP_FAILED)
        return FAIL(STATUS_NO_MEMORY, "map %zu bytes of shared memory: %s", size_bytes,
                    strerror(errno));
    *out = base;
    return STATUS_OK;
}

static status make(shm_region *region, int *out_fd)
{
    status st = STATUS_OK;
    int fd = memfd_create("mnist_ddp", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0)
        return FAIL(STATUS_IO, "memfd_create: %s", strerror(errno));
    if (ftruncate(fd, (off_t)region->size_bytes) != 0 || fcntl(fd, F_ADD_SEALS, SEALS) != 0) {
        st = FAIL(STATUS_IO, "size %zu bytes of shared memory: %s", region->size_bytes,
                  strerror(errno));
        goto out;
    }
    st = map(fd, region->size_bytes, &region->control);
    if (st != STATUS_OK)
        goto out;
    shm_control *control = region->control;
    control->magic = MAGIC;
    control->layout = LAYOUT;
    control->world_size = (uint32_t)region->world_size;
    control->size_bytes = region->size_bytes;
    control->creator_pid = (int)getpid();
    control->creator_base = control;
    atomic_init(&control->users, 1);
    *out_fd = fd;
    fd = -1; /* handed over */

out:
    if (fd >= 0)
        close(fd);
    return st;
}

static status random_name(char *name)
{
    uint64_t words[2];
    if (getrandom(words, sizeof words, 0) != (ssize_t)sizeof words)
        return FAIL(STATUS_IO, "getrandom: %s", strerror(errno));
    snprintf(name, NAME_BYTES, "mnist_ddp-%016llx%016llx", (unsigned long long)words[0],
             (unsigned long long)words[1]);
    return STATUS_OK;
}

/* Rank 0: makes the region and hands it to every other rank. */
static status offer(const group_setup *setup, int64_t deadline_ns, shm_region *region)
{
    char name[NAME_BYTES];
    int fd = -1, listener = -1;
    TRY(random_name(name));
    TRY(make(region, &fd));
    status st = socket_listen_local(name, &listener);
    keys_text key = keys_make(setup->prefix, KEYS_SHM, -1);
    if (st == STATUS_OK)
        st = store_set(setup->options->store, key.text, name, strlen(name));
    for (int given = 1; given < region->world_size && st == STATUS_OK; given++) {
        int peer = -1;
        st = socket_accept_local(listener, deadline_ns, &peer);
        if (st != STATUS_OK) {
            status_context(st, "%d of %d ranks fetched the shared memory", given - 1,
                           region->world_size - 1);
            break;
        }
        st = socket_send_descriptor(peer, fd, deadline_ns);
        close(peer);
    }
    if (listener >= 0)
        close(listener);
    close(fd);
    return st;
}

/* Checks a descriptor from rank 0: sealed, so that it cannot shrink under us, and of our layout. */
static status adopt(int fd, shm_region *region)
{
    struct stat info;
    if (fstat(fd, &info) != 0 || (size_t)info.st_size != region->size_bytes ||
        (fcntl(fd, F_GET_SEALS) & SEALS) != SEALS)
        return FAIL(STATUS_PEER, "rank 0's shared memory is not a sealed file of %zu bytes",
                    region->size_bytes);
    shm_control *control = NULL;
    TRY(map(fd, region->size_bytes, &control));
    if (control->magic != MAGIC || control->layout != LAYOUT ||
        control->world_size != (uint32_t)region->world_size ||
        control->size_bytes != region->size_bytes) {
        munmap(control, region->size_bytes);
        return FAIL(STATUS_PEER, "rank 0's shared memory has another layout: is it another build?");
    }
    region->control = control;
    if (control->creator_pid != (int)getpid())
        return STATUS_OK;
    int users = atomic_load(&control->users);
    while (users > 0)
        if (atomic_compare_exchange_weak(&control->users, &users, users + 1)) {
            region->control = control->creator_base;
            munmap(control, region->size_bytes);
            break;
        }
    return STATUS_OK;
}

static status fetch(const group_setup *setup, int64_t deadline_ns, shm_region *region)
{
    char name[NAME_BYTES];
    int peer = -1, fd = -1;
    keys_text key = keys_make(setup->prefix, KEYS_SHM, -1);
    TRY(store_get_text(setup->options->store, key.text, deadline_ns, name, sizeof name));
    status st = socket_connect_local(name, deadline_ns, &peer);
    if (st == STATUS_OK)
        st = socket_receive_descriptor(peer, &fd, deadline_ns);
    if (peer >= 0)
        close(peer);
    if (st == STATUS_OK)
        st = adopt(fd, region);
    if (fd >= 0)
        close(fd);
    return st;
}

/* So that the first collectives do not stop at every page of notes and annexes. Only advice: older
 * kernels refuse. */
static void take_pages(const shm_region *region)
{
#ifdef MADV_POPULATE_WRITE
    size_t size_bytes = control_bytes(region->world_size) + annexes_bytes(region->world_size);
    if (size_bytes <= TAKEN_BYTES)
        (void)madvise(region->control, size_bytes, MADV_POPULATE_WRITE);
#else
    (void)region;
#endif
}

status shm_region_create(const group_setup *setup, int64_t deadline_ns, shm_region *out)
{
    shm_region region = {0};
    TRY(measure(setup->options, &region));
    status st =
        region.rank == 0 ? offer(setup, deadline_ns, &region) : fetch(setup, deadline_ns, &region);
    if (st != STATUS_OK) {
        shm_region_close(&region);
        return status_context(st, "shared memory from rank 0");
    }
    take_pages(&region);
    *out = region;
    return STATUS_OK;
}

void shm_region_close(shm_region *region)
{
    shm_control *control = region->control;
    if (control == NULL)
        return;
    bool shared = control->creator_pid == (int)getpid() && control->creator_base == control;
    if (!shared || atomic_fetch_sub(&control->users, 1) == 1)
        munmap(control, region->size_bytes);
    region->control = NULL;
}

static unsigned char *annexes(const shm_region *region)
{
    return (unsigned char *)region->control + control_bytes(region->world_size);
}

static unsigned char *slots(const shm_region *region)
{
    return annexes(region) + annexes_bytes(region->world_size);
}

static unsigned char *channels(const shm_region *region)
{
    return slots(region) + slots_bytes(region->world_size);
}

unsigned char *shm_region_annex(const shm_region *region, int rank, uint32_t index)
{
    return annexes(region) + ((size_t)rank * SHM_NOTES + index % SHM_NOTES) * SHM_ANNEX_BYTES;
}

unsigned char *shm_region_slot(const shm_region *region, int rank, uint32_t round)
{
    return slots(region) + ((size_t)rank * SHM_SLOTS + round % SHM_SLOTS) * SHM_SLOT_BYTES;
}

shm_channel *shm_region_channel(const shm_region *region, int from, int to)
{
    size_t at = (size_t)from * (size_t)region->world_size + (size_t)to;
    return (shm_channel *)(void *)(channels(region) + at * sizeof(shm_channel));
}

unsigned char *shm_region_heap(const shm_region *region, int rank)
{
    return channels(region) + channels_bytes(region->world_size) +
           (size_t)rank * region->heap_bytes;
}

uint64_t shm_region_offset(const shm_region *region, const void *data, size_t size_bytes)
{
    uintptr_t heap = (uintptr_t)shm_region_heap(region, region->rank), at = (uintptr_t)data;
    if (at < heap || at - heap > region->heap_bytes ||
        size_bytes > region->heap_bytes - (at - heap))
        return SHM_NO_OFFSET;
    return at - heap;
}
