/* Collectives by MPI, as a module: the program runs without MPI.
 *
 * launch() starts the nonblocking call. MPI moves data only while a process calls it, so most of it
 * moves in wait(), which calls MPI_Test until it is done; and a little in each launch().
 * Meanwhile wait() looks whether the other ranks live: MPI does not tell a process that another one
 * has ended. MPI's launcher ends all others then, about a second later.
 */
#include "base/clock.h"
#include "base/digest.h"
#include "base/host.h"
#include "base/memory.h"
#include "base/module.h"
#include "base/status.h"
#include "base/text.h"
#include "base/thread.h"
#include "dist/collective/collective.h"
#include "dist/collective/process_group_ops.h"
#include "dist/health/first_cause.h"
#include "dist/membership/membership.h"

#include <limits.h>
#include <malloc.h>
#include <mpi.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Our types and reductions as MPI knows them. */

/* Once in a process, after MPI has begun and before the functions below. */
static status mpi_types_make(void);

/* MPI in this process: it begins once, at the first group, and ends with the process.
 *
 * Calls of MPI may come from any thread, one at a time (MPI_THREAD_SERIALIZED). A call that waits
 * for other ranks, as MPI_Init does, runs on a thread of its own: MPI has no deadlines, and cannot
 * be left.
 */

/* STATUS_OK, or STATUS_PEER with the call and MPI's words. The communicators that this process
 * makes, and what belongs to them, return errors (MPI_ERRORS_RETURN). */
#define MPI_CALL(call) mpi_process_status((call), #call, __FILE__, __LINE__)

/* A call on a thread of its own. There is one at a time; after one that never came back MPI is
 * broken, so nobody needs this again. */
typedef struct slow_call {
    int (*call)(void);
    int code;
    bool done;
    MPI_Group ranks; /* make_comm()'s arguments, with tag */
    int tag;
    MPI_Comm comm;
} slow_call;

static pthread_mutex_t calls = PTHREAD_MUTEX_INITIALIZER; /* held while MPI is called */
static pthread_mutex_t state = PTHREAD_MUTEX_INITIALIZER; /* guards all below */
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static slow_call slow;
static bool begun;
static int groups;
static atomic_bool broken; /* for good; MPI is not called any more */

static status mpi_process_status(int code, const char *call, const char *file, int line)
{
    char words[MPI_MAX_ERROR_STRING + 1] = "";
    int length = 0, class = MPI_SUCCESS;
    if (code == MPI_SUCCESS)
        return STATUS_OK;
    if (MPI_Error_string(code, words, &length) != MPI_SUCCESS)
        words[0] = '\0';
    (void)MPI_Error_class(code, &class);
    return status_fail(STATUS_PEER, file, line, "%.*s: %s%s", (int)strcspn(call, "("), call, words,
                       class == MPI_ERR_TRUNCATE ? "; do ranks call different operations? "
                                                   "--debug=detail names them"
                                                 : "");
}

/* Between the two this thread may call MPI. STATUS_INVALID, without the lock, if an earlier failure
 * has left calls under way: MPI could write to memory that is no longer theirs. */
static status mpi_process_enter(void)
{
    pthread_mutex_lock(&calls);
    if (!atomic_load(&broken))
        return STATUS_OK;
    pthread_mutex_unlock(&calls);
    return FAIL(STATUS_INVALID, "MPI is broken in this process since an earlier failure");
}

static void mpi_process_leave(void)
{
    pthread_mutex_unlock(&calls);
}

/* STATUS_INVALID, with what to type, if no launcher of MPI has started this process. */
static status mpi_process_check(void)
{
    if (environment_text("OMPI_COMM_WORLD_RANK") != NULL || environment_text("PMIX_RANK") != NULL)
        return STATUS_OK;
    return FAIL(STATUS_INVALID,
                "MPI has not started this process: start the ranks as mpirun -n 4 mnist_ddp train "
                "--backend=mpi, under Slurm also with srun --mpi=pmix -n 4; or all of one host as "
                "mnist_ddp train --backend=mpi --nproc-per-node=4, which calls mpirun");
}

/* The job of MPI that this process is part of; no other has that name. */
static const char *mpi_process_job(void)
{
    const char *name = environment_text("PMIX_NAMESPACE");
    return name != NULL ? name : "-";
}

