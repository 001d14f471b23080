/* What all nodes of a job must have alike. */
#ifndef MNIST_DDP_APP_LAUNCH_AGREEMENT_H
#define MNIST_DDP_APP_LAUNCH_AGREEMENT_H

#include "app/launch/worker_spec.h"

enum { AGREEMENT_TEXT_BYTES = 1000, AGREEMENT_PERSON_BYTES = 320 };

/* "hostA at eth0 (10.0.0.1), pid 4711": who this launcher is, for the others' messages. */
void launch_agreement_person(const worker_spec *spec, char out[AGREEMENT_PERSON_BYTES]);

/* This node's settings as text for the others; free with free(). */
status launch_agreement_write(const worker_spec *spec, char **out);

/* Compares with node 0's. *same; else `why` says who has what, and what to do. STATUS_PEER where
 * the text is nonsense. */
status launch_agreement_compare(const worker_spec *spec, const char *theirs, bool *same,
                                char why[AGREEMENT_TEXT_BYTES]);

#endif
