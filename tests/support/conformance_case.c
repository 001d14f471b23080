#include "tests/support/conformance_case.h"

#include "base/half.h"
#include "kernels/ops.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { GUARD_BYTES = 64, GUARD = 0xa5, ALIGN = 64, ROUND = 5 };

static bool is_out_of_place(memory_kind kind)
{
    return kind == MEMORY_OUT_OF_PLACE || kind == MEMORY_OUT_IN_HEAP ||
           kind == MEMORY_DEVICE_OUT_OF_PLACE;
}

status arena_open(process_group *group, size_t size_bytes, arena *out)
{
    device *dev = ranks_device();
    arena a = {.size_bytes = size_bytes};
    void *heap = NULL;
    TRY(process_group_alloc(group, size_bytes, &heap));
    a.heap = heap;
    a.in = malloc(size_bytes);
    a.out = malloc(size_bytes);
    a.want = malloc(size_bytes);
    status st = a.in != NULL && a.out != NULL && a.want != NULL
                    ? STATUS_OK
                    : FAIL(STATUS_NO_MEMORY, "arrays of %zu bytes", size_bytes);
    for (int i = 0; i < 2 && dev != NULL && st == STATUS_OK; i++) {
        void *memory = NULL;
        a.stream = dev->stream;
        st = dev->ops->alloc(dev, size_bytes, &memory);
        a.device[i] = memory;
    }
    *out = a;
    return st;
}

void arena_close(arena *a)
{
    for (int i = 0; i < 2; i++)
        if (a->device[i] != NULL)
            ranks_device()->ops->free(ranks_device(), a->device[i]);
    free(a->in);
    free(a->out);
    free(a->want);
    *a = (arena){0};
}

/* How many rows of `count` elements a rank reads and sets. */
typedef struct row_counts {
    int in, out;
} row_counts;

static row_counts rows_of(const conformance_case *what, int rank, int n)
{
    int on_root = what->root == rank;
    const row_counts rows[COLLECTIVE_KIND_COUNT] = {
        [COLLECTIVE_ALL_REDUCE] = {1, 1},
        [COLLECTIVE_BROADCAST] = {1, 1},
        [COLLECTIVE_BARRIER] = {0, 0},
        [COLLECTIVE_REDUCE] = {1, on_root},
        [COLLECTIVE_ALL_GATHER] = {1, n},
        [COLLECTIVE_REDUCE_SCATTER] = {n, 1},
        [COLLECTIVE_GATHER] = {1, on_root * n},
        [COLLECTIVE_SCATTER] = {on_root * n, 1},
        [COLLECTIVE_ALL_TO_ALL] = {n, n},
        [COLLECTIVE_SEND] = {1, 0},
        [COLLECTIVE_RECV] = {0, 1},
    };
    return rows[what->kind];
}

/* Values are made of whole numbers below this. */
static size_t range_of(const conformance_case *what)
{
    if (!collective_reduces(what->kind))
        return 251;
    if (what->op == REDUCE_PROD)
        return 6;
    if (what->op == REDUCE_AVG)
        return 8;
    return dtype_size(what->type) == 2 ? 31 : 101;
}

/* Element p of rank `rank`'s in. Integers, so few that no partial result is rounded, times a unit
 * that a detour through a smaller type would cut off. They repeat after ROUND ranges. */
static double value_of(const conformance_case *what, int rank, size_t p)
{
    static const double units[DTYPE_COUNT] = {1 + 0x1p-12, 1 + 0x1p-30, 0x1p32 + 1, 1, 1, 1};
    size_t range = range_of(what);
    size_t mixed = p * 7 + (size_t)(rank + what->tag) * 13 + p % ROUND * (size_t)rank;
    int number = (int)(mixed % range), middle = what->type == DTYPE_U8 ? 0 : (int)range / 2;
    if (!collective_reduces(what->kind) || what->op != REDUCE_PROD)
        return (double)(number - middle) * units[what->type]; /* sums of bytes wrap */
    return number % 3 == 0 ? 2 : number % 2 == 0 || what->type == DTYPE_U8 ? 1 : -1;
}