static void *run_slow_call(void *arg)
{
    (void)arg;
    int code = slow.call();
    pthread_mutex_lock(&state);
    slow.code = code;
    slow.done = true;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&state);
    return NULL;
}

/* Both locks are held. slow's arguments are set. */
static status call_slowly(int (*call)(void), const char *name, int64_t deadline_ns)
{
    pthread_t thread;
    slow.call = call;
    slow.done = false;
    TRY(thread_start(run_slow_call, NULL, "MPI's", &thread));
    while (!slow.done && clock_await(&changed, &state, deadline_ns)) {
    }
    if (!slow.done) {
        broken = true;
        pthread_detach(thread);
        return FAIL(STATUS_TIMEOUT, "%s waits for other ranks, and has not returned in time", name);
    }
    pthread_join(thread, NULL);
    return mpi_process_status(slow.code, name, __FILE__, __LINE__);
}

/* Open MPI allocates memory in each of its nonblocking reductions, and frees it at the end. If libc
 * gives that back to the kernel each time, the page faults of an all_reduce in place take four
 * times as long as all else. From here on it keeps what it has. */
static void keep_freed_memory(void)
{
    (void)mallopt(M_MMAP_THRESHOLD, 32 << 20); /* the most that there is */
    (void)mallopt(M_TRIM_THRESHOLD, 256 << 20);
}

static int begin(void)
{
    keep_freed_memory();
    int provided = 0, code = MPI_Init_thread(NULL, NULL, MPI_THREAD_SERIALIZED, &provided);
    return code == MPI_SUCCESS && provided < MPI_THREAD_SERIALIZED ? MPI_ERR_OTHER : code;
}

static int make_comm(void)
{
    return MPI_Comm_create_group(MPI_COMM_WORLD, slow.ranks, slow.tag, &slow.comm);
}

static void end(void)
{
    if (groups == 0 && !broken)
        (void)MPI_Finalize();
}

/* Both locks are held. */
static status begin_once(int64_t deadline_ns)
{
    if (begun)
        return STATUS_OK;
    TRY(call_slowly(begin, "MPI_Init_thread", deadline_ns));
    TRY(MPI_CALL(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN)));
    TRY(mpi_types_make());
    if (atexit(end) != 0)
        return FAIL(STATUS_NO_MEMORY, "a function for the end of the process");
    begun = true;
    return STATUS_OK;
}

/* Begins MPI, unless it has begun. All processes of MPI's job must do so, if one does.
 * STATUS_TIMEOUT at the deadline. A group that is open keeps MPI until mpi_process_close. */
static status mpi_process_open(int64_t deadline_ns)
{
    TRY(mpi_process_enter());
    pthread_mutex_lock(&state);
    status st = begin_once(deadline_ns);
    if (st == STATUS_OK)
        groups++;
    pthread_mutex_unlock(&state);
    mpi_process_leave();
    return st;
}

/* Both locks are held. */
static status make_comm_locked(const int *world, int n, int tag, int64_t deadline_ns, MPI_Comm *out)
{
    MPI_Group all;
    TRY(MPI_CALL(MPI_Comm_group(MPI_COMM_WORLD, &all)));
    status st = MPI_CALL(MPI_Group_incl(all, n, world, &slow.ranks));
    MPI_Group_free(&all);
    if (st != STATUS_OK)
        return st;
    slow.tag = tag;
    st = call_slowly(make_comm, "MPI_Comm_create_group", deadline_ns);
    if (!atomic_load(&broken)) /* else the call may still read it */
        MPI_Group_free(&slow.ranks);
    if (st != STATUS_OK)
        return st;
    *out = slow.comm;
    return MPI_CALL(MPI_Comm_set_errhandler(*out, MPI_ERRORS_RETURN));
}

/* Makes a communicator of n ranks, which all do the same: rank i is world[i] of MPI_COMM_WORLD.
 * `tag` tells communicators apart that are made at the same time. STATUS_TIMEOUT at the deadline.
 */
static status mpi_process_make_comm(const int *world, int n, int tag, int64_t deadline_ns,
                                    MPI_Comm *out)
{
    TRY(mpi_process_enter());
    pthread_mutex_lock(&state);
    status st = make_comm_locked(world, n, tag, deadline_ns, out);
    pthread_mutex_unlock(&state);
    mpi_process_leave();
    return st;
}

