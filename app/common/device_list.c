#include "app/common/device_list.h"

#include "base/host.h"
#include "base/log.h"
#include "base/text.h"
#include "base/thread.h"
#include "kernels/device_kind.h"
#include "kernels/ops.h"

#include <ctype.h>
#include <string.h>

enum { MAX_LISTED = 64, MAX_INDEX = 1023 };

typedef struct device_list {
    const char *name; /* the device's */
    int n;            /* 0: all GPUs */
    int index[MAX_LISTED];
} device_list;

/* "0,3". */
static status parse_indices(const char *flag, const char *text, device_list *out)
{
    for (const char *at = text;; at++) {
        int index = 0;
        if (!number_next(&at, 0, MAX_INDEX, &index) || out->n == MAX_LISTED ||
            (*at != ',' && *at != '\0'))
            return FAIL(STATUS_INVALID, "%s=%.64s: expected GPUs by number, as in %s=0,3", flag,
                        text, flag);
        for (int i = 0; i < out->n; i++)
            if (out->index[i] == index)
                return FAIL(STATUS_INVALID, "%s=%.64s names GPU %d twice", flag, text, index);
        out->index[out->n++] = index;
        if (*at == '\0')
            return STATUS_OK;
    }
}

static status parse_devices(const options *o, device_list *out)
{
    *out = (device_list){.name = o->no_accel ? "cpu" : o->device};
    const char *name = out->name;
    if (isdigit((unsigned char)name[0])) { /* --device 0,3 means --devices 0,3 */
        TRY(parse_indices("--device", name, out));
        out->name = "cuda";
    } else if (strncmp(name, "cuda:", 5) == 0) { /* as PyTorch spells one GPU */
        TRY(parse_indices("--device=cuda", name + 5, out));
        out->name = "cuda";
    }
    if (o->devices == NULL)
        return STATUS_OK;
    if (out->n > 0)
        return FAIL(STATUS_INVALID, "--device=%.64s and --devices=%.64s: give one of them", name,
                    o->devices);
    if (strcmp(out->name, "auto") == 0)
        out->name = "cuda";
    if (strcmp(out->name, "cuda") != 0)
        return FAIL(STATUS_INVALID, "--devices=%.64s names GPUs, but the device is %s", o->devices,
                    out->name);
    return parse_indices("--devices", o->devices, out);
}

static status check_isa(const options *o, const char *name)
{
    bool chooses = strcmp(name, "cpu") == 0 || strcmp(name, "auto") == 0;
    if (!chooses && o->dense)
        return FAIL(STATUS_INVALID,
                    "--dense: only the device cpu leaves zeros out, not %s: give --device=cpu, or "
                    "leave the flag out",
                    name);
    if (chooses || strcmp(o->isa, "auto") == 0)
        return STATUS_OK;
    return FAIL(STATUS_INVALID,
                "--isa=%s: only the device cpu chooses instructions, not %s: give --device=cpu, or "
                "--isa=auto",
                o->isa, name);
}

static status parse(const options *o, device_list *out)
{
    TRY(parse_devices(o, out));
    if (strcmp(out->name, "onednn") == 0)
        return FAIL(STATUS_INVALID,
                    "--device=onednn is gone: --device=cpu has kernels for any processor");
    return check_isa(o, out->name);
}

static status precision_of(const options *o, precision *out)
{
    bool amp = strcmp(o->amp, "off") != 0;
    if (amp && o->tf32)
        return FAIL(STATUS_INVALID, "--amp=%s and --tf32: give one of them", o->amp);
    *out = o->tf32 ? PRECISION_TF32 : PRECISION_F32;
    if (amp)
        *out = strcmp(o->amp, "bf16") == 0 ? PRECISION_BF16 : PRECISION_F16;
    return STATUS_OK;
}

/* The numbers of CUDA_VISIBLE_DEVICES again (0,3) are the machine's: CUDA itself now counts those
 * GPUs from 0. Only if they cannot be CUDA's own. *count: the GPUs that CUDA counts. */
