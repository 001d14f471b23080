// What the gloo module's functions throw; dist/backends/gloo/module.cc turns it into a status.
#ifndef MNIST_DDP_DIST_BACKENDS_GLOO_FAILURE_H
#define MNIST_DDP_DIST_BACKENDS_GLOO_FAILURE_H

extern "C" {
#include "base/status.h"
}

#include <exception>
#include <string>

namespace mnist_ddp
{

// A failure as the C side keeps it: code, text, and the place in the sources that made it.
class failure : public std::exception
{
  public:
    // Fails at the place that calls this.
    failure(status code_, const std::string &text, const char *file = __builtin_FILE(),
            int line = __builtin_LINE())
        : code(status_fail(code_, file, line, "%s", text.c_str()))
    {
        status_keep(&kept);
    }

    // This thread's latest FAIL, or with STATUS_OK none.
    explicit failure(status code_) : code(code_)
    {
        status_keep(&kept);
    }

    const char *what() const noexcept override
    {
        return kept.text;
    }

    status code;
    status_kept kept;
};

} // namespace mnist_ddp

#endif
