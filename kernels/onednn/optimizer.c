#include "kernels/onednn/state.h"
#include "kernels/optimizer_math.h"

/* Elements of one piece of an optimizer step: a few per thread, and each fits the second-level
 * cache. */
enum { PIECE = 64 << 10 };

/* A step is cut into pieces of the flat arenas. */
typedef struct step_job {
    optimizer_slice all;
    union {
        sgd_math sgd;
        adam_math adam;
        adadelta_math adadelta;
    };
} step_job;

static optimizer_slice piece_of(const optimizer_slice *all, int piece)
{
    size_t first = (size_t)piece * PIECE, left = all->count - first;
    return (optimizer_slice){.param = all->param + first,
                             .grad = all->grad + first,
                             .state1 = all->state1 != NULL ? all->state1 + first : NULL,
                             .state2 = all->state2 != NULL ? all->state2 + first : NULL,
                             .count = left < PIECE ? left : PIECE};
}

static status run(device *dev, team_fn fn, step_job *job)
{
    team_run(onednn_of(dev)->team, fn, job, (int)((job->all.count + PIECE - 1) / PIECE));
    return STATUS_OK;
}

static void sgd_piece(void *arg, int piece)
{
    const step_job *job = arg;
    optimizer_slice s = piece_of(&job->all, piece);
    if (s.state1 == NULL)
        sgd_plain(s.param, s.grad, s.count, job->sgd);
    else
        sgd_momentum(s.param, s.grad, s.state1, s.count, job->sgd);
}

static void adam_piece(void *arg, int piece)
{
    const step_job *job = arg;
    optimizer_slice s = piece_of(&job->all, piece);
    adam(s.param, s.grad, s.state1, s.state2, s.count, job->adam);
}

static void adadelta_piece(void *arg, int piece)
{
    const step_job *job = arg;
    optimizer_slice s = piece_of(&job->all, piece);
    adadelta(s.param, s.grad, s.state1, s.state2, s.count, job->adadelta);
}

status onednn_sgd_step(device *dev, const optimizer_slice *slice, step_state *state,
                       const sgd_options *options)
{
    step_job job = {.all = *slice, .sgd = sgd_math_of(options, state)};
    return run(dev, sgd_piece, &job);
}

status onednn_adam_step(device *dev, const optimizer_slice *slice, step_state *state,
                        const adam_options *options)
{
    step_job job = {.all = *slice, .adam = adam_math_of(options, state)};
    return run(dev, adam_piece, &job);
}

status onednn_adadelta_step(device *dev, const optimizer_slice *slice, step_state *state,
                            const adadelta_options *options)
{
    step_job job = {.all = *slice, .adadelta = adadelta_math_of(options, state)};
    return run(dev, adadelta_piece, &job);
}
