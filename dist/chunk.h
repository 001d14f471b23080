/* torch.chunk: how a batch is cut into parts. */
#ifndef MNIST_DDP_DIST_CHUNK_H
#define MNIST_DDP_DIST_CHUNK_H

/* Rows of every chunk but the last one, which may have fewer. n, parts >= 1. */
static inline int chunk_size(int n, int parts)
{
    return (n - 1) / parts + 1;
}

/* Chunks of n rows cut for `parts`: there may be fewer than parts. */
static inline int chunk_count(int n, int parts)
{
    return (n - 1) / chunk_size(n, parts) + 1;
}

/* Rows of chunk i. */
static inline int chunk_rows(int n, int parts, int i)
{
    int size = chunk_size(n, parts), rest = n - i * size;
    return rest < size ? rest : size;
}

#endif
