/* Clipping gradients by their norm: one pass of the team for the sum of squares, and one that
 * scales them if the norm is too large. */
#include "kernels/clip_math.h"
#include "kernels/cpu/state.h"

#include <math.h>

enum { PIECES_MOST = 64, PIECE_LEAST = 16 << 10 /* elements */ };

typedef struct clip_job {
    const vector_ops *vec;
    float *grad;
    size_t count, piece; /* elements, of all and of a piece */
    double sums[PIECES_MOST];
    float factor;
} clip_job;

static size_t piece_elements(size_t count)
{
    size_t share = (count + PIECES_MOST - 1) / PIECES_MOST;
    return share > PIECE_LEAST ? share : PIECE_LEAST;
}

static size_t elements_of(const clip_job *job, int piece)
{
    size_t left = job->count - (size_t)piece * job->piece;
    return left < job->piece ? left : job->piece;
}

static void sum_piece(void *arg, int piece)
{
    clip_job *job = arg;
    job->sums[piece] =
        job->vec->sum_of_squares(job->grad + (size_t)piece * job->piece, elements_of(job, piece));
}

static void scale_piece(void *arg, int piece)
{
    const clip_job *job = arg;
    job->vec->scale(job->grad + (size_t)piece * job->piece, elements_of(job, piece), job->factor);
}

status cpu_clip_gradients(device *dev, const gradient_clip *clip, const step_state *state)
{
    (void)state; /* a host scales no loss */
    cpu_state *cpu = cpu_of(dev);
    clip_job job = {.vec = cpu->vec,
                    .grad = clip->grad,
                    .count = clip->count,
                    .piece = piece_elements(clip->count)};
    int pieces = (int)((job.count + job.piece - 1) / job.piece);
    double sum = 0;
    team_run(cpu->team, sum_piece, &job, pieces);
    for (int i = 0; i < pieces; i++)
        sum += job.sums[i];
    *clip->norm = sqrt(sum);
    job.factor = clip_factor(*clip->norm, clip->max_norm);
    if (clip_changes(job.factor))
        team_run(cpu->team, scale_piece, &job, pieces);
    return STATUS_OK;
}
