#include "app/bench/all_reduce_report.h"

#include <math.h>

status all_reduce_report_open(FILE *out, int world_size, all_reduce_report *report)
{
    *report = (all_reduce_report){.out = out, .world_size = world_size, .rows = json_array()};
    if (report->rows == NULL)
        return FAIL(STATUS_NO_MEMORY, "the results");
    if (out == NULL)
        return STATUS_OK;
    fprintf(out, "#\n#%55s%38s\n", "out-of-place", "in-place");
    fprintf(out, "#%11s%14s%8s%8s%7s", "size", "count", "type", "redop", "root");
    for (int way = 0; way < 2; way++)
        fprintf(out, "%9s%8s%8s%7s", "time", "algbw", "busbw", "#wrong");
    fprintf(out, "\n#%11s%14s%23s", "(B)", "(elements)", "");
    for (int way = 0; way < 2; way++)
        fprintf(out, "%9s%8s%8s%7s", "(us)", "(GB/s)", "(GB/s)", "");
    fputc('\n', out);
    fflush(out);
    return STATUS_OK;
}

/* Two significant places at least, in the column's width. */
static void print_time(FILE *out, double us)
{
    fprintf(out, "%9.*f", us < 100 ? 2 : us < 10000 ? 1 : 0, us);
}

static void print_way(all_reduce_report *r, size_t size_bytes, const all_reduce_time *t)
{
    print_time(r->out, t->mean_s * 1e6);
    fprintf(r->out, "%8.2f%8.2f%7lld", all_reduce_algbw(size_bytes, t->mean_s),
            all_reduce_busbw(size_bytes, t->mean_s, r->world_size), (long long)t->wrong);
}

static double rounded(double value, double per_unit)
{
    return round(value * per_unit) / per_unit;
}

static json_t *way_json(const all_reduce_report *r, size_t size_bytes, const all_reduce_time *t)
{
    json_t *object = json_object();
    json_object_set_new(object, "time_us", json_real(rounded(t->mean_s * 1e6, 1e3)));
    if (t->least_s >= 0) {
        json_object_set_new(object, "median_us", json_real(rounded(t->median_s * 1e6, 1e3)));
        json_object_set_new(object, "least_us", json_real(rounded(t->least_s * 1e6, 1e3)));
    }
    json_object_set_new(object, "algbw",
                        json_real(rounded(all_reduce_algbw(size_bytes, t->mean_s), 1e4)));
    json_object_set_new(
        object, "busbw",
        json_real(rounded(all_reduce_busbw(size_bytes, t->mean_s, r->world_size), 1e4)));
    json_object_set_new(object, "wrong", json_integer(t->wrong));
    return object;
}

void all_reduce_report_row(all_reduce_report *r, const all_reduce_row *row)
{
    if (r->out != NULL) {
        fprintf(r->out, " %11zu%14zu%8s%8s%7d", row->size_bytes, row->count, "float", "sum", -1);
        print_way(r, row->size_bytes, &row->out_of_place);
        print_way(r, row->size_bytes, &row->in_place);
        fputc('\n', r->out);
        fflush(r->out);
    }
    r->busbw_sum += all_reduce_busbw(row->size_bytes, row->out_of_place.mean_s, r->world_size) +
                    all_reduce_busbw(row->size_bytes, row->in_place.mean_s, r->world_size);
    r->wrong += row->out_of_place.wrong + row->in_place.wrong;
    json_t *object = json_object();
    json_object_set_new(object, "bytes", json_integer((json_int_t)row->size_bytes));
    json_object_set_new(object, "count", json_integer((json_int_t)row->count));
    json_object_set_new(object, "type", json_string("float"));
    json_object_set_new(object, "redop", json_string("sum"));
    json_object_set_new(object, "root", json_integer(-1));
    json_object_set_new(object, "out_of_place", way_json(r, row->size_bytes, &row->out_of_place));
    json_object_set_new(object, "in_place", way_json(r, row->size_bytes, &row->in_place));
    json_array_append_new(r->rows, object);
}

static double mean_busbw(const all_reduce_report *r)
{
    size_t n = 2 * json_array_size(r->rows);
    return n > 0 ? r->busbw_sum / (double)n : 0;
}

void all_reduce_report_end(all_reduce_report *r)
{
    if (r->out == NULL)
        return;
    fprintf(r->out, "# Wrong elements    : %lld %s\n", (long long)r->wrong,
            r->wrong == 0 ? "OK" : "FAILED");
    fprintf(r->out, "# Avg bus bandwidth : %.4g GB/s\n", mean_busbw(r));
    fflush(r->out);
}

json_t *all_reduce_report_json(const all_reduce_report *r)
{
    json_t *object = json_object();
    json_object_set(object, "rows", r->rows);
    json_object_set_new(object, "mean_busbw", json_real(rounded(mean_busbw(r), 1e4)));
    json_object_set_new(object, "wrong", json_integer(r->wrong));
    return object;
}

void all_reduce_report_close(all_reduce_report *r)
{
    json_decref(r->rows);
    *r = (all_reduce_report){.out = NULL};
}
