// Sets up gloo's connections among all ranks.
#ifndef MNIST_DDP_DIST_BACKENDS_GLOO_CONNECT_H
#define MNIST_DDP_DIST_BACKENDS_GLOO_CONNECT_H

extern "C" {
#include "dist/collective/process_group_ops.h"
}

#include <gloo/rendezvous/context.h>

#include <memory>

namespace mnist_ddp
{

// Keys go through the group's store under "<prefix>gloo/". Sockets are bound to loopback if all
// ranks are on this host, else to $GLOO_SOCKET_IFNAME's address, else to the one from which the
// store's host is reached. On one host a few rings are tried. If they stall (loopback_mss.h), the
// ranks connect again with small segments; $MNIST_DDP_GLOO_CLAMP=1 does that at once. Blocks until
// all ranks are connected, at most options->timeout_ms; throws failure or gloo's exceptions.
std::shared_ptr<gloo::rendezvous::Context> connect_ranks(const group_setup &setup);

} // namespace mnist_ddp

#endif
