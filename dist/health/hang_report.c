#include "dist/health/hang_report.h"

#include "base/clock.h"
#include "base/memory.h"
#include "base/text.h"
#include "base/trace.h"
#include "dist/membership/keys.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The flight recorder. */

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

/* The report. */

enum { LINE_BYTES = 1024, MOST_NAMED = 4, PROBE_MS = 1000 };

static keys_text key_of(int rank)
{
    return keys_make("", KEYS_SEEN, rank);
}

/* One line, its parts separated by tabs: no text of ours has one. */
static void to_line(const rank_snapshot *s, char *out)
{
    snprintf(out, LINE_BYTES, "%d %d %" PRIu64 " %" PRIu64 "\t%s\t%s\t%s", (int)s->state, s->pid,
             s->entered, s->waits, s->entered_text, s->waits_text, s->doing);
}

/* The text up to the next tab, or to the end; moves *at past it. */
static void take_text(const char **at, char *out)
{
    size_t length = strcspn(*at, "\t");
    snprintf(out, RANK_TEXT_BYTES, "%.*s", (int)length, *at);
    *at += length + ((*at)[length] == '\t');
}

static bool from_line(const char *line, int rank, rank_snapshot *out)
{
    int state = 0;
    rank_snapshot s = {.rank = rank, .peer = -1};
    if (sscanf(line, "%d %d %" SCNu64 " %" SCNu64, &state, &s.pid, &s.entered, &s.waits) != 4)
        return false;
    s.state = (rank_state)state;
    const char *at = line + strcspn(line, "\t");
    at += *at == '\t';
    take_text(&at, s.entered_text);
    take_text(&at, s.waits_text);
    take_text(&at, s.doing);
    *out = s;
    return true;
}

static bool read_page(const hang_report_options *o, int rank, rank_snapshot *out)
{
    return o->folder != NULL && rank_status_read(o->folder, rank, out) == STATUS_OK &&
           out->attempt == o->attempt;
}

/* Does the store answer? If it is out of reach, each call takes the client's whole timeout.
 */
static bool store_answers(const hang_report_options *o)
{
    return o->store != NULL && store_wait(o->store, key_of(o->rank).text, PROBE_MS) == STATUS_OK;
}

static void publish(const hang_report_options *o, const rank_snapshot *s)
{
    char line[LINE_BYTES];
    void *held = NULL;
    size_t size_bytes = 0;
    to_line(s, line);
    if (s->rank == o->rank) /* what a rank says of itself comes first */
        (void)store_set(o->store, key_of(s->rank).text, line, strlen(line));
    else
        (void)store_compare_set(o->store, key_of(s->rank).text, "", line, &held, &size_bytes);
    free(held);
}

/* This rank and those whose pages lie on this host. */
static void look_around(const hang_report_options *o, rank_snapshot *snapshots, bool *known)
{
    for (int rank = 0; rank < o->world_size; rank++)
        known[rank] = rank != o->rank && read_page(o, rank, &snapshots[rank]);
    rank_status_look(o->page, &snapshots[o->rank]);
    known[o->rank] = true;
}

static void ask_others(const hang_report_options *o, rank_snapshot *snapshots, bool *known)
{
    int64_t deadline_ns = clock_deadline_ns(o->wait_ms);
    for (int rank = 0; rank < o->world_size; rank++) {
        void *line = NULL;
        size_t size_bytes = 0;
        if (known[rank])
            continue;
        keys_text key = key_of(rank);
        status st = store_wait(o->store, key.text, clock_remaining_ms(deadline_ns));
        if (st == STATUS_OK)
            st = store_get(o->store, key.text, &line, &size_bytes);
        known[rank] = st == STATUS_OK && from_line(line, rank, &snapshots[rank]);
        free(line);
        if (st != STATUS_OK && st != STATUS_TIMEOUT)
            return;
    }
}

/* The collective that this rank failed in; 0: a send or receive, whose numbers other ranks do not
 * share. */
static uint64_t failed_in(const rank_snapshot *own, const char **text)
{
    bool waits = own->waits_text[0] != '\0';
    *text = waits ? own->waits_text : own->entered_text;
    return waits ? own->waits : own->entered;
}

/* Is `theirs`, a text of collective number `seq` on another rank, of another one than `ours`? */
static bool differs(uint64_t number, const char *theirs, uint64_t seq, const char *ours)
{
    return seq != 0 && number == seq && strcmp(theirs, ours) != 0;
}

/* In words; "" if it runs. */
static const char *process_of(const rank_snapshot *s)
{
    return s->state == RANK_STOPPED ? "is stopped (SIGSTOP, or a debugger) and "
           : s->state == RANK_GONE  ? "is gone, and "
                                    : "";
}

/* The sentence about a rank that has not entered `what`, in which others wait. after_name and
 * after_it say what its process does. */
