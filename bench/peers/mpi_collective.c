/* An operation of MPI, timed as `mnist_ddp bench OPERATION` times its own: one call after the
 * other, the median of single calls, the mean of that over ranks. Rank 0 prints one JSON line.
 *
 *     mpirun -np 2 mpi_collective OPERATION TYPE REDOP ROOT ITERATIONS WARMUP BYTES...
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_BYTES = 1 << 30 };

typedef struct job {
    const char *name;
    MPI_Datatype type;
    MPI_Op op;
    int root, count, row; /* elements; of one rank's row */
    int rank, world_size;
    void *in, *out;
} job;

typedef void call_fn(const job *j, int in_place);

static void all_reduce(const job *j, int in_place)
{
    MPI_Allreduce(in_place ? MPI_IN_PLACE : j->in, j->out, j->count, j->type, j->op,
                  MPI_COMM_WORLD);
}

static void broadcast(const job *j, int in_place)
{
    (void)in_place;
    MPI_Bcast(j->out, j->count, j->type, j->root, MPI_COMM_WORLD);
}

static void reduce(const job *j, int in_place)
{
    const void *in = in_place && j->rank == j->root ? MPI_IN_PLACE : j->in;
    MPI_Reduce(in, j->out, j->count, j->type, j->op, j->root, MPI_COMM_WORLD);
}

static void all_gather(const job *j, int in_place)
{
    MPI_Allgather(in_place ? MPI_IN_PLACE : j->in, j->row, j->type, j->out, j->row, j->type,
                  MPI_COMM_WORLD);
}

static void reduce_scatter(const job *j, int in_place)
{
    MPI_Reduce_scatter_block(in_place ? MPI_IN_PLACE : j->in, j->out, j->row, j->type, j->op,
                             MPI_COMM_WORLD);
}

static void gather(const job *j, int in_place)
{
    const void *in = in_place && j->rank == j->root ? MPI_IN_PLACE : j->in;
    MPI_Gather(in, j->row, j->type, j->out, j->row, j->type, j->root, MPI_COMM_WORLD);
}

static void scatter(const job *j, int in_place)
{
    void *out = in_place && j->rank == j->root ? MPI_IN_PLACE : j->out;
    MPI_Scatter(j->in, j->row, j->type, out, j->row, j->type, j->root, MPI_COMM_WORLD);
}

static void all_to_all(const job *j, int in_place)
{
    MPI_Alltoall(in_place ? MPI_IN_PLACE : j->in, j->row, j->type, j->out, j->row, j->type,
                 MPI_COMM_WORLD);
}

static void pass_on(const job *j, int in_place)
{
    int next = (j->rank + 1) % j->world_size, last = (j->rank + j->world_size - 1) % j->world_size;
    (void)in_place;
    MPI_Sendrecv(j->in, j->count, j->type, next, 0, j->out, j->count, j->type, last, 0,
                 MPI_COMM_WORLD, MPI_STATUS_IGNORE);
}

static void barrier(const job *j, int in_place)
{
    (void)j;
    (void)in_place;
    MPI_Barrier(MPI_COMM_WORLD);
}

static const struct {
    const char *name;
    call_fn *call;
    int in_place, out_of_place;
} CALLS[] = {
    {"all_reduce", all_reduce, 1, 1},
    {"broadcast", broadcast, 1, 0},
    {"reduce", reduce, 1, 1},
    {"all_gather", all_gather, 1, 1},
    {"reduce_scatter", reduce_scatter, 1, 1},
    {"gather", gather, 1, 1},
    {"scatter", scatter, 1, 1},
    {"all_to_all", all_to_all, 1, 1},
    {"send", pass_on, 0, 1},
    {"barrier", barrier, 0, 1},
};

static void give_up(const char *what, const char *word)
{
    fprintf(stderr, "mpi_collective: %s%s\n", what, word);
    MPI_Abort(MPI_COMM_WORLD, 1);
    exit(1);
}

static MPI_Datatype type_of(const char *word)
{
    if (strcmp(word, "float") == 0)
        return MPI_FLOAT;
    if (strcmp(word, "double") == 0)
        return MPI_DOUBLE;
    if (strcmp(word, "int64") == 0)
        return MPI_INT64_T;
    if (strcmp(word, "uint8") == 0)
        return MPI_UINT8_T;
    give_up("MPI has no type ", word);
    return MPI_FLOAT;
}

