/* Emulated NCCL: its entry points. */
#include "nccl_comm.h"
#include "nccl_reduce.h"
#include "nccl_settings.h"

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <cstring>

struct ncclComm {
    std::shared_ptr<emulated::communicator> it;
};

namespace emulated
{

namespace
{

/* The process's latest words, as the real library keeps them. */
struct words {
    std::mutex lock;
    char text[512] = "";
};

words &last_words()
{
    static auto *one = new words;
    return *one;
}

/* Calls between ncclGroupStart and ncclGroupEnd. */
struct group {
    int depth = 0;
    ncclResult_t failed = ncclSuccess;
    std::vector<std::pair<communicator *, nccl_launch>> launches;
};

thread_local group open_group;

/* Messages on the same stream join; each collective is a launch of its own. */
void add_to_group(communicator *comm, const nccl_call &call, cudaStream_t stream)
{
    for (auto &[owner, launch] : open_group.launches)
        if (owner == comm && launch.stream == stream && is_message(call.operation.kind) &&
            is_message(launch.calls.front().operation.kind)) {
            launch.calls.push_back(call);
            return;
        }
    open_group.launches.push_back({comm, {{call}, stream}});
}

ncclResult_t launch_group()
{
    auto launches = std::move(open_group.launches);
    ncclResult_t failed = open_group.failed, result = ncclSuccess;
    open_group = {};
    if (failed != ncclSuccess)
        return failed;
    while (!launches.empty()) {
        communicator *comm = launches.front().first;
        std::vector<nccl_launch> own;
        for (auto &[owner, launch] : launches)
            if (owner == comm)
                own.push_back(std::move(launch));
        launches.erase(std::remove_if(launches.begin(), launches.end(),
                                      [=](const auto &one) { return one.first == comm; }),
                       launches.end());
        ncclResult_t one = comm->launch(std::move(own));
        if (one != ncclSuccess && (result == ncclSuccess || result == ncclInProgress))
            result = one;
    }
    return result;
}

ncclResult_t check_call(ncclComm_t comm, const nccl_call &call)
{
    const nccl_operation &o = call.operation;
    const char *name = nccl_name(o.kind);
    if (comm == nullptr || comm->it == nullptr)
        return nccl_failure(ncclInvalidArgument, "%s: comm is null", name);
    if (nccl_type_bytes(o.type) == 0)
        return nccl_failure(ncclInvalidArgument, "%s: type %d", name, o.type);
    if (o.op < ncclSum || o.op > ncclAvg)
        return nccl_failure(ncclInvalidArgument, "%s: operation %d", name, o.op);
    if (o.root < 0 || o.root >= comm->it->ranks)
        return nccl_failure(ncclInvalidArgument, "%s: rank %d of %d", name, o.root,
                            comm->it->ranks);
    return ncclSuccess;
}

ncclResult_t enter(ncclComm_t comm, const nccl_call &call, cudaStream_t stream)
{
    ncclResult_t result = check_call(comm, call);
    if (result == ncclSuccess && call.operation.count > 0)
        add_to_group(comm->it.get(), call, stream);
    if (open_group.depth > 0) {
        if (result != ncclSuccess)
            open_group.failed = result;
        return result;
    }
    return result == ncclSuccess ? launch_group() : result;
}

nccl_operation operation_of(nccl_kind kind, size_t count, ncclDataType_t type,
                            ncclRedOp_t op = ncclSum, int root = 0)
{
    return {kind, type, op, root, count};
}

ncclResult_t release_handle(ncclComm_t comm)
{
    delete comm;
    account("nccl communicator", -1);
    return ncclSuccess;
}

const char *type_name(ncclDataType_t type)
{
    return type == ncclInt64     ? "ncclInt64"
           : type == ncclUint8   ? "ncclUint8"
           : type == ncclFloat16 ? "ncclFloat16"
           : type == ncclFloat32 ? "ncclFloat32"
           : type == ncclFloat64 ? "ncclFloat64"
                                 : "ncclBfloat16";
}

} // namespace

ncclResult_t nccl_failure(ncclResult_t result, const char *format, ...)
{
    words &last = last_words();
    std::lock_guard<std::mutex> hold(last.lock);
    va_list arguments;
    va_start(arguments, format);
    std::vsnprintf(last.text, sizeof last.text, format, arguments);
    va_end(arguments);
    return result;
}

const char *nccl_name(nccl_kind kind)
{
    switch (kind) {
    case nccl_kind::all_reduce:
        return "ncclAllReduce";
    case nccl_kind::broadcast:
        return "ncclBroadcast";
    case nccl_kind::reduce:
        return "ncclReduce";
    case nccl_kind::all_gather:
        return "ncclAllGather";
    case nccl_kind::reduce_scatter:
        return "ncclReduceScatter";
    case nccl_kind::send:
        return "ncclSend";
    case nccl_kind::receive:
        return "ncclRecv";
    }
    return "?";
}

void nccl_describe(const nccl_operation &o, char *text, size_t size_bytes)
{
    bool reduces = o.kind == nccl_kind::all_reduce || o.kind == nccl_kind::reduce ||
                   o.kind == nccl_kind::reduce_scatter;
    bool has_rank =
        o.kind == nccl_kind::broadcast || o.kind == nccl_kind::reduce || is_message(o.kind);
    char more[64] = "";
    if (has_rank)
        std::snprintf(more, sizeof more, ", %s %d", is_message(o.kind) ? "peer" : "root", o.root);
    std::snprintf(text, size_bytes, "%s(%llu x %s%s%s)", nccl_name(o.kind),
                  static_cast<unsigned long long>(o.count), type_name(o.type),
                  !reduces           ? ""
                  : o.op == ncclSum  ? ", ncclSum"
                  : o.op == ncclProd ? ", ncclProd"
                  : o.op == ncclMax  ? ", ncclMax"
                  : o.op == ncclMin  ? ", ncclMin"
                                     : ", ncclAvg",
                  more);
}

} // namespace emulated

