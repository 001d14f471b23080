#include "dist/process_group/backend_choice.h"

#include "base/clock.h"
#include "base/file.h"
#include "base/host.h"
#include "base/module.h"
#include "base/text.h"
#include "dist/collective/process_group_ops.h"
#include "dist/membership/keys.h"
#include "dist/membership/membership.h"
#include "dist/store/store.h"
#include "kernels/device.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

/* The ranks of a group meet (membership.h). Each says what it asks for and where it runs; the
 * outcome is "<backend> <what is between hosts> <host of rank 0> <host of rank 1> ...".
 */

enum { LINE_BYTES = 1024, PLACE_BYTES = 256, NAME_BYTES = 32 };

/* What a rank says of itself. */
typedef struct member {
    char backend[NAME_BYTES];
    uint64_t shared_bytes;
    char gpu[DEVICE_ID_BYTES]; /* NO_GPU, or an id that no other GPU of the host has */
    char place[PLACE_BYTES];   /* equal if ranks can share memory and see each other's process */
} member;

static const char NO_GPU[] = "-";

/* A backend is a row here. */
typedef struct backend_row {
    const char *name;
    const process_group_ops *ops; /* if it is linked in */
    const char *module;           /* which holds it else; NULL: nobody opens it by its name */
    const char *note;             /* after the name, in the list of all */
} backend_row;

static const backend_row BACKENDS[] = {
    {"auto", NULL, NULL, ""},
    {"shm", &shm_ops, NULL, ""},
    {"gloo", NULL, "gloo", ""},
    {"nccl", NULL, "cuda", ""},
    {"mpi", NULL, "mpi", ""},
    {"hierarchical", &hierarchical_ops, NULL, ""},
    {"local", NULL, NULL, " for --mode=dp"},
};

enum { N_BACKENDS = sizeof BACKENDS / sizeof BACKENDS[0] };

/* NULL: there is none of that name. */
static const backend_row *find_backend(const char *name)
{
    for (int i = 0; i < N_BACKENDS; i++)
        if (strcmp(name, BACKENDS[i].name) == 0)
            return &BACKENDS[i];
    return NULL;
}

status backend_choice_check(const char *name)
{
    char all[256] = "";
    size_t length = 0;
    if (name != NULL && find_backend(name) != NULL)
        return STATUS_OK;
    for (int i = 0; i < N_BACKENDS; i++)
        length += (size_t)snprintf(all + length, sizeof all - length, "%s%s%s",
                                   i == 0               ? ""
                                   : i < N_BACKENDS - 1 ? ", "
                                                        : ", and ",
                                   BACKENDS[i].name, BACKENDS[i].note);
    if (name == NULL)
        return FAIL(STATUS_INVALID, "no backend is named; there are: %s", all);
    return FAIL(STATUS_INVALID, "there is no backend '%.64s'; there are: %s", name, all);
}

status backend_choice_check_cpu(const char *name)
{
    if (strcmp(name, "nccl") != 0)
        return STATUS_OK;
    return FAIL(STATUS_INVALID, "backend nccl is for CUDA devices: say also --device=cuda; on the "
                                "CPU use shm (one host) or gloo (several)");
}

static unsigned long long namespace_of(const char *path)
{
    struct stat info;
    return stat(path, &info) == 0 ? (unsigned long long)info.st_ino : 0;
}

/* STATUS_NO_MEMORY: a guess instead would be another place than the other ranks'. */
static status describe_place(const process_group_options *o, char *place)
{
    char boot[64] = "";
    char *text = NULL;
    size_t size = 0;
    if (o->host != NULL) {
        snprintf(place, PLACE_BYTES, "%s", o->host);
        return STATUS_OK;
    }
    status st = file_read("/proc/sys/kernel/random/boot_id", sizeof boot - 1, &text, &size);
    if (st == STATUS_NO_MEMORY)
        return st;
    if (st == STATUS_OK)
        snprintf(boot, sizeof boot, "%.*s", (int)strcspn(text, "\n"), text);
    else
        gethostname(boot, sizeof boot - 1);
    free(text);
    snprintf(place, PLACE_BYTES, "%s/%llu/%llu/%u", boot, namespace_of("/proc/self/ns/net"),
             namespace_of("/proc/self/ns/pid"), (unsigned)geteuid());
    return STATUS_OK;
}