/* What a rank puts in: of averages so much that the average is exact. */
static double element_of(const conformance_case *what, int rank, int world_size, size_t p)
{
    bool averages = collective_reduces(what->kind) && what->op == REDUCE_AVG;
    int factor = !averages ? 1 : what->type != DTYPE_U8 ? world_size : 1;
    return value_of(what, rank, p) * factor;
}

static double reduced(const conformance_case *what, int world_size, size_t p)
{
    double scale = what->prescale > 0 ? (double)what->prescale : 1;
    double acc = element_of(what, 0, world_size, p) * scale;
    for (int rank = 1; rank < world_size; rank++) {
        double x = element_of(what, rank, world_size, p) * scale;
        if (what->op == REDUCE_PROD)
            acc *= x;
        else if (what->op == REDUCE_SUM || what->op == REDUCE_AVG)
            acc += x;
        else if (what->op == REDUCE_MIN ? x < acc : x > acc)
            acc = x;
    }
    if (what->op != REDUCE_AVG)
        return acc;
    return dtype_is_float(what->type) ? acc / world_size : (double)((int64_t)acc / world_size);
}

static void put(void *data, dtype type, size_t i, double value)
{
    if (type == DTYPE_F32)
        ((float *)data)[i] = (float)value;
    else if (type == DTYPE_F64)
        ((double *)data)[i] = value;
    else if (type == DTYPE_I64)
        ((int64_t *)data)[i] = (int64_t)value;
    else if (type == DTYPE_U8)
        ((uint8_t *)data)[i] = (uint8_t)(int64_t)value;
    else
        ((uint16_t *)data)[i] =
            type == DTYPE_BF16 ? f32_to_bf16((float)value) : f32_to_f16((float)value);
}

static double get(const void *data, dtype type, size_t i)
{
    if (type == DTYPE_F32)
        return (double)((const float *)data)[i];
    if (type == DTYPE_F64)
        return ((const double *)data)[i];
    if (type == DTYPE_I64)
        return (double)((const int64_t *)data)[i];
    if (type == DTYPE_U8)
        return ((const uint8_t *)data)[i];
    uint16_t bits = ((const uint16_t *)data)[i];
    return (double)(type == DTYPE_BF16 ? bf16_to_f32(bits) : f16_to_f32(bits));
}

typedef double value_fn(const prepared_case *p, int row, size_t i);

/* Element i of what this rank puts in. */
static double given(const prepared_case *p, int row, size_t i)
{
    (void)row;
    return element_of(&p->what, p->rank, p->world_size, i);
}

/* Element i of row `row` of what this rank gets. */
static double wanted(const prepared_case *p, int row, size_t i)
{
    const conformance_case *what = &p->what;
    size_t own = (size_t)p->rank * what->count + i;
    switch (what->kind) {
    case COLLECTIVE_ALL_REDUCE:
    case COLLECTIVE_REDUCE:
        return reduced(what, p->world_size, i);
    case COLLECTIVE_REDUCE_SCATTER:
        return reduced(what, p->world_size, own);
    case COLLECTIVE_BROADCAST:
    case COLLECTIVE_RECV:
        return element_of(what, what->root, p->world_size, i);
    case COLLECTIVE_SCATTER:
        return element_of(what, what->root, p->world_size, own);
    case COLLECTIVE_ALL_TO_ALL:
        return element_of(what, row, p->world_size, own);
    default:
        return element_of(what, row, p->world_size, i); /* all_gather, gather */
    }
}

/* Sets n elements to what `value` says of them, which repeats. */
static void fill(const prepared_case *p, void *data, size_t n, value_fn *value, int row)
{
    size_t size = dtype_size(p->what.type), done = ROUND * range_of(&p->what);
    for (size_t i = 0; i < n && i < done; i++)
        put(data, p->what.type, i, value(p, row, i));
    for (; done < n; done *= 2)
        memcpy((unsigned char *)data + done * size, data,
               (n - done < done ? n - done : done) * size);
}