/* A group has ended; `well`: no call of MPI's is left under way. If all have ended well when the
 * process exits, it ends MPI with the others. Else MPI's launcher finds a process that has ended
 * without a word, and ends the others: MPI_Finalize would wait for them for ever. */
static void mpi_process_close(bool well)
{
    pthread_mutex_lock(&state);
    groups--;
    if (!well)
        broken = true;
    pthread_mutex_unlock(&state);
}

/* MPI has no 16-bit floats: they travel as 16-bit integers, with reductions of our own. So do sums
 * of bytes: Open MPI's stay at 255 on processors with AVX, and ours wrap. */

#define DEFINE_OP(name, type, op) \
    static void name(void *in, void *inout, int *count, MPI_Datatype *of) \
    { \
        (void)of; \
        reduce_fold(type, op, inout, in, (size_t)*count); \
    }

DEFINE_OP(sum_bf16, DTYPE_BF16, REDUCE_SUM)
DEFINE_OP(min_bf16, DTYPE_BF16, REDUCE_MIN)
DEFINE_OP(max_bf16, DTYPE_BF16, REDUCE_MAX)
DEFINE_OP(prod_bf16, DTYPE_BF16, REDUCE_PROD)
DEFINE_OP(sum_f16, DTYPE_F16, REDUCE_SUM)
DEFINE_OP(min_f16, DTYPE_F16, REDUCE_MIN)
DEFINE_OP(max_f16, DTYPE_F16, REDUCE_MAX)
DEFINE_OP(prod_f16, DTYPE_F16, REDUCE_PROD)

DEFINE_OP(sum_u8, DTYPE_U8, REDUCE_SUM)

static MPI_User_function *const HALVES[2][REDUCE_OP_COUNT] = {
    {sum_bf16, min_bf16, max_bf16, prod_bf16, sum_bf16},
    {sum_f16, min_f16, max_f16, prod_f16, sum_f16}};
static MPI_Op halves[2][REDUCE_OP_COUNT], sum_of_bytes;

static status mpi_types_make(void)
{
    for (int type = 0; type < 2; type++)
        for (int op = 0; op < REDUCE_OP_COUNT; op++)
            TRY(MPI_CALL(MPI_Op_create(HALVES[type][op], 1, &halves[type][op])));
    return MPI_CALL(MPI_Op_create(sum_u8, 1, &sum_of_bytes));
}

static MPI_Datatype mpi_types_data(dtype type)
{
    switch (type) {
    case DTYPE_F32:
        return MPI_FLOAT;
    case DTYPE_F64:
        return MPI_DOUBLE;
    case DTYPE_I64:
        return MPI_INT64_T;
    case DTYPE_BF16:
    case DTYPE_F16:
        return MPI_UINT16_T;
    case DTYPE_U8:
    case DTYPE_COUNT:
        break;
    }
    return MPI_UINT8_T;
}

/* REDUCE_AVG is a sum here: reduce_divide ends it. 16-bit floats are rounded after every step. */
static MPI_Op mpi_types_op(dtype type, reduce_op op)
{
    if (type == DTYPE_BF16 || type == DTYPE_F16)
        return halves[type == DTYPE_F16][op];
    if (type == DTYPE_U8 && (op == REDUCE_SUM || op == REDUCE_AVG))
        return sum_of_bytes;
    switch (op) {
    case REDUCE_MIN:
        return MPI_MIN;
    case REDUCE_MAX:
        return MPI_MAX;
    case REDUCE_PROD:
        return MPI_PROD;
    case REDUCE_SUM:
    case REDUCE_AVG:
    case REDUCE_OP_COUNT:
        break;
    }
    return MPI_SUM;
}

/* A collective as requests of MPI: nonblocking calls, several if its data goes in pieces. The
 * functions call MPI: who calls them holds its lock (mpi_process_enter). */

enum { MPI_REQUESTS_MOST = 64 };

/* Where a rank stands in its group. */
typedef struct mpi_place {
    MPI_Comm comm;
    int rank, world_size;
} mpi_place;

/* All zero: none. */
typedef struct mpi_requests {
    MPI_Request list[MPI_REQUESTS_MOST];
    int n, done;       /* the first `done` of them are */
    MPI_Status latest; /* the latest done's */
    void *scratch;     /* a copy of what is sent, to be freed when all are done; or NULL */
} mpi_requests;

