#include "app/train/agreement.h"

#include "app/common/debug_level.h"
#include "app/common/run_files.h"
#include "app/train/rank_context.h"
#include "base/clock.h"
#include "base/digest.h"
#include "base/memory.h"
#include "base/text.h"
#include "dist/membership/membership.h"
#include "kernels/ops.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DIGEST_DIGITS = 16, CORES_BYTES = 17 /* 16 digits and the line's end */ };

#define UNKNOWN "0000000000000000\n"

static const char DATA[] = "data "; /* and a digest */

void agreement_name_data(const rank_context *rank, char out[AGREEMENT_DATA_BYTES])
{
    char folder[AGREEMENT_DATA_BYTES - 64];
    const dataset_location *from = &rank->location;
    printable_copy(PRINTABLE_LINE, from->folder, folder, sizeof folder);
    snprintf(out, AGREEMENT_DATA_BYTES, "%s%016" PRIx64 " (%s%s%s)", DATA, rank->data_digest,
             from->embedded ? "generated digits" : dataset_kind_facts(from->kind)->title,
             from->embedded ? "" : " from ", from->embedded ? "" : folder);
}

/* As one would type it. */
static status describe_options(const options *opts, char *out, size_t size_bytes)
{
    for (size_t i = 0, used = 0; i < options_table_count; i++, used += strlen(out + used)) {
        const option_row *row = &options_table[i];
        char *text = NULL;
        if (row->class < JOB)
            continue;
        TRY(run_config_text(row, opts, &text));
        if (text == NULL)
            snprintf(out + used, size_bytes - used, "no --%s\n", row->name);
        else
            snprintf(out + used, size_bytes - used, "--%s=%s\n", row->name, text);
        free(text);
    }
    return STATUS_OK;
}

status agreement_of_rank(const rank_context *rank, char out[AGREEMENT_BYTES])
{
    static const char *const levels[] = {"off", "info", "detail"};
    const options *o = rank->opts;
    char data[AGREEMENT_DATA_BYTES];
    agreement_name_data(rank, data);
    int n =
        snprintf(out, AGREEMENT_BYTES, "%s\ndevice %s\ndebug %s\ntrace %d\ninit %d\none host %d\n",
                 data, rank->device, levels[debug_level()], o->trace != NULL, o->init != NULL,
                 rank_context_is_one_host(rank));
    return describe_options(o, out + n, AGREEMENT_BYTES - (size_t)n);
}

/* Of the data only the digest counts. */
static bool is_alike(const char *a, const char *b)
{
    size_t length = strcspn(a, "\n"), digest = strlen(DATA) + DIGEST_DIGITS;
    if (strncmp(a, DATA, strlen(DATA)) == 0)
        return strncmp(a, b, digest) == 0;
    return length == strcspn(b, "\n") && strncmp(a, b, length) == 0;
}

/* Adds the line "lr 0.1" to "model cnn, ..."; what has no room is left out. */
static void add(char list[AGREEMENT_LIST_BYTES], const char *line)
{
    size_t used = strlen(list);
    snprintf(list + used, AGREEMENT_LIST_BYTES - used, "%s%.*s", used > 0 ? ", " : "",
             (int)strcspn(line, "\n"), line);
}

static const char *next_line(const char *text)
{
    text += strcspn(text, "\n");
    return text + (*text == '\n');
}

bool agreement_differ(const char *a, const char *b, agreement_difference *out)
{
    *out = (agreement_difference){.of_a = "", .of_b = ""};
    for (; *a != '\0' && *b != '\0'; a = next_line(a), b = next_line(b))
        if (!is_alike(a, b)) {
            add(out->of_a, a);
            add(out->of_b, b);
        }
    out->other_version = *a != *b;
    return out->other_version || out->of_a[0] != '\0';
}

static status compare(int rank, const char *first, const char *other)
{
    agreement_difference found;
    if (!agreement_differ(first, other, &found))
        return STATUS_OK;
    if (found.other_version)
        return FAIL(STATUS_INVALID, "ranks 0 and %d run different versions of mnist_ddp", rank);
    return FAIL(STATUS_INVALID,
                "rank 0 was started with %s, rank %d with %s: give all ranks the same", found.of_a,
                rank, found.of_b);
}

