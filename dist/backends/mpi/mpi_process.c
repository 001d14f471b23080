#include "dist/backends/mpi/mpi_process.h"

#include "base/clock.h"
#include "base/host.h"
#include "base/thread.h"
#include "dist/backends/mpi/mpi_types.h"

#include <malloc.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

/* A call on a thread of its own. There is one at a time; after one that never came back MPI is
 * broken, so nobody needs this again. */
typedef struct slow_call {
    int (*call)(void);
    int code;
    bool done;
    MPI_Group ranks; /* of make_comm() */
    int tag;
    MPI_Comm comm;
} slow_call;

static pthread_mutex_t calls = PTHREAD_MUTEX_INITIALIZER; /* of MPI */
static pthread_mutex_t state = PTHREAD_MUTEX_INITIALIZER; /* of all below */
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static slow_call slow;
static bool begun;
static int groups;
static atomic_bool broken; /* for good; MPI is not called any more */

status mpi_process_status(int code, const char *call, const char *file, int line)
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

status mpi_process_enter(void)
{
    pthread_mutex_lock(&calls);
    if (!atomic_load(&broken))
        return STATUS_OK;
    pthread_mutex_unlock(&calls);
    return FAIL(STATUS_INVALID, "MPI is broken in this process since an earlier failure");
}

void mpi_process_leave(void)
{
    pthread_mutex_unlock(&calls);
}

status mpi_process_check(void)
{
    if (environment_text("OMPI_COMM_WORLD_RANK") != NULL || environment_text("PMIX_RANK") != NULL)
        return STATUS_OK;
    return FAIL(STATUS_INVALID,
                "MPI has not started this process: start the ranks as mpirun -n 4 mnist_ddp train "
                "--backend=mpi, under Slurm also with srun --mpi=pmix -n 4; or all of one host as "
                "mnist_ddp train --backend=mpi --nproc-per-node=4, which calls mpirun");
}

const char *mpi_process_job(void)
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

status mpi_process_open(int64_t deadline_ns)
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

status mpi_process_make_comm(const int *world, int n, int tag, int64_t deadline_ns, MPI_Comm *out)
{
    TRY(mpi_process_enter());
    pthread_mutex_lock(&state);
    status st = make_comm_locked(world, n, tag, deadline_ns, out);
    pthread_mutex_unlock(&state);
    mpi_process_leave();
    return st;
}

void mpi_process_close(bool well)
{
    pthread_mutex_lock(&state);
    groups--;
    if (!well)
        broken = true;
    pthread_mutex_unlock(&state);
}
