/* A trained model that classifies images, and what its logits say. */
#ifndef MNIST_DDP_MODEL_CLASSIFIER_H
#define MNIST_DDP_MODEL_CLASSIFIER_H

#include "kernels/augmentation.h"
#include "model/network.h"

/* What a network's logits say of one image. */

typedef struct prediction {
    int label;                             /* where the largest logit is, the first of equals */
    double probabilities[NETWORK_CLASSES]; /* softmax; NaN if a logit is not finite */
} prediction;

prediction prediction_of(const float logits[NETWORK_CLASSES]);

/* The cross-entropy if `label` (< NETWORK_CLASSES) is the truth, in nats. NaN or infinite if a
 * logit is not finite. */
double prediction_loss(const float logits[NETWORK_CLASSES], int label);

/* A trained model that classifies images. */

typedef struct classifier classifier;

enum { CLASSIFIER_PIXELS = AUGMENTATION_SIDE * AUGMENTATION_SIDE }; /* an image's */

/* Loads a model.safetensors, or that of a run's or a checkpoint's folder, as checkpoint_load_model
 * does; the file says which model it is. `max_batch`: images of one forward at most; it takes no
 * more than network_eval_batch. The device must outlive it. Warns of a weight that is not
 * finite. */
status classifier_create(device *dev, const char *path, int max_batch, classifier **out);
void classifier_destroy(classifier *c); /* accepts NULL */

/* The logits (n, NETWORK_CLASSES) of images (n, 28, 28), both host memory; any n. A pixel is a byte
 * as in MNIST's files: 0 is the background, 255 the ink. model/classifier.h makes probabilities of
 * logits. Waits for the device. */
status classifier_run(classifier *c, const uint8_t *images, size_t n, float *logits);

/* Owned by the classifier. */
network *classifier_network(classifier *c);

#endif
