/* A mesh of ranks: two pipelines of two stages. A row lies along pp, a column along dp. */
#include "dist/mesh.h"
#include "app/demo/demo.h"

#include <stdio.h>
#include <string.h>

enum { SPANS_MAX = 256, STEP = 2, FEW_BYTES = 1024 };

static status show_places(demo *d, const mesh *m)
{
    demo_begin(d, "init_device_mesh(\"cpu\", (2, 2), mesh_dim_names=(\"dp\", \"pp\"))");
    demo_say(d,
             "Four ranks lie in two rows and two columns: --mesh=dp=2,pp=2. A row is a pipeline: "
             "each of its ranks has a stage, so together they have one network. The ranks of a "
             "column have the same stage, and other samples.");
    demo_columns(d, "|pp 0|pp 1");
    if (m->model.rank == 0)
        demo_row(d, "dp %d|rank %d|rank %d", m->dp.rank, d->rank, d->rank + 1);
    TRY(demo_show(d));
    demo_begin(d, "Each row and each column is a process group");
    demo_say(d, "So each rank is in three groups, and has a number in each. In PyTorch "
                "mesh.get_group(\"dp\") is the second of them.");
    demo_columns(d, "in the world|along dp|along pp");
    demo_row(d, "rank %d|rank %d of %d|rank %d of %d", d->rank, process_group_rank(m->dp.group),
             process_group_world_size(m->dp.group), process_group_rank(m->model.group),
             process_group_world_size(m->model.group));
    return demo_show(d);
}

static status show_sums(demo *d, const mesh *m)
{
    process_group *groups[] = {m->dp.group, m->model.group, d->group};
    double sums[3];
    for (int i = 0; i < 3; i++) {
        sums[i] = demo_digit(d);
        TRY(process_group_all_reduce(groups[i], &sums[i], 1, DTYPE_F64, REDUCE_SUM, NULL));
    }
    demo_begin(d, "A sum along each axis");
    demo_say(d, "Rank r brings 10 to the power of r. So the digits of a sum say whose numbers are "
                "in it. The two groups along an axis do not wait for each other.");
    demo_columns(d, "|brings|sum along dp|sum along pp|sum of the world");
    demo_row(d, "rank %d|#%.17g|#%.17g|#%.17g|#%.17g", d->rank, demo_digit(d), sums[0], sums[1],
             sums[2]);
    return demo_show(d);
}

/* What rank 0 of a training does in a step. Beside gradients, which are many bytes, a few go to all
 * stages: the loss, and whether somebody wishes to stop. */
static const struct travel {
    const char *axis, *call, *what;
    int64_t least_bytes, most_bytes; /* of a call */
} TRAVELS[] = {
    {"pp", "send", "activations to the next stage", 0, INT64_MAX},
    {"pp", "recv", "their gradients", 0, INT64_MAX},
    {"dp", "all_reduce", "gradients of the stage's weights", FEW_BYTES, INT64_MAX},
    {"pp", "all_reduce", "the wish to stop", 0, FEW_BYTES},
    {"pp", "broadcast", "the loss", 0, FEW_BYTES},
};

static void tell_travel(demo *d, const struct travel *t, const step_span *spans, size_t n)
{
    char key[32];
    int64_t times = 0, bytes = 0;
    for (size_t i = 0; i < n; i++)
        if (strcmp(spans[i].name, t->call) == 0 && spans[i].bytes >= t->least_bytes &&
            spans[i].bytes < t->most_bytes) {
            times++;
            bytes += spans[i].bytes;
        }
    demo_row(d, "%s|%s|#%lld|#%lld|%s", t->axis, t->call, (long long)times, (long long)bytes,
             t->what);
    snprintf(key, sizeof key, "%s_%s", t->axis, t->call);
    demo_fact(d, key, json_integer(bytes));
}

static status show_training(demo *d)
{
    step_span spans[SPANS_MAX];
    demo_begin(d, "What travels along which axis");
    demo_columns(d, "along|call|times|bytes|");
    if (d->rank == 0) {
        TRY(training_run_do(d, "--mode=pipeline --nproc-per-node=4 --mesh=dp=2,pp=2 -- "
                               "--batch-size=32 --epochs=1 --limit=128 --no-save-model"));
        size_t n = training_run_spans(d, STEP, spans, SPANS_MAX);
        demo_say(d, "%s. Below is what rank 0 does in a step, which has 4 micro-batches.",
                 d->child.line);
        for (size_t i = 0; i < sizeof TRAVELS / sizeof TRAVELS[0]; i++)
            tell_travel(d, &TRAVELS[i], spans, n);
    }
    demo_say(d, "Along pp a stage waits for each message, of every micro-batch. Along dp there is "
                "one all_reduce a step, and only of the stage's own gradients. Which axis carries "
                "more bytes depends on the model: --model=cnn and --model=mlp differ.");
    demo_arrow(d, d->rank, d->rank ^ 1, d->rank % 2 == 0 ? "activations" : "their gradients");
    demo_arrow(d, d->rank, d->rank ^ 2, "gradients of stage %d", d->rank % 2);
    return demo_show(d);
}

static status show_all(demo *d, mesh *m)
{
    TRY(mesh_open(m, d->group));
    TRY(show_places(d, m));
    TRY(show_sums(d, m));
    return show_training(d);
}

status mesh_demo(demo *d)
{
    mesh m;
    status_kept cause;
    TRY(mesh_place("dp=2,pp=2", "pp", d->rank, d->world_size, &m));
    status st = show_all(d, &m);
    status_keep(&cause);
    mesh_close(&m);
    status_restore(&cause);
    return st;
}
