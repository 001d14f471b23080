/* The state of a step: numbers that differ from one optimizer step to the next.
 *
 * They are in device memory and kernels read them there. So a step that was captured once as a CUDA
 * graph can be replayed with other numbers. Used by C and CUDA. */
#ifndef MNIST_DDP_KERNELS_STEP_H
#define MNIST_DDP_KERNELS_STEP_H

#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __CUDACC__
#define STEP_FN static inline __host__ __device__
#else
#define STEP_FN static inline
#endif

/* What the host knows of a step before it begins. */
typedef struct step_plan {
    uint32_t first; /* where this rank's samples begin in its order of the epoch */
    uint32_t epoch;
    float grad_scale; /* factor of each sample's loss gradient: world_size / the samples of this
                         optimizer step over all ranks. DDP multiplies by 1 / world_size, so the
                         step's gradient is the exact mean even if batch sizes differ */
    float lr;
    float beta1, beta2; /* adam's; 0: the optimizer has none */
    int64_t step;       /* optimizer steps begun, this one included; 0: an evaluation, which leaves
                           `scaling` as it is */
    bool scale_loss;    /* dynamic loss scaling (fp16) */
    float stop;         /* 1: this rank is asked to end the run; travels with the gradients */
    const double *loss_sum;    /* device memory: of earlier steps. If it is not finite, NaN travels
                               instead of `stop`. NULL: no matter */
    const double *commit_from; /* device memory: what the step adds to it is its loss (step_commit);
                                  NULL: it is not committed */
    bool commit_anew;          /* steps are counted from this one on */
} step_plan;

/* Dynamic loss scaling, with the rules and constants of torch.amp.GradScaler: the scale doubles
 * after 2000 steps without an overflow; an overflow halves it and the step is skipped. */
typedef struct loss_scaling {
    float scale;        /* 0: not begun */
    int32_t good_steps; /* since the scale last changed */
    int64_t skipped;    /* steps, in total */
    uint32_t overflow;  /* some gradient of the current step is not finite. Set after the
                           all-reduce, so all ranks see the same */
} loss_scaling;

#define LOSS_SCALE_FIRST 65536.0f
enum { LOSS_SCALE_INTERVAL = 2000 };

/* How all ranks commit a step of an elastic job on accelerators, with no host in between: after
 * its gradients have come, each offers the step; what all have offered is added up; then each takes
 * the step if all have offered it, and its optimizer may begin. When a collective is aborted, other
 * ranks may get garbage from it as if it were whole. But a rank that aborts has offered nothing, so
 * none takes that step. */
typedef struct step_commit {
    double offer[2];       /* this rank's loss of the step, and the step's number; then the sums */
    double before;         /* *commit_from as the step began */
    double loss;           /* of all ranks, in the steps that were taken */
    int64_t images, steps; /* likewise */
    uint32_t ended;        /* a step was not taken: none is after it, and no optimizer steps */
} step_commit;

/* An offer is the step's number and this: fewer offers, or earlier ones, never make the sum. */
#define STEP_OFFERED 0x1p32

typedef struct step_vote {
    const uint32_t *aborted; /* host memory, set before what hangs is aborted */
    const double *loss_sum;  /* the plan's commit_from */
    float *wish;             /* what ranks wish, which came with the gradients */
    int64_t images;          /* of all ranks in the step */
    int world_size;
} step_vote;

typedef struct step_state {
    step_plan plan;
    step_commit commit;
    loss_scaling scaling;
    float adam_step_size;        /* lr / (1 - beta1^t), t = steps that were not skipped */
    float adam_correction2_sqrt; /* sqrt(1 - beta2^t) */
} step_state;

/* What the loss gradient is multiplied by, and the optimizer divides by. */
STEP_FN float step_loss_scale(const step_state *state)
{
    return state->plan.scale_loss ? state->scaling.scale : 1.0f;
}

/* The optimizer changes nothing in this step. */
STEP_FN bool step_is_skipped(const step_state *state)
{
    return state->commit.ended != 0 || (state->plan.scale_loss && state->scaling.overflow != 0);
}

STEP_FN void step_offer(const step_vote *vote, step_state *state)
{
    step_commit *c = &state->commit;
    if (*(const volatile uint32_t *)vote->aborted != 0)
        c->ended = 1;
    c->offer[0] = *vote->loss_sum - c->before;
    c->offer[1] = c->ended != 0 ? 0.0 : STEP_OFFERED + (double)state->plan.step;
}

/* After the sum: what was aborted may have left anything there, and among the gradients. */
STEP_FN void step_take(const step_vote *vote, step_state *state)
{
    step_commit *c = &state->commit;
    double whole = (double)vote->world_size * (STEP_OFFERED + (double)state->plan.step);
    bool is_whole = fabs(c->offer[1] - whole) < 0.5;
    if (!is_whole || *(const volatile uint32_t *)vote->aborted != 0)
        c->ended = 1;
    if (c->ended != 0) {
        *vote->wish = 0.0f;
        return;
    }
    c->loss += c->offer[0];
    c->images += vote->images;
    c->steps++;
}

/* Updates the scale after a step, by whether it had an overflow. */
STEP_FN void loss_scaling_advance(loss_scaling *s)
{
    if (!(s->scale > 0.0f)) {
        s->scale = LOSS_SCALE_FIRST;
    } else if (s->overflow != 0) {
        s->scale *= 0.5f;
        s->good_steps = 0;
        s->skipped++;
    } else if (++s->good_steps == LOSS_SCALE_INTERVAL) {
        s->scale *= 2.0f;
        s->good_steps = 0;
    }
    s->overflow = 0;
}

/* What begin_step of every device does. The plan's `stop`, or NaN, is stored to *stop_flag, which
 * is all-reduced with the gradients; NULL: not stored. */
STEP_FN void step_begin(const step_plan *plan, step_state *state, float *stop_flag)
{
    state->plan = *plan;
    if (stop_flag != NULL)
        *stop_flag = plan->loss_sum != NULL && !isfinite(*plan->loss_sum) ? (float)NAN : plan->stop;
    if (plan->step == 0)
        return;
    if (plan->commit_anew) {
        state->commit.loss = 0.0;
        state->commit.images = state->commit.steps = 0;
    }
    if (plan->commit_from != NULL)
        state->commit.before = *plan->commit_from;
    if (plan->scale_loss && state->commit.ended == 0)
        loss_scaling_advance(&state->scaling);
    if (plan->beta2 > 0.0f) {
        double t = (double)(plan->step - state->scaling.skipped);
        double correction1 = 1.0 - pow((double)plan->beta1, t);
        double correction2 = 1.0 - pow((double)plan->beta2, t);
        state->adam_step_size = (float)((double)plan->lr / correction1);
        state->adam_correction2_sqrt = (float)sqrt(correction2);
    }
}

#endif
