#include "data/raster/raster.h"

#include <stdlib.h>

status raster_make(const char *name, uint64_t width, uint64_t height, raster *out)
{
    if (width == 0 || height == 0)
        return FAIL(STATUS_INVALID, "%s: a picture without pixels (%llux%llu)", name,
                    (unsigned long long)width, (unsigned long long)height);
    if (width > RASTER_MAX_SIDE || height > RASTER_MAX_SIDE || width * height > RASTER_MAX_PIXELS)
        return FAIL(STATUS_INVALID,
                    "%s: %llux%llu pixels are too many: at most %d million, and %d a side; make it "
                    "smaller: convert '%s' -resize 1000x1000 small.png",
                    name, (unsigned long long)width, (unsigned long long)height,
                    RASTER_MAX_PIXELS >> 20, RASTER_MAX_SIDE, name);
    uint8_t *grey = malloc((size_t)(width * height));
    if (grey == NULL)
        return FAIL(STATUS_NO_MEMORY, "%s: a picture of %llux%llu pixels", name,
                    (unsigned long long)width, (unsigned long long)height);
    *out = (raster){(int)width, (int)height, grey};
    return STATUS_OK;
}

void raster_free(raster *p)
{
    free(p->grey);
    *p = (raster){0};
}