static MPI_Op op_of(const char *word)
{
    if (strcmp(word, "sum") == 0)
        return MPI_SUM;
    if (strcmp(word, "prod") == 0)
        return MPI_PROD;
    if (strcmp(word, "min") == 0)
        return MPI_MIN;
    if (strcmp(word, "max") == 0)
        return MPI_MAX;
    give_up("MPI has no reduction ", word);
    return MPI_SUM;
}

static int compare(const void *a_, const void *b_)
{
    const double *a = a_, *b = b_;
    return (*a > *b) - (*a < *b);
}

/* Mean and median of single calls, means over ranks, in us. */
static void measure(const job *j, call_fn *call, int in_place, const int repeats[2], double out[2])
{
    int iterations = repeats[0], warmup = repeats[1];
    double *us = calloc((size_t)iterations, sizeof *us), own[2] = {0};
    if (us == NULL)
        give_up("no memory", "");
    for (int i = 0; i < warmup; i++)
        call(j, in_place);
    MPI_Barrier(MPI_COMM_WORLD);
    for (int i = 0; i < iterations; i++) {
        double begun_s = MPI_Wtime();
        call(j, in_place);
        us[i] = (MPI_Wtime() - begun_s) * 1e6;
        own[0] += us[i] / iterations;
    }
    qsort(us, (size_t)iterations, sizeof *us, compare);
    own[1] = (us[(iterations - 1) / 2] + us[iterations / 2]) / 2;
    MPI_Reduce(own, out, 2, MPI_DOUBLE, MPI_SUM, 0, MPI_COMM_WORLD);
    out[0] /= j->world_size;
    out[1] /= j->world_size;
    free(us);
}

static void print_way(const job *j, const char *name, int exists, const double us[2])
{
    if (j->rank == 0 && exists)
        printf(", \"%s\": {\"time_us\": %.3f, \"median_us\": %.3f}", name, us[0], us[1]);
    else if (j->rank == 0)
        printf(", \"%s\": null", name);
}

static void measure_size(job *j, int which, const int repeats[2], long size_bytes)
{
    int size = 0;
    double us[2] = {0};
    MPI_Type_size(j->type, &size);
    j->count = size_bytes > size ? (int)(size_bytes / size) : 1;
    j->row = j->count > j->world_size ? j->count / j->world_size : 1;
    size_t bytes = (size_t)(j->row * j->world_size > j->count ? j->row * j->world_size : j->count) *
                   (size_t)size;
    j->in = calloc(1, bytes);
    j->out = calloc(1, bytes);
    if (j->in == NULL || j->out == NULL)
        give_up("no memory", "");
    if (j->rank == 0)
        printf("{\"bytes\": %ld", size_bytes);
    for (int in_place = 1; in_place >= 0; in_place--) {
        int exists = in_place ? CALLS[which].in_place : CALLS[which].out_of_place;
        if (exists)
            measure(j, CALLS[which].call, in_place, repeats, us);
        print_way(j, in_place ? "in_place" : "out_of_place", exists, us);
    }
    if (j->rank == 0)
        printf("}");
    free(j->in);
    free(j->out);
}

int main(int argc, char **argv)
{
    job j = {0};
    size_t which = 0, calls = sizeof CALLS / sizeof CALLS[0];
    MPI_Init(&argc, &argv);
    if (argc < 8)
        give_up("OPERATION TYPE REDOP ROOT ITERATIONS WARMUP BYTES...", "");
    while (which < calls && strcmp(CALLS[which].name, argv[1]) != 0)
        which++;
    if (which == calls)
        give_up("no operation ", argv[1]);
    MPI_Comm_rank(MPI_COMM_WORLD, &j.rank);
    MPI_Comm_size(MPI_COMM_WORLD, &j.world_size);
    j.type = type_of(argv[2]);
    j.op = op_of(argv[3]);
    j.root = atoi(argv[4]);
    const int repeats[2] = {atoi(argv[5]), atoi(argv[6])};
    if (repeats[0] < 1)
        give_up("no iterations: ", argv[5]);
    if (j.rank == 0)
        printf("{\"system\": \"Open MPI\", \"world\": %d, \"rows\": [", j.world_size);
    for (int i = 7; i < argc; i++) {
        if (atol(argv[i]) < 0 || atol(argv[i]) > MOST_BYTES)
            give_up("no size: ", argv[i]);
        if (j.rank == 0 && i > 7)
            printf(", ");
        measure_size(&j, (int)which, repeats, atol(argv[i]));
    }
    if (j.rank == 0)
        printf("]}\n");
    MPI_Finalize();
    return 0;
}
