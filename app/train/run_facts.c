#include "app/train/run_facts.h"

#include "app/common/json_value.h"
#include "app/common/machine.h"
#include "app/common/version.h"
#include "base/memory.h"
#include "kernels/ops.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { HOST_BYTES = 64 };

void run_facts_add(json_t *object, const rank_context *rank)
{
    const rank_settings *s = &rank->settings;
    const struct {
        const char *key;
        json_t *value;
    } all[] = {
        {"system", json_string("mnist_ddp " MNIST_DDP_VERSION)},
        {"mode", json_string(strategy_of(rank->opts)->name)},
        {"world", json_integer(rank->place.world_size)},
        {"replicas", json_integer(s->replicas)},
        {"model", json_string(model_kind_name(s->model))},
        {"parameters", json_integer((json_int_t)network_count(rank->net))},
        {"backend", json_string(strategy_backend(rank->strategy))},
        {"device", json_string(rank->dev->ops->name)},
        {"threads", json_integer(s->threads)},
        {"precision", json_string(precision_name(rank->dev->precision))},
        {"optimizer_name", json_string(optimizer_kind_name(s->optimizer.kind))},
        {"lr", json_value_rounded(s->schedule.lr, 9)},
        {"weight_decay", json_value_rounded(s->weight_decay, 9)},
        {"schedule", json_string(schedule_kind_name(rank->schedule.options.kind))},
        {"seed", json_integer(rank->opts->seed)},
        {"batch", json_integer(s->batch_size)},
        {"global_batch", json_integer(rank_context_global_batch(rank))},
    };
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        json_object_set_new(object, all[i].key, all[i].value);
    if (rank->place.round > 0)
        json_object_set_new(object, "elastic_batch",
                            json_string(rank_settings_elastic_batch(rank->opts)));
    if (strcmp(rank->opts->comm_hook, "none") != 0)
        json_object_set_new(object, "comm_hook", json_string(rank->opts->comm_hook));
    if (rank->dev->stream != NULL)
        json_object_set_new(object, "gpu", json_value_text(rank->dev->description));
}

void run_facts_add_place(json_t *object, const rank_context *rank)
{
    machine m;
    machine_read(&m);
    const char *data = rank->location.embedded ? "generated digits" : rank->location.folder;
    json_object_set_new(object, "data_folder", json_value_text(data));
    json_object_set_new(object, "data_digest",
                        json_sprintf("%016llx", (unsigned long long)rank->data_digest));
    json_object_set_new(object, "train_images", json_integer(rank->train_set.count));
    json_object_set_new(object, "val_images", json_integer(rank->val_set.count));
    json_object_set_new(object, "test_images", json_integer(rank->test_set.count));
    json_object_set_new(object, "operating_system", json_value_text(m.system));
    json_object_set_new(object, "kernel", json_value_text(m.kernel));
    json_object_set_new(object, "processor", json_value_text(m.processor));
    json_object_set_new(object, "cores", json_integer(sysconf(_SC_NPROCESSORS_ONLN)));
    json_object_set_new(object, "memory_bytes", json_integer(m.memory_bytes));
}

/* Adds a name that is not yet in the list. */
static void add_host(json_t *list, const char *name)
{
    for (size_t i = 0; i < json_array_size(list); i++)
        if (strcmp(json_string_value(json_array_get(list, i)), name) == 0)
            return;
    json_array_append_new(list, json_value_text(name));
}

/* Every rank's name, in the order of the ranks: each fills its own place of `all`, which is zeroed.
 */
static status gather_names(const rank_context *rank, const char own[HOST_BYTES], char *all)
{
    size_t size_bytes = (size_t)HOST_BYTES * (size_t)rank->place.world_size;
    memcpy(all + (size_t)HOST_BYTES * (size_t)rank->place.rank, own, HOST_BYTES);
    return process_group_all_reduce(rank->group, all, size_bytes / sizeof(int64_t), DTYPE_I64,
                                    REDUCE_SUM, NULL);
}

status run_facts_add_hosts(json_t *object, const rank_context *rank)
{
    char own[HOST_BYTES] = "", *all = NULL;
    const rendezvous_place *place = &rank->place;
    if (gethostname(own, sizeof own - 1) != 0)
        strcpy(own, "?");
    json_t *list = json_array();
    status st = STATUS_OK;
    if (rank_context_is_one_host(rank)) {
        add_host(list, own);
    } else {
        st = memory_alloc((size_t)HOST_BYTES * (size_t)place->world_size, (void **)&all);
        if (st == STATUS_OK)
            st = gather_names(rank, own, all);
        for (int i = 0; i < place->world_size && st == STATUS_OK; i++)
            add_host(list, all + (size_t)HOST_BYTES * (size_t)i);
    }
    free(all);
    json_object_set_new(object, "hosts", list);
    return st;
}