static void say_missing(const rank_snapshot *s, const char *what, const char *after_name,
                        const char *after_it, char *out, size_t size_bytes)
{
    snprintf(out, size_bytes, "rank %d%s never entered %s; it %swas last %s", s->rank, after_name,
             what, after_it, s->doing);
}

/* What the other side of this rank's send or receive does; false if that may still come. */
static bool explain_peer(const rank_snapshot *own, const rank_snapshot *peer, bool timed_out,
                         char *out, size_t size_bytes)
{
    const char *process = process_of(peer);
    if (process[0] == '\0' && !timed_out && peer->state != RANK_LEFT)
        return false;
    snprintf(out, size_bytes, "rank %d has not done its part of %s; it %swas last %s", peer->rank,
             own->waits_text, process, peer->doing);
    return true;
}

/* How a rank differs from this one; false if it waits too, or may still come. */
static bool explain_one(const rank_snapshot *own, const rank_snapshot *s, bool timed_out, char *out,
                        size_t size_bytes)
{
    const char *ours = NULL, *process = process_of(s);
    uint64_t seq = failed_in(own, &ours);
    bool dead = process[0] != '\0';
    if (own->peer >= 0)
        return own->peer == s->rank && explain_peer(own, s, timed_out, out, size_bytes);
    if (s->state == RANK_LEFT)
        snprintf(out, size_bytes, "rank %d has ended its training and left", s->rank);
    else if (s->entered < seq && (dead || timed_out))
        say_missing(s, ours, "", process, out, size_bytes);
    else if (dead)
        snprintf(out, size_bytes, "rank %d has entered %s, but %swas last %s", s->rank, ours,
                 process, s->doing);
    else if (timed_out && s->state == RANK_WORKS)
        snprintf(out, size_bytes, "rank %d has entered %s, but did not get to it: it was last %s",
                 s->rank, ours, s->doing);
    else
        return false;
    return true;
}

/* Another collective under the number of ours; NULL: the same, or not there. */
static const char *other_collective(const rank_snapshot *own, const rank_snapshot *s)
{
    const char *ours = NULL;
    uint64_t seq = failed_in(own, &ours);
    if (differs(s->waits, s->waits_text, seq, ours))
        return s->waits_text;
    return differs(s->entered, s->entered_text, seq, ours) ? s->entered_text : NULL;
}

/* "4, 5, 6, ..." */
static void list_unknown(const bool *known, int world_size, char *out, size_t size_bytes)
{
    size_t length = 0;
    out[0] = '\0';
    for (int rank = 0; rank < world_size && length + 16 < size_bytes; rank++)
        if (!known[rank])
            length += (size_t)snprintf(out + length, size_bytes - length, "%s%d",
                                       length > 0 ? ", " : "", rank);
    if (length + 16 >= size_bytes)
        snprintf(out + length, size_bytes - length, ", ...");
}

/* A growing list in HANG_REPORT_BYTES; what does not fit is cut. */
typedef struct sentence {
    char *text;
    size_t length;
    int parts;
} sentence;

__attribute__((format(printf, 2, 3))) static void add(sentence *to, const char *fmt, ...)
{
    va_list args;
    char *end = to->text + to->length;
    size_t room = HANG_REPORT_BYTES - to->length;
    snprintf(end, room, "%s", to->parts++ > 0 ? "; " : "");
    va_start(args, fmt);
    vsnprintf(end + strlen(end), room - strlen(end), fmt, args);
    va_end(args);
    to->length += strlen(end);
}

/* Names the first rank that issued another collective; one is enough. */
static void name_mismatch(const hang_report_options *o, const rank_snapshot *snapshots,
                          const bool *known, sentence *to)
{
    const rank_snapshot *own = &snapshots[o->rank];
    const char *ours = NULL;
    (void)failed_in(own, &ours);
    for (int rank = 0; rank < o->world_size; rank++) {
        const char *other = known[rank] ? other_collective(own, &snapshots[rank]) : NULL;
        if (other == NULL)
            continue;
        add(to,
            "rank %d issued %s, but rank %d issued %s: one of them has left out a collective, as "
            "with uneven inputs",
            rank, other, o->rank, ours);
        return;
    }
}

/* answers: the store does, so that every living rank could be heard. */
static void compose(const hang_report_options *o, const rank_snapshot *snapshots, const bool *known,
                    bool answers, char *out)
{
    char one[4 * RANK_TEXT_BYTES], unknown[96];
    const char *ours = NULL;
    sentence to = {.text = out};
    int named = 0;
    bool timed_out = o->why == STATUS_TIMEOUT;
    uint64_t seq = failed_in(&snapshots[o->rank], &ours);
    name_mismatch(o, snapshots, known, &to);
    for (int rank = 0; rank < o->world_size; rank++) {
        const rank_snapshot *s = &snapshots[rank];
        if (rank == o->rank || !known[rank] || other_collective(&snapshots[o->rank], s) != NULL ||
            !explain_one(&snapshots[o->rank], s, timed_out, one, sizeof one))
            continue;
        if (named++ < MOST_NAMED)
            add(&to, "%s", one);
    }
    if (named > MOST_NAMED)
        add(&to, "%d more ranks are missing as well", named - MOST_NAMED);
    list_unknown(known, o->world_size, unknown, sizeof unknown);
    if (unknown[0] != '\0' && timed_out)
        add(&to, "no word from rank %s: %s", unknown,
            answers ? "stopped, or out of reach" : "the store does not answer");
    bool may_be_cut = timed_out || o->why == STATUS_PEER;
    if (to.parts == 0 && unknown[0] == '\0' && seq != 0 && may_be_cut)
        add(&to, "all ranks have entered %s: the network between them is slow or cut", ours);
}

