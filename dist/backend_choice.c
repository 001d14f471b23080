/* Every rank writes what it asks for and where it runs under "<prefix>member/<rank>"; rank 0 reads
 * them all and writes one line under "<prefix>plan": "use <backend> <one_host>", or "no <why>".
 * The prefix counts the groups of this store, per rank: the ranks create the same groups in the
 * same order.
 */
#include "dist/backend_choice.h"

#include "base/clock.h"
#include "base/file.h"
#include "dist/module.h"
#include "dist/store/store.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { LINE_BYTES = 1024, PLACE_BYTES = 256, NAME_BYTES = 32 };

/* What a rank says of itself. */
typedef struct member {
    char backend[NAME_BYTES];
    int world_size;
    uint64_t shared_bytes;
    char place[PLACE_BYTES]; /* equal where ranks can share memory and see each other's process */
} member;

status backend_choice_check(const char *name)
{
    static const char *const names[] = {"auto", "shm", "gloo"};
    if (name == NULL)
        return FAIL(STATUS_INVALID, "no backend is named; there are: auto, shm, gloo");
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (strcmp(name, names[i]) == 0)
            return STATUS_OK;
    if (strcmp(name, "nccl") == 0)
        return FAIL(STATUS_INVALID,
                    "backend nccl is for CUDA devices: on the CPU use shm (one host) "
                    "or gloo (several)");
    return FAIL(STATUS_INVALID, "there is no backend '%.64s'; there are: auto, shm, gloo", name);
}

static unsigned long long namespace_of(const char *path)
{
    struct stat info;
    return stat(path, &info) == 0 ? (unsigned long long)info.st_ino : 0;
}

static void describe_place(char *place)
{
    char boot[64] = "";
    char *text = NULL;
    size_t size = 0;
    if (file_read("/proc/sys/kernel/random/boot_id", sizeof boot - 1, &text, &size) == STATUS_OK)
        snprintf(boot, sizeof boot, "%.*s", (int)strcspn(text, "\n"), text);
    else
        gethostname(boot, sizeof boot - 1);
    free(text);
    snprintf(place, PLACE_BYTES, "%s/%llu/%llu/%u", boot, namespace_of("/proc/self/ns/net"),
             namespace_of("/proc/self/ns/pid"), (unsigned)geteuid());
}

status backend_choice_fetch(store *client, const char *key, int64_t deadline_ns, char *text,
                            size_t size)
{
    void *value = NULL;
    size_t value_bytes = 0;
    TRY(store_wait(client, key, clock_remaining_ms(deadline_ns)));
    TRY(store_get(client, key, &value, &value_bytes));
    status st = STATUS_OK;
    if (value_bytes >= size)
        st = FAIL(STATUS_PEER, "key %s holds %zu bytes, fewer than %zu are expected", key,
                  value_bytes, size);
    else
        memcpy(text, value, value_bytes + 1);
    free(value);
    return st;
}

static status read_member(store *client, const char *prefix, int rank, int64_t deadline_ns,
                          member *out)
{
    char key[64], line[LINE_BYTES];
    snprintf(key, sizeof key, "%smember/%d", prefix, rank);
    status st = backend_choice_fetch(client, key, deadline_ns, line, sizeof line);
    if (st != STATUS_OK)
        return status_context(st, "rank %d has not created its process group", rank);
    if (sscanf(line, "%31s %d %" SCNu64 " %255s", out->backend, &out->world_size,
               &out->shared_bytes, out->place) != 4)
        return FAIL(STATUS_PEER, "rank %d describes itself as '%.100s'", rank, line);
    return STATUS_OK;
}