/* What is reduced or broadcast goes in pieces, all under way at once: while one is added up, others
 * travel. */

enum { PIECE_BYTES = 256 << 10 };

/* What one call moves. */
typedef struct span {
    const void *in; /* or MPI_IN_PLACE */
    void *out;
    int count;
} span;

/* The input times the prescale, at `out`, which may be the input's place. */
static void copy_scaled(const collective *c, void *out, size_t count)
{
    const void *in = c->in;
    reduce_parts parts = {&in, 1, &out, 1};
    reduce_into(c->type, REDUCE_SUM, c->prescale, &parts, count);
}

static bool lies_in(const void *at, const void *begin, size_t size_bytes)
{
    uintptr_t offset = (uintptr_t)at - (uintptr_t)begin;
    return (uintptr_t)at >= (uintptr_t)begin && offset < size_bytes;
}

/* Sets *in to what MPI is to read of a reduction: the input as it is, scaled, or in place. */
static status prepare_input(const mpi_place *p, const collective *c, mpi_requests *r,
                            const void **in)
{
    bool is_scaled = c->prescale < 1 || c->prescale > 1;
    bool has_whole_out =
        c->kind == COLLECTIVE_ALL_REDUCE || (c->kind == COLLECTIVE_REDUCE && c->root == p->rank);
    size_t size_bytes = collective_in_bytes(c, p->rank, p->world_size);
    bool overlaps = c->kind == COLLECTIVE_REDUCE_SCATTER && lies_in(c->out, c->in, size_bytes);
    *in = c->in;
    if (has_whole_out) {
        if (is_scaled)
            copy_scaled(c, c->out, c->count);
        if (is_scaled || c->in == c->out)
            *in = MPI_IN_PLACE;
    } else if (is_scaled || overlaps) {
        TRY(memory_alloc(size_bytes, &r->scratch));
        copy_scaled(c, r->scratch, size_bytes / dtype_size(c->type));
        *in = r->scratch;
    }
    return STATUS_OK;
}

static int start_piece(const mpi_place *p, const collective *c, span s, MPI_Request *out)
{
    MPI_Datatype type = mpi_types_data(c->type);
    MPI_Op op = mpi_types_op(c->type, c->op);
    if (c->kind == COLLECTIVE_ALL_REDUCE)
        return MPI_Iallreduce(s.in, s.out, s.count, type, op, p->comm, out);
    if (c->kind == COLLECTIVE_REDUCE)
        return MPI_Ireduce(s.in, s.out, s.count, type, op, c->root, p->comm, out);
    return MPI_Ibcast(s.out, s.count, type, c->root, p->comm, out);
}

static void *moved_on(const void *at, size_t offset)
{
    return at == NULL ? NULL : (unsigned char *)(uintptr_t)at + offset;
}

/* The pieces are the same on all ranks. */
static status start_pieces(const mpi_place *p, const collective *c, const void *in,
                           mpi_requests *out)
{
    size_t size = dtype_size(c->type), some;
    size_t piece = PIECE_BYTES / size, least = c->count / MPI_REQUESTS_MOST + 1;
    if (piece < least)
        piece = least;
    if (piece > INT_MAX)
        return FAIL(STATUS_INVALID, "backend mpi: %s of %zu elements in %d pieces",
                    collective_kind_name(c->kind), c->count, (int)MPI_REQUESTS_MOST);
    for (size_t at = 0; at < c->count; at += some) {
        some = c->count - at < piece ? c->count - at : piece;
        span s = {in == MPI_IN_PLACE ? in : moved_on(in, at * size), moved_on(c->out, at * size),
                  (int)some};
        TRY(MPI_CALL(start_piece(p, c, s, &out->list[out->n])));
        out->n++;
    }
    return STATUS_OK;
}

/* The row of this rank, in an array of all ranks' rows. */
static const void *own_row(const mpi_place *p, const collective *c, const void *rows)
{
    return (const unsigned char *)rows + c->count * dtype_size(c->type) * (size_t)p->rank;
}