static void fill_in(const prepared_case *p, void *data)
{
    fill(p, data, p->in_bytes / dtype_size(p->what.type), given, 0);
}

static size_t row_bytes(const conformance_case *what)
{
    return what->count * dtype_size(what->type);
}

size_t conformance_case_bytes(const conformance_case *what, int world_size)
{
    row_counts rows = rows_of(what, what->root, world_size);
    size_t bytes =
        row_bytes(what) * (size_t)(rows.in > rows.out ? rows.in : rows.out) + GUARD_BYTES;
    return (bytes + ALIGN - 1) / ALIGN * ALIGN;
}

/* In place the smaller array is this rank's row of the other. */
static void place(prepared_case *p, unsigned char *in, unsigned char *out)
{
    size_t row = row_bytes(&p->what) * (size_t)p->rank;
    bool both = p->in_bytes > 0 && p->out_bytes > 0;
    if (in == out && both && p->in_bytes < p->out_bytes)
        in += row;
    else if (in == out && both && p->out_bytes < p->in_bytes)
        out += row;
    p->call_in = in;
    p->call_out = out;
}

static void point(const arena *a, prepared_case *p, size_t at)
{
    memory_kind kind = p->what.memory;
    bool apart = is_out_of_place(kind) && p->what.kind != COLLECTIVE_BROADCAST;
    bool in_heap = kind == MEMORY_SYMMETRIC || kind == MEMORY_OUT_IN_HEAP ||
                   (kind == MEMORY_MIXED && p->rank % 2 == 0);
    unsigned char *out = in_heap ? a->heap : a->out;
    place(p, (apart ? a->in : out) + at, out + at);
    p->in = p->call_in;
    p->out = p->call_out;
    p->on_device = kind >= MEMORY_HOST_KINDS && a->stream != NULL;
    if (p->on_device)
        place(p, a->device[apart] + at, a->device[0] + at);
}

/* Between the host's view and the device's; out first, as `in` may lie in it. */
static status copy(const prepared_case *p, bool up)
{
    device *dev = ranks_device();
    if (!p->on_device)
        return STATUS_OK;
    if (up) {
        TRY(dev->ops->upload(dev, p->call_out, p->out, p->out_bytes + GUARD_BYTES));
        return dev->ops->upload(dev, p->call_in, p->in, p->in_bytes);
    }
    if (p->in_bytes > 0)
        TRY(dev->ops->download(dev, p->in, p->call_in, p->in_bytes));
    return dev->ops->download(dev, p->out, p->call_out, p->out_bytes + GUARD_BYTES);
}

status conformance_case_prepare(process_group *group, arena *a, const conformance_case *what,
                                size_t at, prepared_case *out)
{
    prepared_case p = {.what = *what,
                       .memory = a,
                       .rank = process_group_rank(group),
                       .world_size = process_group_world_size(group)};
    row_counts rows = rows_of(what, p.rank, p.world_size);
    if (at + conformance_case_bytes(what, p.world_size) > a->size_bytes)
        return FAIL(STATUS_NO_MEMORY, "a case at %zu needs %zu bytes of %zu", at,
                    conformance_case_bytes(what, p.world_size), a->size_bytes);
    p.in_bytes = row_bytes(what) * (size_t)rows.in;
    p.out_bytes = row_bytes(what) * (size_t)rows.out;
    p.c = (collective){.kind = what->kind,
                       .op = what->op,
                       .type = what->type,
                       .count = what->count,
                       .root = what->root,
                       .tag = what->tag,
                       .prescale = what->prescale};
    point(a, &p, at);
    memset(p.out, GUARD, p.out_bytes + GUARD_BYTES);
    fill_in(&p, p.in);
    TRY(copy(&p, true));
    p.c.in = p.in_bytes > 0 ? p.call_in : NULL;
    p.c.out = p.out_bytes > 0 ? p.call_out : NULL;
    *out = p;
    return STATUS_OK;
}

