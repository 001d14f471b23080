/* Waits for what a node of an elastic job hears from its rendezvous. */
#ifndef MNIST_DDP_TESTS_SUPPORT_RENDEZVOUS_PHASE_H
#define MNIST_DDP_TESTS_SUPPORT_RENDEZVOUS_PHASE_H

#include "dist/elastic/rdzv.h"

/* The news, as soon as they are of that phase; fails the test after timeout_ms. */
rdzv_news rendezvous_phase_await(rdzv_handle *rdzv, rdzv_phase phase, int64_t timeout_ms);

#endif