using namespace emulated;

ncclResult_t ncclGetVersion(int *version)
{
    if (int code = entry_point(__func__))
        return static_cast<ncclResult_t>(code);
    if (version == nullptr)
        return nccl_failure(ncclInvalidArgument, "%s: null", __func__);
    *version = NCCL_VERSION_CODE;
    return ncclSuccess;
}

const char *ncclGetErrorString(ncclResult_t result)
{
    (void)entry_point(__func__);
    switch (result) {
    case ncclSuccess:
        return "no error";
    case ncclUnhandledCudaError:
        return "unhandled cuda error";
    case ncclSystemError:
        return "unhandled system error";
    case ncclInternalError:
        return "internal error";
    case ncclInvalidArgument:
        return "invalid argument";
    case ncclInvalidUsage:
        return "invalid usage";
    case ncclRemoteError:
        return "remote process exited or there was a network error";
    case ncclInProgress:
        return "NCCL operation in progress";
    default:
        return "unknown result code";
    }
}

const char *ncclGetLastError(ncclComm_t)
{
    (void)entry_point(__func__);
    return last_words().text;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId *id)
{
    if (int code = entry_point(__func__))
        return static_cast<ncclResult_t>(code);
    if (id == nullptr)
        return nccl_failure(ncclInvalidArgument, "%s: null", __func__);
    nccl_read_settings();
    return nccl_region::create(id);
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t *comm, int ranks, ncclUniqueId id, int rank,
                                    ncclConfig_t *config)
{
    if (int code = entry_point(__func__))
        return static_cast<ncclResult_t>(code);
    if (device_status() != cudaSuccess)
        return nccl_failure(ncclUnhandledCudaError, "%s: no device that works", __func__);
    if (comm == nullptr || ranks < 1 || ranks > NCCL_MOST_RANKS || rank < 0 || rank >= ranks)
        return nccl_failure(ncclInvalidArgument, "%s: rank %d of %d", __func__, rank, ranks);
    const ncclConfig_t ordinary = NCCL_CONFIG_INITIALIZER;
    if (config != nullptr && (config->size != ordinary.size || config->magic != ordinary.magic ||
                              config->version != ordinary.version))
        return nccl_failure(ncclInvalidArgument, "%s: config is not initialized", __func__);
    nccl_read_settings();
    bool blocking = config == nullptr || config->blocking != 0;
    if (blocking && open_group.depth > 0)
        fatal("%s: blocking in a group is not emulated", __func__);
    auto made = std::make_shared<communicator>(std::make_shared<nccl_family>(), ranks, rank,
                                               blocking, current_device());
    made->shares = config != nullptr && config->splitShare == 1;
    ncclResult_t result = made->join(id);
    if (result != ncclSuccess && result != ncclInProgress) {
        made->release(__func__);
        return result;
    }
    *comm = new ncclComm{made};
    account("nccl communicator", +1);
    return result;
}

ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t *child,
                           ncclConfig_t *config)
{
    if (int code = entry_point(__func__))
        return static_cast<ncclResult_t>(code);
    if (comm == nullptr || child == nullptr)
        return nccl_failure(ncclInvalidArgument, "%s: null", __func__);
    if (color != 0 || key != comm->it->rank || !comm->it->shares || open_group.depth > 0)
        fatal("%s: other ranks, other order, splitShare 0 and groups are not emulated", __func__);
    *child = nullptr;
    bool blocks = config == nullptr || config->blocking != 0;
    return comm->it->split(blocks, [child](std::shared_ptr<communicator> made) {
        *child = new ncclComm{std::move(made)};
        account("nccl communicator", +1);
    });
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *error)
{
    if (int code = entry_point(__func__))
        return static_cast<ncclResult_t>(code);
    if (comm == nullptr || error == nullptr)
        return nccl_failure(ncclInvalidArgument, "%s: null", __func__);
    *error = comm->it->async_error();
    return ncclSuccess;
}

