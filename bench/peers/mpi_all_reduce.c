/* MPI_Allreduce of floats in place, timed as `mnist_ddp bench all-reduce` times its own: one call
 * after the other, the median of single calls, the mean of that over ranks. One JSON line per size.
 *
 *     mpirun -np 2 mpi_all_reduce ITERATIONS BYTES...
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

enum { WARM_UP = 5 };

static int compare(const void *a_, const void *b_)
{
    const double *a = a_, *b = b_;
    return (*a > *b) - (*a < *b);
}

static void *take(size_t count, size_t size_bytes)
{
    void *memory = calloc(count, size_bytes);
    if (memory == NULL) {
        fprintf(stderr, "mpi_all_reduce: no memory for %zu times %zu bytes\n", count, size_bytes);
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    return memory;
}

static void measure(int size_bytes, int iterations)
{
    int count = size_bytes / (int)sizeof(float), rank, world_size;
    float *data = take((size_t)count, sizeof *data);
    double *us = take((size_t)iterations, sizeof *us);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &world_size);
    for (int i = -WARM_UP; i < iterations; i++) {
        double begun_s = MPI_Wtime();
        MPI_Allreduce(MPI_IN_PLACE, data, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
        if (i >= 0)
            us[i] = (MPI_Wtime() - begun_s) * 1e6;
    }
    qsort(us, (size_t)iterations, sizeof *us, compare);
    double own_us[2] = {us[0], us[iterations / 2]}, sum_us[2];
    MPI_Reduce(own_us, sum_us, 2, MPI_DOUBLE, MPI_SUM, 0, MPI_COMM_WORLD);
    if (rank == 0)
        printf("{\"bytes\": %d, \"least_us\": %.3f, \"median_us\": %.3f}\n", size_bytes,
               sum_us[0] / world_size, sum_us[1] / world_size);
    free(us);
    free(data);
}

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    int iterations = argc > 1 ? atoi(argv[1]) : 0;
    for (int i = 2; i < argc && iterations > 0; i++)
        measure(atoi(argv[i]), iterations);
    MPI_Finalize();
    return 0;
}