void hang_report_explain(const hang_report_options *o, char *out)
{
    rank_snapshot *snapshots = NULL;
    bool *known = NULL;
    size_t n = (size_t)o->world_size;
    out[0] = '\0';
    if (o->page == NULL || memory_alloc(n * sizeof *snapshots, (void **)&snapshots) != STATUS_OK)
        return;
    if (memory_alloc(n * sizeof *known, (void **)&known) == STATUS_OK) {
        look_around(o, snapshots, known);
        if (o->store != NULL)
            publish(o, &snapshots[o->rank]);
        bool answers = store_answers(o);
        if (answers) {
            for (int rank = 0; rank < o->world_size; rank++)
                if (known[rank] && rank != o->rank)
                    publish(o, &snapshots[rank]);
            ask_others(o, snapshots, known);
        }
        compose(o, snapshots, known, answers, out);
    }
    free(known);
    free(snapshots);
}

/* The collective that the furthest rank has entered; NULL: none is known. */
static const rank_snapshot *find_furthest(const rank_snapshot *ranks, int n)
{
    const rank_snapshot *first = NULL;
    for (int i = 0; i < n; i++)
        if (ranks[i].pid != 0 && (first == NULL || ranks[i].entered > first->entered))
            first = &ranks[i];
    return first;
}

/* The collective that others wait in and `late` has not entered; else the furthest one. */
static const char *missed_by(const rank_snapshot *late, const rank_snapshot *ranks, int n)
{
    const rank_snapshot *waiting = NULL;
    for (int i = 0; i < n; i++) {
        const rank_snapshot *s = &ranks[i];
        if (s->pid != 0 && s->waits > late->entered &&
            (waiting == NULL || s->waits < waiting->waits))
            waiting = s;
    }
    return waiting != NULL ? waiting->waits_text : find_furthest(ranks, n)->entered_text;
}

static void write_line(FILE *out, const rank_snapshot *s, const rank_snapshot *ranks, int n)
{
    char one[4 * RANK_TEXT_BYTES];
    bool stopped = s->state == RANK_STOPPED;
    if (s->state == RANK_WAITS && s->peer >= 0)
        snprintf(one, sizeof one, "rank %d waited for rank %d: it was last %s", s->rank, s->peer,
                 s->doing);
    else if (s->entered < find_furthest(ranks, n)->entered)
        say_missing(s, missed_by(s, ranks, n), stopped ? " (its process is stopped)" : "", "", one,
                    sizeof one);
    else if (stopped)
        snprintf(one, sizeof one, "rank %d's process is stopped; it was last %s", s->rank,
                 s->doing);
    else if (s->state == RANK_WORKS)
        snprintf(one, sizeof one, "rank %d waited for nobody; it was %s", s->rank, s->doing);
    else
        return;
    fprintf(out, "  %s\n", one);
}

char *hang_report_lines(const rank_snapshot *ranks, int n)
{
    char *text = NULL;
    text_stream lines;
    if (find_furthest(ranks, n) == NULL || text_stream_open(&lines) != STATUS_OK)
        return NULL;
    for (int i = 0; i < n; i++)
        if (ranks[i].pid != 0)
            write_line(lines.file, &ranks[i], ranks, n);
    (void)text_stream_close(&lines, &text, NULL);
    return text;
}

void hang_report_name(const rank_snapshot *ranks, int n, char out[HANG_REPORT_WHO_BYTES])
{
    const rank_snapshot *furthest = find_furthest(ranks, n), *late = NULL;
    for (int i = 0; i < n; i++) {
        const rank_snapshot *s = &ranks[i];
        bool stopped = s->pid != 0 && s->state == RANK_STOPPED;
        bool receives = s->state == RANK_WAITS && s->peer >= 0; /* or sends: in vain, too */
        if (stopped ||
            (s->pid != 0 && !receives && s->entered < (late != NULL ? late : furthest)->entered))
            late = s;
        if (stopped)
            break;
    }
    out[0] = '\0';
    if (late != NULL)
        snprintf(out, HANG_REPORT_WHO_BYTES, "rank %d hangs%s", late->rank,
                 late->state == RANK_STOPPED ? " (stopped)" : "");
}
