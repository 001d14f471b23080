#include "app/bench/collective_table.h"

#include "app/common/json_value.h"
#include "app/common/version.h"

#include <string.h>

static const char *const TYPE_WORDS[DTYPE_COUNT] = {
    [DTYPE_F32] = "float",     [DTYPE_F64] = "double", [DTYPE_I64] = "int64",
    [DTYPE_BF16] = "bfloat16", [DTYPE_F16] = "half",   [DTYPE_U8] = "uint8",
};

const char *collective_type_word(dtype type)
{
    return (size_t)type < DTYPE_COUNT ? TYPE_WORDS[type] : NULL;
}

bool collective_type_find(const char *word, dtype *out)
{
    for (int type = 0; type < DTYPE_COUNT; type++)
        if (strcmp(TYPE_WORDS[type], word) == 0) {
            *out = (dtype)type;
            return true;
        }
    return false;
}

bool collective_op_find(const char *word, reduce_op *out)
{
    for (int op = 0; op < REDUCE_OP_COUNT; op++)
        if (strcmp(reduce_op_name((reduce_op)op), word) == 0) {
            *out = (reduce_op)op;
            return true;
        }
    return false;
}

void collective_table_head(const collective_table *t, const collective_setup *setup)
{
    FILE *out = t->out;
    const options *o = setup->opts;
    if (out == NULL)
        return;
    fprintf(out,
            "# mnist_ddp %s, bench %s: %d rank%s, backend %s, device %s\n"
            "# sizes %s to %s, factor %g; %lld iterations after %lld of warm-up, each waited for; "
            "means over ranks\n",
            MNIST_DDP_VERSION, o->benchmark, t->world_size, t->world_size == 1 ? "" : "s",
            setup->backend, setup->device_name, o->bench.minbytes, o->bench.maxbytes,
            o->bench.stepfactor, (long long)o->bench.iters, (long long)o->bench.warmup_iters);
    if (setup->emulation != NULL)
        fprintf(out, "# NO GPU: %s\n", setup->emulation);
    fprintf(out, "#\n#%61s%28s\n", "out-of-place", "in-place");
    fprintf(out, "#%10s %10s %8s %5s %4s", "size", "count", "type", "redop", "root");
    for (int way = 0; way < 2; way++)
        fprintf(out, " %7s %6s %6s %6s", "time", "algbw", "busbw", "#wrong");
    fprintf(out, "\n#%10s %10s%20s", "(B)", "(elements)", "");
    fprintf(out, " %7s %6s %6s%7s", "(us)", "(GB/s)", "(GB/s)", "");
    fprintf(out, " %7s %6s %6s\n", "(us)", "(GB/s)", "(GB/s)");
    fflush(out);
}

static double busbw(const collective_table *t, const collective_row *row,
                    const collective_time *way)
{
    return collective_busbw(t->what.kind, row->size_bytes, way->mean_s, t->world_size);
}

static void print_way(const collective_table *t, const collective_row *row,
                      const collective_time *way)
{
    double us = way->mean_s * 1e6;
    if (!way->exists) {
        fprintf(t->out, " %7s %6s %6s %6s", "N/A", "N/A", "N/A", "N/A");
        return;
    }
    /* two significant places at least, in the column's width */
    fprintf(t->out, " %7.*f", us < 100 ? 2 : us < 10000 ? 1 : 0, us);
    fprintf(t->out, " %6.2f %6.2f", collective_algbw(row->size_bytes, way->mean_s),
            busbw(t, row, way));
    if (way->wrong < 0)
        fprintf(t->out, " %6s", "N/A");
    else
        fprintf(t->out, " %6lld", (long long)way->wrong);
}

/* -1 if the operation has none, as nccl-tests writes it. */
static int root_of(const collective_table *t)
{
    return collective_has_root(t->what.kind) && t->what.kind != COLLECTIVE_SEND ? t->what.root : -1;
}

static const char *redop_of(const collective_table *t)
{
    return collective_reduces(t->what.kind) ? reduce_op_name(t->what.op) : "none";
}

static void print_row(const collective_table *t, const collective_row *row)
{
    fprintf(t->out, " %10zu %10zu %8s %5s %4d", row->size_bytes, row->count,
            collective_type_word(t->what.type), redop_of(t), root_of(t));
    print_way(t, row, &row->out_of_place);
    print_way(t, row, &row->in_place);
    fputc('\n', t->out);
    fflush(t->out);
}

static json_t *way_json(const collective_table *t, const collective_row *row,
                        const collective_time *way)
{
    if (!way->exists)
        return json_null();
    json_t *object = json_object();
    json_object_set_new(object, "time_us", json_value_rounded(way->mean_s * 1e6, 3));
    if (way->least_s >= 0) {
        json_object_set_new(object, "median_us", json_value_rounded(way->median_s * 1e6, 3));
        json_object_set_new(object, "least_us", json_value_rounded(way->least_s * 1e6, 3));
    }
    json_object_set_new(object, "algbw",
                        json_value_rounded(collective_algbw(row->size_bytes, way->mean_s), 4));
    json_object_set_new(object, "busbw", json_value_rounded(busbw(t, row, way), 4));
    json_object_set_new(object, "wrong", way->wrong < 0 ? json_null() : json_integer(way->wrong));
    return object;
}

void collective_table_add(collective_table *t, const collective_row *row)
{
    const collective_time *ways[] = {&row->out_of_place, &row->in_place};
    if (t->out != NULL)
        print_row(t, row);
    for (int i = 0; i < 2; i++)
        if (ways[i]->exists) {
            t->busbw_sum += busbw(t, row, ways[i]);
            t->wrong += ways[i]->wrong > 0 ? ways[i]->wrong : 0;
            t->checked = t->checked || ways[i]->wrong >= 0;
            t->ways++;
        }
    json_t *object = json_object();
    json_object_set_new(object, "bytes", json_integer((json_int_t)row->size_bytes));
    json_object_set_new(object, "count", json_integer((json_int_t)row->count));
    json_object_set_new(object, "type", json_string(collective_type_word(t->what.type)));
    json_object_set_new(object, "redop", json_string(redop_of(t)));
    json_object_set_new(object, "root", json_integer(root_of(t)));
    json_object_set_new(object, "out_of_place", way_json(t, row, &row->out_of_place));
    json_object_set_new(object, "in_place", way_json(t, row, &row->in_place));
    json_array_append_new(t->rows, object);
}

double collective_table_busbw(const collective_table *t)
{
    return t->ways > 0 ? t->busbw_sum / t->ways : 0;
}

void collective_table_end(const collective_table *t)
{
    if (t->out == NULL)
        return;
    if (t->checked)
        fprintf(t->out, "# Out of bounds values : %lld %s\n", (long long)t->wrong,
                t->wrong == 0 ? "OK" : "FAILED");
    else
        fprintf(t->out, "# Out of bounds values : N/A\n");
    /* Parsers of nccl-tests' output take the bandwidth for the line's last word. */
    fprintf(t->out, "# Avg bus bandwidth    : %g \n#\n# Collective test concluded: %s\n\n#\n",
            collective_table_busbw(t), collective_bench_name(t->what.kind));
    fflush(t->out);
}
