/* What a run is: what came of its settings, and where it runs. config.json and result.json have
 * these under the same names. */
#ifndef MNIST_DDP_APP_TRAIN_RUN_FACTS_H
#define MNIST_DDP_APP_TRAIN_RUN_FACTS_H

#include "app/train/rank_context.h"

#include <jansson.h>

/* Adds them to the object: system, mode, world, replicas, model, parameters, backend, device,
 * threads, precision, optimizer_name, lr, weight_decay, schedule, seed, batch, global_batch; gpu if
 * it computes on one. Memory that runs out is noted (base/json_text.h). */
void run_facts_add(json_t *object, const rank_context *rank);

/* Adds what config.json has beside them: data_folder, train_images, val_images, test_images, and
 * the machine of this rank. */
void run_facts_add_place(json_t *object, const rank_context *rank);

/* Adds "hosts": the name of each host once, the lowest rank's first. All ranks call it; if the job
 * has more than one host, they tell each other. STATUS_PEER, STATUS_TIMEOUT as a collective. */
status run_facts_add_hosts(json_t *object, const rank_context *rank);

#endif
