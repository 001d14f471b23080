/* Values of training flags that are more than a number. */
#ifndef MNIST_DDP_APP_OPTIONS_TRAINING_VALUES_H
#define MNIST_DDP_APP_OPTIONS_TRAINING_VALUES_H

#include "base/status.h"

#include <stdbool.h>
#include <stdint.h>

/* Adam's two factors: --adam-betas. */

typedef struct adam_betas {
    double first, second; /* 0 <= first < 1, 0 < second < 1 */
} adam_betas;

/* "0.9,0.999". STATUS_INVALID with what is allowed. */
status adam_betas_parse(const char *text, adam_betas *out);

/* How training images are changed: --augment. */

/* How far, at most: as in kernels/augmentation.h. All 0: not at all. */
typedef struct augment {
    double shift, rotate, scale;
} augment;

/* "shift=2,rotate=10,scale=0.1", any of them; NULL: none. STATUS_INVALID with what is allowed. */
status augment_parse(const char *text, augment *out);

/* How often something is due: --save-every, --eval-every. */

typedef struct interval {
    int64_t count; /* so many epochs or optimizer steps; 0: never */
    bool in_steps;
} interval;

/* "5", "5epochs" or "100steps", of at least `least`. `flag`, as "--save-every", is for the message
 * of STATUS_INVALID. */
status interval_parse(const char *flag, int least, const char *text, interval *out);

/* Is it due after so many steps, or epochs, of the run? */
bool interval_is_due_after_steps(const interval *every, int64_t steps);
bool interval_is_due_after_epochs(const interval *every, int64_t epochs);

/* The images that --val-split holds back from training. */

/* How many of `images` they are. `split` is a number of images from 1 on, or a share below 1: then
 * as many as torch.utils.data.random_split gives the second part of [1 - split, split], which is
 * rounded down. 0: none. STATUS_INVALID if it is no whole number of images, a share of less than
 * one image, or leaves none to train on. */
status val_split_images(double split, uint32_t images, uint32_t *out);

/* The same as far as it is known without the number of images. */
status val_split_check(double split);

/* Faults on demand, so that every failure can be seen and its diagnosis read: --inject.
 *
 *   kill:rank=1,step=50            rank 1 gets SIGKILL before its optimizer step 50
 *   stop:rank=1,step=50            SIGSTOP: it hangs
 *   delay:rank=1,step=50,ms=2000   it is late, once; without a step: at every step
 *   slow:ms=20                     every forward and backward takes 20 ms longer; rank=1: only its
 *   drop-conn:rank=1,step=50       its TCP connections break
 *   uneven:rank=1                  it has one step less in every epoch than the others
 *   forget-set-epoch               every epoch in the order of the first
 *   port-busy                      somebody holds the master port: the launcher's
 *
 * Steps count from 1, over the whole run. A fault happens in attempt 0, before any restart,
 * unless gen=N names another.
 */

typedef enum inject_kind {
    INJECT_NONE,
    INJECT_KILL,
    INJECT_STOP,
    INJECT_DELAY,
    INJECT_SLOW,
    INJECT_DROP_CONN,
    INJECT_UNEVEN,
    INJECT_FORGET_SET_EPOCH,
    INJECT_PORT_BUSY,
} inject_kind;

typedef struct inject {
    inject_kind kind;
    int64_t rank;    /* -1: not said */
    int64_t step;    /* 0: not said */
    int64_t ms;      /* how long a delay lasts, and how much longer what is slow takes */
    int64_t attempt; /* in which it happens */
} inject;

/* NULL: INJECT_NONE. STATUS_INVALID with what is wrong and what could be meant. */
status inject_parse(const char *text, inject *out);

#endif
