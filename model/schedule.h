/* The learning rate of each optimizer step, in torch.optim.lr_scheduler's formulas and order of
 * operations: in float64, and with torch's bits if the C library's cos is the one that Python uses.
 */
#ifndef MNIST_DDP_MODEL_SCHEDULE_H
#define MNIST_DDP_MODEL_SCHEDULE_H

#include "base/status.h"

#include <stdbool.h>
#include <stdint.h>

typedef enum schedule_kind {
    SCHEDULE_STEP,     /* StepLR(step_size=1), stepped after each epoch */
    SCHEDULE_ONECYCLE, /* OneCycleLR(cycle_momentum=False), after each step */
    SCHEDULE_COSINE,   /* CosineAnnealingLR(T_max=the steps after the warm-up), after each step */
    SCHEDULE_NONE,     /* the same lr for all steps */
} schedule_kind;

typedef struct schedule_options {
    schedule_kind kind;
    double lr;            /* as the optimizer is given it; of OneCycleLR, max_lr */
    double gamma;         /* step: lr's factor after each epoch */
    double pct_start;     /* onecycle: the share of the steps in which lr rises, 0 to 1 */
    int64_t warmup_steps; /* LinearLR's total_iters; 0: no warm-up. onecycle has none */
    double warmup_factor; /* LinearLR's start_factor, above 0, at most 1 */
    int64_t epoch_steps;  /* optimizer steps of an epoch */
    int64_t total_steps;  /* the whole run has */
} schedule_options;

/* A place in the schedule. */
typedef struct schedule {
    schedule_options options;
    int64_t step; /* from 0 */
    double lr;    /* that step's */
} schedule;

status schedule_kind_parse(const char *name, schedule_kind *out);
const char *schedule_kind_name(schedule_kind kind);

/* Whether lr depends on how many steps the run has in total. */
bool schedule_kind_has_end(schedule_kind kind);

/* Stands at step 0. STATUS_INVALID if the warm-up leaves a cosine no step. */
status schedule_init(const schedule_options *options, schedule *out);

/* The lr of step `step`, from 0, of the run. Cheap if it is the current step or the one after it;
 * else all steps before it are gone through. */
double schedule_lr(schedule *s, int64_t step);

#endif
