// What the gloo module's functions throw; dist/backends/gloo/module.cc turns it into a status.
#ifndef MNIST_DDP_DIST_GLOO_FAILURE_H
#define MNIST_DDP_DIST_GLOO_FAILURE_H

#include "base/status.h"

#include <stdexcept>
#include <string>

namespace mnist_ddp
{

// A failure with the code that the C side returns.
struct failure : std::runtime_error {
    failure(status code_, const std::string &text) : std::runtime_error(text), code(code_)
    {
    }
    status code;
};

} // namespace mnist_ddp

#endif