static status take_visible(device_list *list, int *count, bool *taken)
{
    device_list visible = {.n = 0};
    const char *text = environment_text("CUDA_VISIBLE_DEVICES");
    int highest = 0;
    *taken = false;
    TRY(device_count(count, NULL));
    for (int i = 0; i < list->n; i++)
        highest = list->index[i] > highest ? list->index[i] : highest;
    *taken = highest >= *count && list->n == *count && text != NULL &&
             parse_indices("CUDA_VISIBLE_DEVICES", text, &visible) == STATUS_OK &&
             visible.n == list->n &&
             memcmp(visible.index, list->index, (size_t)list->n * sizeof *list->index) == 0;
    for (int i = 0; i < list->n && *taken; i++)
        list->index[i] = i;
    return STATUS_OK;
}

status device_list_check(const options *opts)
{
    device_list list;
    int count = 0;
    bool taken = false;
    TRY(parse(opts, &list));
    if (list.n == 0) /* which is not there is said once, not by each rank */
        return strcmp(list.name, "cuda") == 0 ? device_count(&count, NULL) : STATUS_OK;
    TRY(take_visible(&list, &count, &taken));
    const char *visible = environment_text("CUDA_VISIBLE_DEVICES");
    if (taken)
        LOG_I("the GPUs %.64s are the machine's numbers, as in CUDA_VISIBLE_DEVICES", visible);
    for (int i = 0; i < list.n; i++)
        if (list.index[i] >= count)
            return FAIL(STATUS_INVALID, "there is no GPU %d; there %s %d, counted from 0%s%.64s",
                        list.index[i], count == 1 ? "is" : "are", count,
                        visible != NULL ? " among CUDA_VISIBLE_DEVICES=" : "",
                        visible != NULL ? visible : "");
    return STATUS_OK;
}

status device_list_choose(const options *opts, int local_rank, device_options *out)
{
    device_list list;
    TRY(parse(opts, &list));
    TRY(precision_of(opts, &out->precision));
    out->name = list.name;
    out->index = 0;
    out->isa = opts->isa;
    out->dense = opts->dense;
    int count = list.n;
    if (strcmp(out->name, "auto") == 0)
        out->name = device_auto_is_cuda() ? "cuda" : "cpu";
    TRY(check_isa(opts, out->name));
    bool taken = false;
    if (count == 0 && strcmp(out->name, "cuda") == 0)
        TRY(device_count(&count, NULL));
    else if (count > 0 && environment_text("CUDA_VISIBLE_DEVICES") != NULL)
        TRY(take_visible(&list, &count, &taken));
    count = list.n > 0 ? list.n : count;
    if (count > 0)
        out->index = list.n > 0 ? list.index[local_rank % count] : local_rank % count;
    return STATUS_OK;
}

status device_list_open(const options *opts, int local_rank, int threads, device **out)
{
    device_options which = {.threads = threads};
    if (threads == 0)
        which.threads = opts->threads > 0 ? (int)opts->threads : cores_count();
    TRY(device_list_choose(opts, local_rank, &which));
    TRY(device_create(&which, out));
    if ((*out)->emulation != NULL)
        LOG_W("device %s: %s", (*out)->ops->name, (*out)->emulation);
    return STATUS_OK;
}

status device_list_count(const options *opts, int *out)
{
    device_list list;
    TRY(parse(opts, &list));
    *out = list.n;
    if (list.n > 0)
        return STATUS_OK;
    if (strcmp(list.name, "cuda") == 0)
        return device_count(out, NULL);
    if (strcmp(list.name, "auto") == 0 && device_auto_is_cuda())
        return device_count(out, NULL);
    return STATUS_OK;
}

int device_list_named(const options *opts)
{
    device_list list;
    return parse(opts, &list) == STATUS_OK ? list.n : 0;
}
