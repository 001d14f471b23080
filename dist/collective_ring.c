#include "dist/collective_ring.h"

#include "base/trace.h"

#include <inttypes.h>

static const char *dtype_name(dtype type)
{
    static const char *const names[] = {"f32", "f64", "i64"};
    return (size_t)type < sizeof names / sizeof names[0] ? names[type] : "?";
}

static const char *op_name(reduce_op op)
{
    static const char *const names[] = {"sum", "min", "max"};
    return (size_t)op < sizeof names / sizeof names[0] ? names[op] : "?";
}

/* NULL where newer ones have taken its place, or it has not come. */
static collective_record *find(collective_ring *ring, uint64_t seq)
{
    collective_record *r = &ring->records[seq % COLLECTIVE_RING_LENGTH];
    return r->what.seq == seq ? r : NULL;
}

void collective_ring_launch(collective_ring *ring, const collective *c, bool on_device,
                            int64_t now_ns)
{
    ring->records[c->seq % COLLECTIVE_RING_LENGTH] = (collective_record){
        .what = *c, .stage = COLLECTIVE_LAUNCHED, .on_device = on_device, .launched_ns = now_ns};
    ring->last = c->seq;
}

void collective_ring_wait(collective_ring *ring, uint64_t seq, int64_t now_ns)
{
    collective_record *r = find(ring, seq);
    if (r == NULL)
        return;
    r->stage = COLLECTIVE_WAITED;
    r->waited_ns = now_ns;
}

static void tell(trace_lane *lane, const collective_record *r, bool ok)
{
    const collective *c = &r->what;
    bool moves = c->kind != COLLECTIVE_BARRIER;
    trace_span span = {.name = collective_kind_name(c->kind),
                       .number_name = "seq",
                       .number = (int64_t)c->seq,
                       .size_bytes = moves ? (int64_t)(c->count * dtype_size(c->type)) : -1,
                       .label = c->label,
                       .begin_ns = r->launched_ns,
                       .end_ns = r->ended_ns,
                       .unfinished = !ok};
    trace_add(lane, &span);
}

void collective_ring_end(collective_ring *ring, uint64_t seq, bool ok, int64_t now_ns)
{
    collective_record *r = find(ring, seq);
    if (r == NULL)
        return;
    r->stage = ok ? COLLECTIVE_DONE : COLLECTIVE_FAILED;
    r->ended_ns = now_ns;
    tell(ring->lane, r, ok);
}

void collective_describe(const collective *c, char *out, size_t size_bytes)
{
    const char *kind = collective_kind_name(c->kind);
    if (c->label != NULL)
        snprintf(out, size_bytes, "%s #%" PRIu64 " (%s)", kind, c->seq, c->label);
    else if (c->kind == COLLECTIVE_BARRIER)
        snprintf(out, size_bytes, "%s #%" PRIu64, kind, c->seq);
    else
        snprintf(out, size_bytes, "%s #%" PRIu64 " (%zu x %s)", kind, c->seq, c->count,
                 dtype_name(c->type));
}

static bool reduces(collective_kind kind)
{
    return kind == COLLECTIVE_ALL_REDUCE || kind == COLLECTIVE_REDUCE ||
           kind == COLLECTIVE_REDUCE_SCATTER;
}

static bool has_root(collective_kind kind)
{
    return kind == COLLECTIVE_BROADCAST || kind == COLLECTIVE_REDUCE || kind == COLLECTIVE_SEND ||
           kind == COLLECTIVE_RECV;
}

static void write_record(const collective_record *r, FILE *file)
{
    static const char *const stages[] = {"launched", "waited", "done", "failed"};
    const collective *c = &r->what;
    fprintf(file, "{\"seq\":%" PRIu64 ",\"kind\":\"%s\"", c->seq, collective_kind_name(c->kind));
    if (reduces(c->kind))
        fprintf(file, ",\"op\":\"%s\"", op_name(c->op));
    if (has_root(c->kind))
        fprintf(file, ",\"root\":%d", c->root);
    if (c->kind != COLLECTIVE_BARRIER)
        fprintf(file, ",\"dtype\":\"%s\",\"count\":%zu,\"bytes\":%zu", dtype_name(c->type),
                c->count, c->count * dtype_size(c->type));
    if (c->label != NULL) /* names of parameters: nothing that JSON would have to escape */
        fprintf(file, ",\"carries\":\"%s\"", c->label);
    fprintf(file,
            ",\"state\":\"%s\",\"on_device\":%s,\"launched_ns\":%" PRId64 ",\"waited_ns\":%" PRId64
            ",\"ended_ns\":%" PRId64 "}\n",
            stages[r->stage], r->on_device ? "true" : "false", r->launched_ns, r->waited_ns,
            r->ended_ns);
}

void collective_ring_write(const collective_ring *ring, FILE *file)
{
    uint64_t kept =
        ring->last < COLLECTIVE_RING_LENGTH ? ring->last : (uint64_t)COLLECTIVE_RING_LENGTH;
    for (uint64_t seq = ring->last - kept + 1; seq <= ring->last; seq++)
        if (ring->records[seq % COLLECTIVE_RING_LENGTH].what.seq == seq)
            write_record(&ring->records[seq % COLLECTIVE_RING_LENGTH], file);
}
