/* A state and a node's record as JSON, as they lie at the service. What comes from there is read
 * strictly: it may be anybody's.
 */
#ifndef MNIST_DDP_DIST_ELASTIC_ROUND_TEXT_H
#define MNIST_DDP_DIST_ELASTIC_ROUND_TEXT_H

#include "dist/elastic/rdzv_ops.h"
#include "dist/elastic/round_state.h"

enum {
    ROUND_TEXT_BYTES = 4 << 20, /* a state's or a record's, at most */
    ROUND_MAX_NODES = 10000,
};

/* The caller's to free. STATUS_NO_MEMORY; STATUS_INVALID if a text in it is no UTF-8. */
status round_text_of_state(const round_state *state, char **out);
status round_text_of_node(const round_node *node, char **out);

/* What the service has. *out is the caller's (round_view_free). A record that makes no sense is
 * left out. STATUS_PEER if there are too many nodes, or the state makes no sense;
 * STATUS_NO_MEMORY. */
status round_text_read(const rdzv_view *text, round_view *out);

#endif
