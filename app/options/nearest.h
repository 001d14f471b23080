/* "Did you mean": the candidate with the fewest single-letter edits. */
#ifndef MNIST_DDP_APP_OPTIONS_NEAREST_H
#define MNIST_DDP_APP_OPTIONS_NEAREST_H

#include <stdbool.h>

enum { NEAREST_BYTES = 64 };

typedef struct nearest {
    const char *word;         /* what was typed; not owned */
    char best[NEAREST_BYTES]; /* "" while nothing is near */
    int distance;             /* of best: edits */
} nearest;

void nearest_init(nearest *search, const char *word);

/* Keeps the candidate if it is nearer than all before and near enough to be meant. */
void nearest_offer(nearest *search, const char *candidate);

bool nearest_found(const nearest *search);

#endif
