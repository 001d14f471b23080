/* mnist_ddp demo NAME: one rank of a demonstration; without a name, the list. */
#ifndef MNIST_DDP_APP_DEMO_DEMO_COMMAND_H
#define MNIST_DDP_APP_DEMO_DEMO_COMMAND_H

#include "app/options/options.h"
#include "dist/rendezvous.h"

#include <stdint.h>

/* Before ranks are started: sets how many, if no flag says it. STATUS_INVALID for an unknown name.
 */
status demo_complete(options *opts);

/* The same: can it be shown with so many? STATUS_INVALID. */
status demo_check(const options *opts, int world_size);

/* The same: are the images there, if this is a demo that trains, and can the page be written?
 * *code: what to exit with on failure. Of ranks started by hand only rank 0 tries the page, in
 * demo_command. */
status demo_check_files(const options *opts, int *code);

/* Prints the names; returns the exit code. */
int demo_list(void);

/* As one rank; returns the exit code. */
int demo_command(const options *opts, const rendezvous_place *place, int64_t started_ns);

#endif