ncclResult_t ncclCommUserRank(const ncclComm_t comm, int *rank)
{
    if (int code = entry_point(__func__))
        return static_cast<ncclResult_t>(code);
    if (comm == nullptr || rank == nullptr)
        return nccl_failure(ncclInvalidArgument, "%s: null", __func__);
    *rank = comm->it->rank;
    return ncclSuccess;
}

ncclResult_t ncclCommFinalize(ncclComm_t comm)
{
    if (int code = entry_point(__func__))
        return static_cast<ncclResult_t>(code);
    if (comm == nullptr)
        return nccl_failure(ncclInvalidArgument, "%s: null", __func__);
    return comm->it->finalize();
}

ncclResult_t ncclCommDestroy(ncclComm_t comm)
{
    int code = entry_point(__func__);
    if (comm != nullptr) {
        comm->it->release(__func__);
        release_handle(comm);
    }
    return static_cast<ncclResult_t>(code);
}

ncclResult_t ncclCommAbort(ncclComm_t comm)
{
    int code = entry_point(__func__);
    if (comm != nullptr) {
        comm->it->abort();
        release_handle(comm);
    }
    return static_cast<ncclResult_t>(code);
}

ncclResult_t ncclAllReduce(const void *send, void *receive, size_t count, ncclDataType_t type,
                           ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream)
{
    if (int code = entry_point(__func__))
        return static_cast<ncclResult_t>(code);
    return enter(comm, {operation_of(nccl_kind::all_reduce, count, type, op), send, receive},
                 stream);
}

ncclResult_t ncclBroadcast(const void *send, void *receive, size_t count, ncclDataType_t type,
                           int root, ncclComm_t comm, cudaStream_t stream)
{
    if (int code = entry_point(__func__))
        return static_cast<ncclResult_t>(code);
    return enter(comm,
                 {operation_of(nccl_kind::broadcast, count, type, ncclSum, root), send, receive},
                 stream);
}

ncclResult_t ncclReduce(const void *send, void *receive, size_t count, ncclDataType_t type,
                        ncclRedOp_t op, int root, ncclComm_t comm, cudaStream_t stream)
{
    if (int code = entry_point(__func__))
        return static_cast<ncclResult_t>(code);
    return enter(comm, {operation_of(nccl_kind::reduce, count, type, op, root), send, receive},
                 stream);
}

ncclResult_t ncclAllGather(const void *send, void *receive, size_t send_count, ncclDataType_t type,
                           ncclComm_t comm, cudaStream_t stream)
{
    if (int code = entry_point(__func__))
        return static_cast<ncclResult_t>(code);
    return enter(comm, {operation_of(nccl_kind::all_gather, send_count, type), send, receive},
                 stream);
}

ncclResult_t ncclReduceScatter(const void *send, void *receive, size_t receive_count,
                               ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm,
                               cudaStream_t stream)
{
    if (int code = entry_point(__func__))
        return static_cast<ncclResult_t>(code);
    return enter(comm,
                 {operation_of(nccl_kind::reduce_scatter, receive_count, type, op), send, receive},
                 stream);
}

ncclResult_t ncclSend(const void *send, size_t count, ncclDataType_t type, int peer,
                      ncclComm_t comm, cudaStream_t stream)
{
    if (int code = entry_point(__func__))
        return static_cast<ncclResult_t>(code);
    return enter(comm, {operation_of(nccl_kind::send, count, type, ncclSum, peer), send, nullptr},
                 stream);
}

ncclResult_t ncclRecv(void *receive, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream)
{
    if (int code = entry_point(__func__))
        return static_cast<ncclResult_t>(code);
    return enter(comm,
                 {operation_of(nccl_kind::receive, count, type, ncclSum, peer), nullptr, receive},
                 stream);
}

ncclResult_t ncclGroupStart()
{
    if (int code = entry_point(__func__))
        return static_cast<ncclResult_t>(code);
    open_group.depth++;
    return ncclSuccess;
}

ncclResult_t ncclGroupEnd()
{
    if (int code = entry_point(__func__)) {
        open_group = {};
        return static_cast<ncclResult_t>(code);
    }
    if (open_group.depth == 0)
        return nccl_failure(ncclInvalidUsage, "ncclGroupEnd: not in a group call");
    if (--open_group.depth > 0)
        return ncclSuccess;
    return launch_group();
}