/* On rank 0: STATUS_INVALID where the ranks do not go together. */
static status compare(const member *mine, const member *other, int rank)
{
    if (strcmp(other->backend, mine->backend) != 0)
        return FAIL(STATUS_INVALID, "rank %d asks for backend %s, rank 0 for %s", rank,
                    other->backend, mine->backend);
    if (other->world_size != mine->world_size)
        return FAIL(STATUS_INVALID, "rank %d has a world_size of %d, rank 0 of %d", rank,
                    other->world_size, mine->world_size);
    if (other->shared_bytes != mine->shared_bytes)
        return FAIL(STATUS_INVALID,
                    "rank %d asks for %" PRIu64 " bytes of shared memory, rank 0 for %" PRIu64,
                    rank, other->shared_bytes, mine->shared_bytes);
    if (strcmp(mine->backend, "shm") == 0 && strcmp(other->place, mine->place) != 0)
        return FAIL(
            STATUS_INVALID,
            "backend shm needs all ranks on one host, in one container and of one user; rank "
            "%d (%s) is elsewhere than rank 0 (%s): use gloo",
            rank, other->place, mine->place);
    return STATUS_OK;
}

static status plan(const process_group_options *o, const char *prefix, const member *mine,
                   int64_t deadline_ns, bool *one_host)
{
    *one_host = true;
    for (int rank = 1; rank < o->world_size; rank++) {
        member other;
        TRY(read_member(o->store, prefix, rank, deadline_ns, &other));
        TRY(compare(mine, &other, rank));
        if (strcmp(other.place, mine->place) != 0)
            *one_host = false;
    }
    return STATUS_OK;
}

static status plan_and_publish(const process_group_options *o, const char *prefix,
                               const member *mine, int64_t deadline_ns, char *line)
{
    char key[64];
    bool one_host = false;
    snprintf(key, sizeof key, "%splan", prefix);
    status st = plan(o, prefix, mine, deadline_ns, &one_host);
    if (st != STATUS_OK) {
        snprintf(line, LINE_BYTES, "no %.900s", status_message());
        if (store_set(o->store, key, line, strlen(line)) != STATUS_OK)
            return FAIL(st, "%s", line + 3);
        return st;
    }
    const char *name = mine->backend;
    if (strcmp(name, "auto") == 0)
        name = one_host ? "shm" : "gloo";
    snprintf(line, LINE_BYTES, "use %s %d", name, one_host);
    return store_set(o->store, key, line, strlen(line));
}

static status open_backend(const char *name, const process_group_ops **out)
{
    if (strcmp(name, "shm") == 0) {
        *out = &shm_ops;
        return STATUS_OK;
    }
    return module_open(name, out);
}

status backend_choice_make(const process_group_options *o, backend_choice *out)
{
    int64_t deadline_ns = clock_deadline_ns(o->timeout_ms);
    char key[64], line[LINE_BYTES], name[NAME_BYTES];
    int64_t number = 0;
    int one_host = 0;
    backend_choice choice = {0};
    snprintf(key, sizeof key, "pg/created/%d", o->rank);
    TRY(store_add(o->store, key, 1, &number));
    snprintf(choice.prefix, sizeof choice.prefix, "pg/%" PRId64 "/", number);

    member mine = {.world_size = o->world_size, .shared_bytes = o->shared_bytes};
    snprintf(mine.backend, sizeof mine.backend, "%s", o->backend);
    describe_place(mine.place);
    snprintf(key, sizeof key, "%smember/%d", choice.prefix, o->rank);
    snprintf(line, sizeof line, "%s %d %" PRIu64 " %s", mine.backend, mine.world_size,
             mine.shared_bytes, mine.place);
    if (o->rank == 0) {
        TRY(plan_and_publish(o, choice.prefix, &mine, deadline_ns, line));
    } else {
        TRY(store_set(o->store, key, line, strlen(line)));
        snprintf(key, sizeof key, "%splan", choice.prefix);
        status st = backend_choice_fetch(o->store, key, deadline_ns, line, sizeof line);
        if (st != STATUS_OK)
            return status_context(st, "rank 0 has not created its process group");
    }
    if (strncmp(line, "no ", 3) == 0)
        return FAIL(STATUS_INVALID, "%s", line + 3);
    if (sscanf(line, "use %31s %d", name, &one_host) != 2)
        return FAIL(STATUS_PEER, "rank 0 plans '%.100s'", line);
    TRY(backend_choice_check(name));
    TRY(open_backend(name, &choice.ops));
    choice.one_host = one_host != 0;
    *out = choice;
    return STATUS_OK;
}