static int start_rows(const mpi_place *p, const collective *c, const void *in, MPI_Request *out)
{
    MPI_Datatype t = mpi_types_data(c->type);
    int n = (int)c->count;
    bool is_root = c->root == p->rank;
    switch (c->kind) {
    case COLLECTIVE_ALL_GATHER:
        if (c->in == own_row(p, c, c->out))
            in = MPI_IN_PLACE;
        return MPI_Iallgather(in, n, t, c->out, n, t, p->comm, out);
    case COLLECTIVE_GATHER:
        if (is_root && c->in == own_row(p, c, c->out))
            in = MPI_IN_PLACE;
        return MPI_Igather(in, n, t, c->out, n, t, c->root, p->comm, out);
    case COLLECTIVE_SCATTER:
        return MPI_Iscatter(in, n, t,
                            is_root && c->out == own_row(p, c, c->in) ? MPI_IN_PLACE : c->out, n, t,
                            c->root, p->comm, out);
    case COLLECTIVE_ALL_TO_ALL:
        return MPI_Ialltoall(c->in == c->out ? MPI_IN_PLACE : in, n, t, c->out, n, t, p->comm, out);
    default: /* reduce_scatter */
        return MPI_Ireduce_scatter_block(in, c->out, n, t, mpi_types_op(c->type, c->op), p->comm,
                                         out);
    }
}

static status start_call(const mpi_place *p, const collective *c, const void *in, mpi_requests *out)
{
    MPI_Datatype type = mpi_types_data(c->type);
    MPI_Request *request = &out->list[0];
    int count = (int)c->count;
    if (c->count > INT_MAX)
        return FAIL(STATUS_INVALID, "backend mpi: %s of %zu elements: MPI counts to %d",
                    collective_kind_name(c->kind), c->count, INT_MAX);
    out->n = 1;
    switch (c->kind) {
    case COLLECTIVE_BARRIER:
        return MPI_CALL(MPI_Ibarrier(p->comm, request));
    case COLLECTIVE_SEND:
        return MPI_CALL(MPI_Isend(in, count, type, c->root, c->tag, p->comm, request));
    case COLLECTIVE_RECV:
        return MPI_CALL(MPI_Irecv(c->out, count, type, c->root, c->tag, p->comm, request));
    default:
        return MPI_CALL(start_rows(p, c, in, request));
    }
}

/* Starts it; the arrays are MPI's until it is done. STATUS_INVALID if it has more elements than one
 * call can move (INT_MAX) and does not go in pieces. */
static status mpi_requests_start(const mpi_place *place, const collective *c, mpi_requests *out)
{
    const void *in = c->in;
    if (collective_reduces(c->kind))
        TRY(prepare_input(place, c, out, &in));
    bool in_pieces = c->kind == COLLECTIVE_ALL_REDUCE || c->kind == COLLECTIVE_REDUCE ||
                     c->kind == COLLECTIVE_BROADCAST;
    return in_pieces ? start_pieces(place, c, in, out) : start_call(place, c, in, out);
}

/* Moves on what this process has under way, and sets *done if all of these requests are done. */
static status mpi_requests_test(mpi_requests *r, bool *done)
{
    for (int flag = 1; r->done < r->n && flag != 0; r->done += flag)
        TRY(MPI_CALL(MPI_Test(&r->list[r->done], &flag, &r->latest)));
    *done = r->done == r->n;
    return STATUS_OK;
}

/* After all are done: what is left to be done to the result. STATUS_INVALID if a recv got another
 * number of elements. */
static status mpi_requests_finish(const mpi_place *place, const collective *c, mpi_requests *r)
{
    int got = 0;
    free(r->scratch);
    r->scratch = NULL;
    if (collective_reduces(c->kind) && c->op == REDUCE_AVG &&
        collective_out_bytes(c, place->rank, place->world_size) > 0)
        reduce_divide(c->type, c->out, c->count, place->world_size);
    if (c->kind != COLLECTIVE_RECV)
        return STATUS_OK;
    TRY(MPI_CALL(MPI_Get_count(&r->latest, mpi_types_data(c->type), &got)));
    if (got >= 0 && (size_t)got == c->count)
        return STATUS_OK;
    return FAIL(STATUS_INVALID, "rank %d has sent %d elements, but this rank takes %zu", c->root,
                got, c->count);
}

enum {
    PREFIX_BYTES = 80,
    SPINS = 20,          /* tests before this thread leaves the core to others */
    NAP_NS = 100 * 1000, /* between two tests, once it has waited PATIENT_MS: a rank is late */
    PATIENT_MS = 200,
    LOOK_MS = 10, /* between two looks at the other ranks */
    GOODBYE_MS = 2000,
    TAGS = 1 << 15, /* MPI promises as many */
};