/* Of an average over NCCL, which divides each element before it adds: at most this far from
 * the exact one. 0: nothing else is rounded. */
static double rounding(const prepared_case *p)
{
    static const double halves[DTYPE_COUNT] = {
        [DTYPE_F32] = 0x1p-24, [DTYPE_F64] = 0x1p-53, [DTYPE_BF16] = 0x1p-9, [DTYPE_F16] = 0x1p-12};
    bool averages = collective_reduces(p->what.kind) && p->what.op == REDUCE_AVG;
    bool divides_first = averages && p->memory->stream != NULL;
    return divides_first ? halves[p->what.type] * 2 * p->world_size * (double)range_of(&p->what)
                         : 0;
}

static bool is_near(const prepared_case *p, const unsigned char *data, size_t size_bytes,
                    size_t *first)
{
    dtype type = p->what.type;
    double far = rounding(p);
    size_t size = dtype_size(type);
    for (*first = 0; *first < size_bytes / size; ++*first)
        if (memcmp(data + *first * size, p->memory->want + *first * size, size) != 0 &&
            !(fabs(get(data, type, *first) - get(p->memory->want, type, *first)) <= far))
            return false;
    return true;
}

static status compare(const prepared_case *p, const char *which, const unsigned char *data,
                      size_t size_bytes)
{
    static const char *const memories[MEMORY_KINDS] = {
        "symmetric", "plain",  "out of place",       "out in heap",
        "mixed",     "device", "device out of place"};
    const conformance_case *what = &p->what;
    size_t i = 0;
    if (memcmp(data, p->memory->want, size_bytes) == 0 || is_near(p, data, size_bytes, &i))
        return STATUS_OK;
    return FAIL(STATUS_INVALID,
                "%s %s of %zu x %s, root %d, %s memory, rank %d of %d: %s[%zu] is %g, want %g",
                collective_kind_name(what->kind),
                collective_reduces(what->kind) ? reduce_op_name(what->op) : "", what->count,
                dtype_name(what->type), what->root, memories[what->memory], p->rank, p->world_size,
                which, i, get(data, what->type, i), get(p->memory->want, what->type, i));
}

static status check_guard(const prepared_case *p)
{
    const unsigned char *guard = p->out + p->out_bytes;
    for (int i = 0; i < GUARD_BYTES; i++)
        if (guard[i] != GUARD)
            return FAIL(STATUS_INVALID, "%s of %zu x %s has written beyond its end",
                        collective_kind_name(p->what.kind), p->what.count,
                        dtype_name(p->what.type));
    return STATUS_OK;
}

status conformance_case_check(prepared_case *p)
{
    size_t row = row_bytes(&p->what), rows = row > 0 ? p->out_bytes / row : 0;
    bool apart = p->in != p->out && (p->in < p->out || p->in >= p->out + p->out_bytes) &&
                 (p->out < p->in || p->out >= p->in + p->in_bytes);
    TRY(copy(p, false));
    for (size_t r = 0; r < rows; r++)
        fill(p, p->memory->want + r * row, p->what.count, wanted, (int)r);
    TRY(compare(p, "out", p->out, p->out_bytes));
    if (apart || p->out_bytes >= p->in_bytes)
        TRY(check_guard(p));
    if (!apart || p->in_bytes == 0)
        return STATUS_OK;
    fill_in(p, p->memory->want);
    return compare(p, "in", p->in, p->in_bytes);
}

status conformance_case_run(process_group *group, arena *a, const conformance_case *what)
{
    prepared_case p;
    TRY(conformance_case_prepare(group, a, what, 0, &p));
    TRY(process_group_run(group, &p.c, p.on_device ? a->stream : NULL));
    return conformance_case_check(&p);
}