/* A meeting's compare(). The outcome is the numbers of all ranks' cores, which stand before their
 * settings. */
static status compare_all(void *ctx, char *const records[], char **outcome)
{
    int world_size = *(const int *)ctx;
    for (int rank = 0; rank < world_size; rank++)
        if (strlen(records[rank]) < CORES_BYTES)
            return FAIL(STATUS_PEER,
                        "the settings of rank %d make no sense: does something else use this "
                        "store, or another version of mnist_ddp?",
                        rank);
    for (int rank = 1; rank < world_size; rank++) {
        TRY(compare(rank, records[0] + CORES_BYTES, records[rank] + CORES_BYTES));
    }
    char *all = malloc((size_t)world_size * CORES_BYTES + 1);
    if (all == NULL)
        return FAIL(STATUS_NO_MEMORY, "the cores of %d ranks", world_size);
    for (int rank = 0; rank < world_size; rank++)
        memcpy(all + rank * CORES_BYTES, records[rank], CORES_BYTES);
    all[world_size * CORES_BYTES] = '\0';
    *outcome = all;
    return STATUS_OK;
}

static void find_peers(const char *all, int rank, int world_size, cores_peers *out)
{
    const char *own = all + rank * CORES_BYTES;
    cores_peers found = {0};
    if (strlen(all) != (size_t)world_size * CORES_BYTES || strncmp(own, UNKNOWN, CORES_BYTES) == 0)
        return;
    for (int i = 0; i < world_size; i++) {
        if (strncmp(all + i * CORES_BYTES, own, CORES_BYTES) != 0)
            continue;
        found.index += i < rank;
        found.count++;
    }
    *out = found;
}

status agreement_check(const char *settings, store *shared, int rank, int world_size,
                       int64_t timeout_ms, cores_peers *peers)
{
    char record[CORES_BYTES + AGREEMENT_BYTES], *all = NULL;
    const membership ranks = {.store = shared,
                              .prefix = "settings/",
                              .member = rank,
                              .n = world_size,
                              .noun = "rank",
                              .of_job = true};
    const meeting how = {.record = record,
                         .deadline_ns = clock_deadline_ns(timeout_ms),
                         .late = "has not said its settings",
                         .compare = compare_all,
                         .ctx = &world_size};
    ASSERT(strlen(settings) < AGREEMENT_BYTES);
    snprintf(record, sizeof record, "%016" PRIx64 "\n%s", cores_number(), settings);
    TRY(membership_meet(&ranks, &how, &all));
    find_peers(all, rank, world_size, peers);
    free(all);
    return STATUS_OK;
}

/* `host` is room for `count` floats, NULL for a host device: its memory is read where it lies. */
static status hash_array(device *dev, const float *from, size_t count, float *host, uint64_t *hash)
{
    if (host != NULL)
        TRY(dev->ops->download(dev, host, from, count * sizeof *host));
    *hash = lane_hash(*hash, host != NULL ? host : from, count * sizeof *from);
    return STATUS_OK;
}

status agreement_on_state(rank_context *rank, optimizer *opt, uint64_t *out)
{
    const char *names[OPTIMIZER_MAX_STATES];
    float *states[OPTIMIZER_MAX_STATES], *host = NULL;
    bool has_state = opt != NULL && optimizer_steps(opt) > 0;
    size_t n = has_state ? optimizer_states(opt, names, states) : 0;
    size_t all = network_model_count(rank->net);
    size_t count = network_count(rank->net) == all ? all : 0; /* each stage has other parameters */
    uint64_t hash = rank->data_digest;
    if (rank->dev->stream != NULL)
        TRY(memory_alloc(count * sizeof *host, (void **)&host));
    status st = hash_array(rank->dev, network_parameters(rank->net), count, host, &hash);
    for (size_t i = 0; i < n && st == STATUS_OK; i++)
        st = hash_array(rank->dev, states[i], count, host, &hash);
    free(host);
    uint64_t first = *out = hash;
    TRY(st);
    TRY(process_group_broadcast(rank->group, &first, 1, DTYPE_I64, 0, NULL));
    return first == hash
               ? STATUS_OK
               : FAIL(STATUS_DEVICE, "rank %d does not begin with rank 0's parameters and data",
                      rank->place.rank);
}
