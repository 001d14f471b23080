// The gloo backend as a module: libgloo is C++ and has many dependencies, so the program opens this
// only when asked for it. No exception leaves: each becomes a status.
#include "dist/backends/gloo/algorithms.h"
#include "dist/backends/gloo/engine.h"

#include "base/module.h"
#include "dist/collective/collective.h"

namespace
{

using mnist_ddp::engine;
using mnist_ddp::failure;
using mnist_ddp::job;

typedef std::shared_ptr<engine> handle;

template <typename Fn> status guard(Fn fn)
{
    try {
        fn();
        return STATUS_OK;
    } catch (const failure &e) {
        status_restore(&e.kept);
        return e.code;
    } catch (const std::bad_alloc &) {
        return FAIL(STATUS_NO_MEMORY, "gloo");
    } catch (const std::exception &e) {
        return FAIL(STATUS_PEER, "gloo: %s", e.what());
    } catch (...) {
        return FAIL(STATUS_PEER, "gloo threw something unknown");
    }
}

status gloo_create(const group_setup *setup, void **self)
{
    return guard([setup, self] {
        handle made = std::make_shared<engine>(*setup);
        handle *out = new handle(made);
        made->start();
        *self = out;
    });
}

status gloo_launch(void *self, const collective *c, device_stream *, void **out_work)
{
    return guard([=] { *out_work = (*static_cast<handle *>(self))->launch(*c); });
}

status gloo_wait(void *self, void *w, int64_t deadline_ns, int64_t *done_ns)
{
    return guard(
        [=] { (*static_cast<handle *>(self))->wait(static_cast<job *>(w), deadline_ns, done_ns); });
}

void gloo_abort(void *self, const char *)
{
    (void)guard([self] { (*static_cast<handle *>(self))->abort(); });
}

void gloo_destroy(void *self)
{
    handle *held = static_cast<handle *>(self);
    (void)guard([held] { (*held)->stop(); });
    (void)guard([held] { delete held; });
}

rank_traffic gloo_traffic(const collective *c, int rank, int world_size)
{
    return mnist_ddp::perform_traffic(*c, rank, world_size);
}

const process_group_ops gloo_ops = {
    "gloo",  false,   false,      gloo_create,  gloo_launch,  gloo_wait, nullptr,
    nullptr, nullptr, gloo_abort, gloo_destroy, gloo_traffic, nullptr,
};

} // namespace

extern "C" {
extern const module mnist_ddp_module;
const module mnist_ddp_module = {MODULE_ABI_VERSION, nullptr, nullptr, &gloo_ops, nullptr, nullptr};
}