static status read_member(const char *line, int rank, member *out)
{
    if (sscanf(line, "%31s %" SCNu64 " %47s %255s", out->backend, &out->shared_bytes, out->gpu,
               out->place) != 4)
        return FAIL(STATUS_PEER, "rank %d describes itself as '%.100s'", rank, line);
    return STATUS_OK;
}

/* STATUS_INVALID if a rank does not agree with rank 0. */
static status compare(const member *mine, const member *other, int rank)
{
    if (strcmp(other->backend, mine->backend) != 0)
        return FAIL(STATUS_INVALID, "rank %d asks for backend %s, rank 0 for %s", rank,
                    other->backend, mine->backend);
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

/* Whether two ranks share a host, even if their containers differ. */
static bool same_host(const member *a, const member *b)
{
    size_t length = strcspn(a->place, "/");
    return strncmp(a->place, b->place, length + 1) == 0;
}

/* The lowest rank that has no GPU, or whose GPU a lower rank, *other, has too; n: none. */
static int find_without_gpu(const member *members, int n, int *other)
{
    for (int rank = 0; rank < n; rank++) {
        *other = rank;
        if (strcmp(members[rank].gpu, NO_GPU) == 0)
            return rank;
        for (*other = 0; *other < rank; ++*other)
            if (strcmp(members[*other].gpu, members[rank].gpu) == 0 &&
                same_host(&members[*other], &members[rank]))
                return rank;
    }
    return n;
}

static status refuse_nccl(const member *members, int n, bool one_host)
{
    int other = 0, rank = find_without_gpu(members, n, &other);
    if (rank == n)
        return STATUS_OK;
    if (strcmp(members[rank].gpu, NO_GPU) == 0) {
        (void)backend_choice_check_cpu("nccl");
        return status_context(STATUS_INVALID, "rank %d computes on the CPU", rank);
    }
    return FAIL(STATUS_INVALID,
                "ranks %d and %d are both on GPU %s, and nccl needs one GPU per rank: use "
                "--backend=%s, fewer ranks, or name other GPUs with --devices",
                other, rank, members[rank].gpu, one_host ? "shm" : "gloo");
}

/* Sets hosts[0..n-1], numbered by their lowest rank; returns how many there are. */
static int number_hosts(const member *members, int n, int *hosts)
{
    int count = 0;
    for (int rank = 0; rank < n; rank++) {
        int same = 0;
        while (strcmp(members[same].place, members[rank].place) != 0)
            same++;
        hosts[rank] = same < rank ? hosts[same] : count++;
    }
    return count;
}

static const char *choose_name(const member *members, int n, int n_hosts)
{
    int other;
    if (strcmp(members[0].backend, "hierarchical") == 0 && n_hosts == n)
        return "gloo"; /* no host has two ranks: its levels would only cost */
    if (strcmp(members[0].backend, "auto") != 0)
        return members[0].backend;
    if (find_without_gpu(members, n, &other) == n)
        return "nccl";
    return n_hosts == 1 ? "shm" : n_hosts < n ? "hierarchical" : "gloo";
}

/* Makes one outcome of what all ranks say. */
static status choose(const member *members, int n, int *hosts, char **outcome)
{
    text_stream text;
    for (int rank = 1; rank < n; rank++)
        TRY(compare(&members[0], &members[rank], rank));
    int n_hosts = number_hosts(members, n, hosts);
    if (strcmp(members[0].backend, "nccl") == 0)
        TRY(refuse_nccl(members, n, n_hosts == 1));
    TRY(text_stream_open(&text));
    fprintf(text.file, "%s gloo", choose_name(members, n, n_hosts));
    for (int rank = 0; rank < n; rank++)
        fprintf(text.file, " %d", hosts[rank]);
    return text_stream_close(&text, outcome, NULL);
}

/* A meeting's compare(). */
static status compare_all(void *ctx, char *const records[], char **outcome)
{
    int n = *(const int *)ctx;
    status st = STATUS_OK;
    member *members = calloc((size_t)n, sizeof *members);
    int *hosts = calloc((size_t)n, sizeof *hosts);
    if (members == NULL || hosts == NULL)
        st = FAIL(STATUS_NO_MEMORY, "what %d ranks say", n);
    for (int rank = 0; rank < n && st == STATUS_OK; rank++)
        st = read_member(records[rank], rank, &members[rank]);
    if (st == STATUS_OK)
        st = choose(members, n, hosts, outcome);
    free(members);
    free(hosts);
    return st;
}

/* The id in one word, as it travels. */
static void describe_gpu(const device *dev, char *gpu)
{
    bool has = dev != NULL && dev->stream != NULL && dev->id[0] != '\0';
    snprintf(gpu, DEVICE_ID_BYTES, "%s", has ? dev->id : NO_GPU);
    for (char *c = gpu; *c != '\0'; c++)
        if (isspace((unsigned char)*c))
            *c = '_';
}

static status open_backend(const char *name, const process_group_ops **out)
{
    const module *found = NULL;
    const backend_row *row = find_backend(name);
    status st = STATUS_OK;
    if (row == NULL || (row->ops == NULL && row->module == NULL))
        return FAIL(STATUS_PEER, "the ranks' choice of a backend is '%.32s'", name);
    if (row->ops == NULL)
        st = module_open(row->module, &found);
    if (found != NULL && found->process_group == NULL)
        st = FAIL(STATUS_NO_MODULE, "module %s holds no backend", row->module);
    if (st != STATUS_OK)
        return status_context(st, "backend %s", name);
    *out = row->ops != NULL ? row->ops : found->process_group;
    return STATUS_OK;
}

static status describe_self(const process_group_options *o, char line[LINE_BYTES])
{
    char gpu[DEVICE_ID_BYTES], place[PLACE_BYTES];
    describe_gpu(o->device, gpu);
    TRY(describe_place(o, place));
    snprintf(line, LINE_BYTES, "%s %" PRIu64 " %s %s", o->backend, o->shared_bytes, gpu, place);
    return STATUS_OK;
}

/* The ranks' outcome; `out` is as it was if it makes no sense. */
static status read_outcome(const char *text, int n, backend_choice *out)
{
    char name[NAME_BYTES], between[NAME_BYTES];
    int length = 0, highest = -1;
    backend_choice choice = *out;
    if (sscanf(text, "%31s %31s%n", name, between, &length) != 2)
        return FAIL(STATUS_PEER, "the ranks' choice of a backend makes no sense");
    TRY(open_backend(name, &choice.ops));
    if (choice.ops == &hierarchical_ops)
        TRY(open_backend(between, &choice.between));
    choice.hosts = calloc((size_t)n, sizeof *choice.hosts);
    if (choice.hosts == NULL)
        return FAIL(STATUS_NO_MEMORY, "the hosts of %d ranks", n);
    text += length;
    for (int rank = 0; rank < n; rank++) {
        char *end = NULL;
        long host = strtol(text, &end, 10);
        if (end == text || host < 0 || host > highest + 1) {
            free(choice.hosts);
            return FAIL(STATUS_PEER, "the ranks' choice of a backend names no host of rank %d",
                        rank);
        }
        choice.hosts[rank] = (int)host;
        highest = host > highest ? (int)host : highest;
        text = end;
    }
    choice.one_host = highest == 0;
    *out = choice;
    return STATUS_OK;
}

status backend_choice_make(const process_group_options *o, backend_choice *out)
{
    char line[LINE_BYTES], *outcome = NULL;
    int64_t number = 0;
    int n = o->world_size;
    backend_choice choice = {0};
    meeting how = {.record = line,
                   .deadline_ns = clock_deadline_ns(process_group_patience_ms(o)),
                   .late = "has not created its process group",
                   .compare = compare_all,
                   .ctx = &n};
    if (o->prefix == NULL)
        TRY(store_add(o->store, keys_make("", KEYS_CREATED, o->rank).text, 1, &number));
    if (o->prefix != NULL)
        snprintf(choice.prefix, sizeof choice.prefix, "%s", o->prefix);
    else
        snprintf(choice.prefix, sizeof choice.prefix, "pg/%" PRId64 "/", number);
    membership ranks = {.store = o->store,
                        .prefix = choice.prefix,
                        .member = o->rank,
                        .n = n,
                        .noun = "rank",
                        .of_job = o->prefix == NULL,
                        .size_name = "world_size"};
    TRY(describe_self(o, line));
    TRY(membership_meet(&ranks, &how, &outcome));
    status st = read_outcome(outcome, n, &choice);
    free(outcome);
    if (st == STATUS_OK)
        *out = choice;
    return st;
}

enum { PATH_BYTES = 4096, FILE_LINE_BYTES = 2048, WORDS_BYTES = 256 };

/* Whether a line of the file is "NAME=...", as NCCL reads it. */
static bool is_set_in(const char *path, const char *name)
{
    char line[FILE_LINE_BYTES];
    size_t length = strlen(name);
    bool found = false;
    FILE *file = fopen(path, "re");
    if (file == NULL)
        return false;
    while (!found && fgets(line, sizeof line, file) != NULL)
        found = strncmp(line, name, length) == 0 && line[length] == '=';
    fclose(file);
    return found;
}

static bool is_set(const char *name)
{
    char path[PATH_BYTES] = "";
    const char *own = environment_text("NCCL_CONF_FILE");
    const struct passwd *user = getpwuid(getuid());
    if (own != NULL)
        snprintf(path, sizeof path, "%s", own);
    else if (user != NULL && user->pw_dir != NULL)
        snprintf(path, sizeof path, "%s/.nccl.conf", user->pw_dir);
    return getenv(name) != NULL || is_set_in(path, name) || is_set_in("/etc/nccl.conf", name);
}

static status set(const char *name, const char *value)
{
    if (is_set(name) || setenv(name, value, 1) == 0)
        return STATUS_OK;
    return FAIL(STATUS_NO_MEMORY, "set %s: %s", name, strerror(errno));
}

/* NCCL truncates the file that it opens. So if stderr is a file, NCCL gets another one beside it. A
 * % in the name begins one of NCCL's patterns. */
static void name_log(char *out, size_t size_bytes)
{
    struct stat about;
    char path[PATH_BYTES / 2];
    size_t used = 0;
    snprintf(out, size_bytes, "/dev/stderr");
    if (fstat(STDERR_FILENO, &about) != 0 || !S_ISREG(about.st_mode))
        return;
    ssize_t length = readlink("/proc/self/fd/2", path, sizeof path - 1);
    if (length < 0)
        return;
    path[length] = '\0';
    for (const char *c = path; *c != '\0' && used + 2 < size_bytes; c++) {
        out[used++] = *c;
        if (*c == '%')
            out[used++] = '%';
    }
    snprintf(out + used, size_bytes - used, ".nccl.%%p");
}

status nccl_settings_apply(bool nvls)
{
    char log[PATH_BYTES + 16];
    if (!nvls && !is_set("NCCL_ALGO"))
        TRY(set("NCCL_NVLS_ENABLE", "0"));
    if (!is_set("NCCL_DEBUG"))
        return STATUS_OK;
    name_log(log, sizeof log);
    return set("NCCL_DEBUG_FILE", log);
}

static bool has_word(const char *list, const char *word)
{
    size_t length;
    for (const char *one; (one = comma_list_next(&list, &length)) != NULL;)
        if (length == strlen(word) && strncasecmp(one, word, length) == 0)
            return true;
    return false;
}

nccl_nvls nccl_settings_nvls(void)
{
    const char *enable = getenv("NCCL_NVLS_ENABLE"), *algo = environment_text("NCCL_ALGO");
    if (enable != NULL && strcmp(enable, "0") == 0)
        return NCCL_NVLS_OFF;
    if (algo == NULL)
        return NCCL_NVLS_ALLOWED;
    if (strpbrk(algo, ":;") != NULL || strlen(algo) >= WORDS_BYTES)
        return NCCL_NVLS_UNKNOWN; /* lists by function */
    bool excludes = algo[0] == '^';
    const char *list = algo + (excludes ? 1 : 0);
    bool nvls = has_word(list, "NVLS"), tree = has_word(list, "NVLSTree");
    if (nvls != tree)
        return NCCL_NVLS_UNKNOWN; /* it depends on the number of nodes */
    return nvls == excludes ? NCCL_NVLS_OFF : NCCL_NVLS_ALLOWED;
}

void nccl_settings_version(char out[NCCL_VERSION_BYTES])
{
    const module *cuda = NULL;
    out[0] = '\0';
    if (module_open("cuda", &cuda) == STATUS_OK && cuda->process_group != NULL &&
        cuda->process_group->version != NULL)
        cuda->process_group->version(out, NCCL_VERSION_BYTES);
}
