#include "dist/backends/nccl/nccl_call.h"

#include <stdio.h>
#include <string.h>

enum { DETAIL_BYTES = 400 };

static status status_of(ncclResult_t code)
{
    switch (code) {
    case ncclRemoteError:
        return STATUS_PEER;
    case ncclSystemError:
        return STATUS_IO;
    case ncclInvalidArgument:
    case ncclInvalidUsage:
        return STATUS_INVALID;
    default:
        return STATUS_DEVICE;
    }
}

/* NCCL's latest words in one line; they may be of an earlier failure that led to this one. */
static void read_detail(char *out)
{
    const char *words = ncclGetLastError(NULL);
    snprintf(out, DETAIL_BYTES, "%s", words != NULL ? words : "");
    for (char *c = out; *c != '\0'; c++)
        if (*c == '\n' || *c == '\r')
            *c = ' ';
    size_t length = strlen(out);
    while (length > 0 && out[length - 1] == ' ')
        out[--length] = '\0';
}

static const char *hint_of(const char *detail)
{
    if (strstr(detail, "Duplicate GPU") != NULL)
        return "; nccl needs one GPU per rank: use --backend=shm (one host) or gloo, or fewer "
               "ranks";
    return "";
}

status nccl_call_status(ncclResult_t code, const char *call, const char *file, int line)
{
    if (code == ncclSuccess || code == ncclInProgress)
        return STATUS_OK;
    char detail[DETAIL_BYTES];
    read_detail(detail);
    return status_fail(status_of(code), file, line, "%.*s: %s (%d)%s%s%s", (int)strcspn(call, "("),
                       call, ncclGetErrorString(code), (int)code, detail[0] != '\0' ? ": " : "",
                       detail, hint_of(detail));
}

/* 22809 is 2.28.9; up to 2.8 the numbers had one digit less. */
void nccl_call_version(char *out, size_t size_bytes)
{
    int code = 0;
    out[0] = '\0';
    if (ncclGetVersion(&code) != ncclSuccess)
        return;
    int unit = code >= 10000 ? 10000 : 1000;
    snprintf(out, size_bytes, "%d.%d.%d", code / unit, code % unit / 100, code % 100);
}