typedef struct mpi_work {
    struct mpi_work *next;
    collective what;
    mpi_requests requests;
} mpi_work;

typedef struct mpi_group {
    mpi_place place;
    first_cause *cause;
    uint64_t done;    /* the latest collective that is, sends and receives aside */
    departure end;    /* why it has failed */
    MPI_Comm goodbye; /* its own: MPI would add up who leaves early with those that go on */
    atomic_bool aborted;
    char why[128]; /* set before `aborted` */

    pthread_mutex_t lock; /* guards the queue: launches may come from another thread than waits */
    mpi_work *first, *last;
    spares works;
} mpi_group;

/* A wait for one work. */
typedef struct waiting {
    const collective *what;
    int64_t since_ns, deadline_ns, look_ns;
    bool told; /* the others, that this rank waits */
} waiting;

static status fail_late(const mpi_group *g, const waiting *w)
{
    const collective *c = w->what;
    char who[256] = "";
    if (!collective_is_send_or_recv(c->kind))
        first_cause_name_late(g->cause, c->seq, who, sizeof who);
    else if (peers_find_stopped(first_cause_peers(g->cause), c->root) == c->root)
        snprintf(who, sizeof who, ": rank %d is stopped", c->root);
    else
        snprintf(who, sizeof who, ": rank %d has not come", c->root);
    return FAIL(STATUS_TIMEOUT, "waited %.1f s%s", clock_seconds(clock_now_ns() - w->since_ns),
                who);
}

static status check_aborted(const mpi_group *g)
{
    return atomic_load(&g->aborted) ? FAIL(STATUS_PEER, "%s", g->why) : STATUS_OK;
}

/* Whether it is worth waiting on. */
static status look_at_others(const mpi_group *g, waiting *w, int64_t now_ns)
{
    const collective *c = w->what;
    bool between_two = collective_is_send_or_recv(c->kind);
    awaited what = {between_two ? first_cause_bit(c->root) : 0, c->seq, w->since_ns};
    w->look_ns = now_ns + LOOK_MS * INT64_C(1000000);
    TRY(check_aborted(g));
    if (!w->told && !between_two && now_ns - w->since_ns > (w->deadline_ns - w->since_ns) / 2) {
        w->told = true;
        first_cause_tell_waiting(g->cause, c->seq);
    }
    first_cause_look(g->cause, now_ns);
    TRY(first_cause_check(g->cause, &what, now_ns));
    return now_ns >= w->deadline_ns ? fail_late(g, w) : STATUS_OK;
}

/* MPI's words are this thread's message: who is to blame, if that can be seen. */
static status blame(const mpi_group *g, status st)
{
    if (st == STATUS_PEER)
        (void)first_cause_blame(g->cause);
    return st;
}

static status start(const mpi_group *g, const mpi_place *place, const collective *c,
                    mpi_requests *r)
{
    TRY(mpi_process_enter());
    status st = mpi_requests_start(place, c, r);
    mpi_process_leave();
    return blame(g, st);
}

static status test(const mpi_group *g, mpi_requests *r, bool *done)
{
    TRY(mpi_process_enter());
    status st = mpi_requests_test(r, done);
    mpi_process_leave();
    return blame(g, st);
}

static status await(const mpi_group *g, const collective *c, mpi_requests *r, int64_t deadline_ns)
{
    const struct timespec nap = {.tv_nsec = NAP_NS};
    waiting w = {.what = c, .since_ns = clock_now_ns(), .deadline_ns = deadline_ns};
    w.look_ns = w.since_ns + LOOK_MS * INT64_C(1000000);
    for (int tests = 1;; tests++) {
        bool done = false;
        TRY(test(g, r, &done));
        if (done)
            return STATUS_OK;
        if (tests < SPINS)
            continue;
        int64_t now_ns = clock_now_ns();
        if (now_ns >= w.look_ns || now_ns >= deadline_ns)
            TRY(look_at_others(g, &w, now_ns));
        if (now_ns - w.since_ns < PATIENT_MS * INT64_C(1000000))
            sched_yield();
        else
            nanosleep(&nap, NULL);
    }
}

