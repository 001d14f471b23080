#include "data/sampler.h"
#include "app/common/commands.h"
#include "app/common/exit_codes.h"
#include "app/common/json_value.h"
#include "base/memory.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

static status print_json(const sampler_plan *plan, const uint32_t *indices, uint32_t shown)
{
    json_t *list = json_array();
    for (uint32_t i = 0; i < shown; i++)
        json_array_append_new(list, json_integer(indices[i]));
    return json_value_print(json_pack("{s:o, s:i, s:i}", "indices", list, "padded",
                                      (int)plan->padded, "dropped", (int)plan->dropped));
}

/* Says what the indices are, not in their stream. */
static void describe(const sampler_options *s, const sampler_plan *plan, int64_t epoch)
{
    fprintf(stderr,
            "rank %d of %d, %u samples, seed %" PRIu64 " + epoch %" PRId64 ": %u indices per rank, "
            "%u padded, %u dropped\n",
            s->rank, s->world_size, s->samples, s->seed, epoch, plan->per_rank, plan->padded,
            plan->dropped);
}

static void print_text(const uint32_t *indices, uint32_t shown)
{
    for (uint32_t i = 0; i < shown; i++)
        printf("%u\n", indices[i]);
}

int sampler_command(const options *o)
{
    sampler_options s = {.samples = (uint32_t)o->sampler.samples,
                         .rank = (int)o->rank,
                         .world_size = o->world_size < 0 ? 1 : (int)o->world_size,
                         .seed = (uint64_t)o->seed,
                         .shuffle = o->shuffle,
                         .drop_last = o->drop_last};
    sampler_plan plan;
    uint32_t *indices = NULL;
    status st = sampler_check(&s, &plan);
    if (st == STATUS_OK)
        st = memory_alloc(sizeof *indices * plan.per_rank, (void **)&indices);
    if (st == STATUS_OK)
        st = sampler_indices(&s, o->sampler.epoch, indices);
    if (st == STATUS_OK) {
        uint32_t shown = plan.per_rank;
        if (o->sampler.head >= 0 && o->sampler.head < (int64_t)shown)
            shown = (uint32_t)o->sampler.head;
        if (!o->json && !o->quiet)
            describe(&s, &plan, o->sampler.epoch);
        if (o->json)
            st = print_json(&plan, indices, shown);
        else
            print_text(indices, shown);
    }
    free(indices);
    return st == STATUS_OK ? EXIT_SUCCESS : exit_code_failed(st, EXIT_CODE_USAGE);
}
