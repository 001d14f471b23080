#include "app/options/val_split.h"

#include <math.h>

status val_split_check(double split)
{
    if (split >= 1 && split > floor(split))
        return FAIL(STATUS_INVALID,
                    "--val-split=%g: give a whole number of images, or a share of them below 1",
                    split);
    return STATUS_OK;
}

status val_split_images(double split, uint32_t images, uint32_t *out)
{
    double held = split < 1 ? floor(images * split) : split;
    TRY(val_split_check(split));
    if (split > 0 && held < 1)
        return FAIL(STATUS_INVALID, "--val-split=%g: less than one of %u training images", split,
                    images);
    if (held >= images)
        return FAIL(
            STATUS_INVALID,
            "--val-split=%.0f: there are %u training images, and at least one of them is to "
            "be trained on",
            held, images);
    *out = (uint32_t)held;
    return STATUS_OK;
}