/* What the peers hear when this rank leaves. */
static status note_failure(mpi_group *g, status st)
{
    if (st != STATUS_OK && g->end.why == STATUS_OK) {
        g->end.why = st;
        snprintf(g->end.words, sizeof g->end.words, "%.500s", status_text());
    }
    return st;
}

static status mpi_launch(void *self, const collective *c, device_stream *stream, void **out_work)
{
    (void)stream;
    mpi_group *g = self;
    pthread_mutex_lock(&g->lock);
    mpi_work *w = spares_take(&g->works, sizeof *w);
    pthread_mutex_unlock(&g->lock);
    if (w == NULL)
        return FAIL(STATUS_NO_MEMORY, "a work of %zu bytes", sizeof *w);
    w->what = *c;
    status st = start(g, &g->place, c, &w->requests);
    pthread_mutex_lock(&g->lock);
    *(g->first == NULL ? &g->first : &g->last->next) = w; /* also if MPI has some of it */
    g->last = w;
    (void)note_failure(g, st);
    pthread_mutex_unlock(&g->lock);
    *out_work = w;
    return st;
}

static status mpi_wait(void *self, void *work_, int64_t deadline_ns, int64_t *done_ns)
{
    mpi_group *g = self;
    mpi_work *w = work_;
    status st = await(g, &w->what, &w->requests, deadline_ns);
    if (st == STATUS_OK)
        st = mpi_requests_finish(&g->place, &w->what, &w->requests);
    *done_ns = clock_now_ns();
    pthread_mutex_lock(&g->lock);
    (void)note_failure(g, st);
    if (st == STATUS_OK) { /* else MPI may still write to it */
        ASSERT(g->first == w);
        g->first = w->next;
        if (!collective_is_send_or_recv(w->what.kind))
            g->done = w->what.seq;
        spares_give(&g->works, w);
    }
    pthread_mutex_unlock(&g->lock);
    return st;
}

/* A rank that ends MPI waits for all others to do so. So all meet once more, and who does not come
 * is not waited for. */
static bool say_goodbye(mpi_group *g)
{
    collective last = {.kind = COLLECTIVE_BARRIER, .seq = g->done + 1};
    const mpi_place place = {g->goodbye, g->place.rank, g->place.world_size};
    mpi_requests r = {0};
    status st = start(g, &place, &last, &r);
    if (st == STATUS_OK)
        st = await(g, &last, &r, clock_deadline_ns(GOODBYE_MS));
    return st == STATUS_OK;
}

/* Works that were not done when their group ended: MPI may write to them. */
static mpi_work *abandoned;

static void mpi_abort(void *self, const char *why)
{
    mpi_group *g = self;
    snprintf(g->why, sizeof g->why, "%s", why);
    atomic_store(&g->aborted, true);
}

static void mpi_destroy(void *self)
{
    mpi_group *g = self;
    bool was_made = g->goodbye != MPI_COMM_NULL;
    (void)note_failure(g, check_aborted(g)); /* it may have come between two collectives */
    bool well = was_made && g->end.why == STATUS_OK && g->first == NULL && say_goodbye(g);
    g->end.number = g->done;
    if (g->cause != NULL)
        first_cause_depart(g->cause, &g->end);
    if (well && mpi_process_enter() == STATUS_OK) {
        MPI_Comm_free(&g->place.comm);
        MPI_Comm_free(&g->goodbye);
        mpi_process_leave();
    }
    if (g->first != NULL) {
        g->last->next = abandoned;
        abandoned = g->first;
    }
    if (was_made)
        mpi_process_close(well);
    spares_free(&g->works);
    first_cause_destroy(g->cause);
    pthread_mutex_destroy(&g->lock);
    free(g);
}

/* A meeting's compare(): the ranks' numbers in MPI_COMM_WORLD, if one job of MPI has them all. */
static status list_numbers(void *ctx, char *const records[], char **outcome)
{
    int n = *(const int *)ctx;
    text_stream list;
    const char *job = strchr(records[0], ' ');
    for (int rank = 1; rank < n; rank++) {
        const char *other = strchr(records[rank], ' ');
        if (job == NULL || other == NULL || strcmp(job, other) != 0)
            return FAIL(STATUS_INVALID,
                        "backend mpi: ranks 0 and %d were not started by the same mpirun", rank);
    }
    TRY(text_stream_open(&list));
    for (int rank = 0; rank < n; rank++)
        fprintf(list.file, "%d ", atoi(records[rank]));
    return text_stream_close(&list, outcome, NULL);
}

