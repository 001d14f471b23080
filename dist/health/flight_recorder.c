#include "dist/health/flight_recorder.h"

#include "base/trace.h"

#include <inttypes.h>

/* NULL if newer ones have taken its place, or it has not come. */
static flight_record *find(flight_recorder *recorder, uint64_t number)
{
    flight_record *r = &recorder->records[number % FLIGHT_RECORDER_LENGTH];
    return r->number == number ? r : NULL;
}

uint64_t flight_recorder_launch(flight_recorder *recorder, const collective *c, bool on_device,
                                int64_t now_ns)
{
    uint64_t number = ++recorder->last;
    recorder->records[number % FLIGHT_RECORDER_LENGTH] =
        (flight_record){.number = number,
                        .what = *c,
                        .stage = COLLECTIVE_LAUNCHED,
                        .on_device = on_device,
                        .launched_ns = now_ns};
    return number;
}

void flight_recorder_wait(flight_recorder *recorder, uint64_t number, int64_t now_ns)
{
    flight_record *r = find(recorder, number);
    if (r == NULL)
        return;
    r->stage = COLLECTIVE_WAITED;
    r->waited_ns = now_ns;
}

static void tell(trace_lane *lane, const flight_record *r, bool ok)
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

void flight_recorder_end(flight_recorder *recorder, uint64_t number, bool ok, int64_t now_ns)
{
    flight_record *r = find(recorder, number);
    if (r == NULL)
        return;
    r->stage = ok ? COLLECTIVE_DONE : COLLECTIVE_FAILED;
    r->ended_ns = now_ns;
    tell(recorder->lane, r, ok);
}

static void write_record(const flight_record *r, FILE *file)
{
    static const char *const stages[] = {"launched", "waited", "done", "failed"};
    const collective *c = &r->what;
    fprintf(file, "{\"seq\":%" PRIu64 ",\"kind\":\"%s\"", c->seq, collective_kind_name(c->kind));
    if (collective_reduces(c->kind))
        fprintf(file, ",\"op\":\"%s\"", reduce_op_name(c->op));
    if (collective_has_root(c->kind))
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

void flight_recorder_write(const flight_recorder *recorder, FILE *file)
{
    uint64_t kept =
        recorder->last < FLIGHT_RECORDER_LENGTH ? recorder->last : (uint64_t)FLIGHT_RECORDER_LENGTH;
    for (uint64_t number = recorder->last - kept + 1; number <= recorder->last; number++)
        write_record(&recorder->records[number % FLIGHT_RECORDER_LENGTH], file);
}
