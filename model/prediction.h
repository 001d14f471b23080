/* What a network's logits say of one image. */
#ifndef MNIST_DDP_MODEL_PREDICTION_H
#define MNIST_DDP_MODEL_PREDICTION_H

#include "model/network.h"

typedef struct prediction {
    int label;                             /* of the largest logit, the first of equals */
    double probabilities[NETWORK_CLASSES]; /* softmax; NaN if a logit is not finite */
} prediction;

prediction prediction_of(const float logits[NETWORK_CLASSES]);

/* The cross-entropy if `label` (< NETWORK_CLASSES) is the truth, in nats. NaN or infinite if a
 * logit is not finite. */
double prediction_loss(const float logits[NETWORK_CLASSES], int label);

#endif