/* world[i]: rank i's number in MPI_COMM_WORLD. */
static status meet(const group_setup *setup, int64_t deadline_ns, int *world)
{
    const process_group_options *o = setup->options;
    char prefix[PREFIX_BYTES], record[400], *list = NULL, *at;
    int n = o->world_size, own = 0;
    snprintf(prefix, sizeof prefix, "%smpi/", setup->prefix);
    membership ranks = {
        .store = o->store, .prefix = prefix, .member = o->rank, .n = n, .noun = "rank"};
    meeting how = {.record = record,
                   .deadline_ns = deadline_ns,
                   .late = "has not begun MPI in time",
                   .compare = list_numbers,
                   .ctx = &n};
    MPI_Comm_rank(MPI_COMM_WORLD, &own);
    snprintf(record, sizeof record, "%d %.300s", own, mpi_process_job());
    TRY(membership_meet(&ranks, &how, &list));
    at = list;
    for (int rank = 0; rank < n; rank++)
        world[rank] = (int)strtol(at, &at, 10);
    free(list);
    return STATUS_OK;
}

static status open_group(mpi_group *g, const group_setup *setup, int *world)
{
    int64_t deadline_ns = clock_deadline_ns(process_group_patience_ms(setup->options));
    status st = mpi_process_check();
    if (st != STATUS_OK) {
        peers_decline(setup);
        return st;
    }
    TRY(first_cause_create(setup, NULL, deadline_ns, &g->cause));
    TRY(mpi_process_open(deadline_ns));
    st = meet(setup, deadline_ns, world);
    int tag = (int)(fnv1a(FNV1A_START, setup->prefix, strlen(setup->prefix)) % TAGS);
    if (st == STATUS_OK)
        st = mpi_process_make_comm(world, g->place.world_size, tag, deadline_ns, &g->place.comm);
    if (st == STATUS_OK)
        st = mpi_process_make_comm(world, g->place.world_size, tag, deadline_ns, &g->goodbye);
    if (st != STATUS_OK)
        mpi_process_close(false);
    return st;
}

static status mpi_create(const group_setup *setup, void **self)
{
    const process_group_options *o = setup->options;
    mpi_group *g = calloc(1, sizeof *g);
    int *world = calloc((size_t)o->world_size, sizeof *world);
    status st = STATUS_OK;
    if (g == NULL || world == NULL) {
        free(g);
        free(world);
        return FAIL(STATUS_NO_MEMORY, "an mpi group of %d ranks", o->world_size);
    }
    g->place = (mpi_place){MPI_COMM_NULL, o->rank, o->world_size};
    g->goodbye = MPI_COMM_NULL;
    pthread_mutex_init(&g->lock, NULL);
    st = open_group(g, setup, world);
    free(world);
    if (st != STATUS_OK) {
        status_kept cause; /* what follows is of less interest */
        status_keep(&cause);
        g->end.why = st;
        snprintf(g->end.words, sizeof g->end.words, "%.500s", cause.text);
        mpi_destroy(g);
        status_restore(&cause);
        return st;
    }
    *self = g;
    return STATUS_OK;
}

static void mpi_version(char *out, size_t size_bytes)
{
    char text[MPI_MAX_LIBRARY_VERSION_STRING + 1] = "", number[32] = "";
    int length = 0;
    (void)MPI_Get_library_version(text, &length);
    if (sscanf(text, "Open MPI v%31[0-9.]", number) != 1)
        snprintf(number, sizeof number, "%.31s", text);
    snprintf(out, size_bytes, "%s", number);
}

/* MPI does not say what it moves: what is told is nominal. */
static const process_group_ops mpi_ops = {
    .name = "mpi",
    .device_memory = false,
    .works_in_wait = true,
    .create = mpi_create,
    .launch = mpi_launch,
    .wait = mpi_wait,
    .abort = mpi_abort,
    .destroy = mpi_destroy,
    .traffic = collective_star_traffic,
    .version = mpi_version,
};

extern const module mnist_ddp_module;
const module mnist_ddp_module __attribute__((visibility("default"))) = {
    .abi_version = MODULE_ABI_VERSION, .process_group = &mpi_ops};
