#include "app/report/html.h"

#include "base/digest.h"
#include "base/file.h"
#include "base/memory.h"

#include <png.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

void html_text(FILE *out, const char *text)
{
    static const char replacement[] = "\uFFFD"; /* of a control character: HTML may not hold one */
    for (; text != NULL && *text != '\0'; text++) {
        bool controls =
            (*text > 0 && *text < ' ' && *text != '\n' && *text != '\t') || *text == 0x7f;
        const char *entity = *text == '&'   ? "&amp;"
                             : *text == '<' ? "&lt;"
                             : *text == '>' ? "&gt;"
                             : *text == '"' ? "&quot;"
                             : controls     ? replacement
                                            : NULL;
        if (entity != NULL)
            fputs(entity, out);
        else
            fputc(*text, out);
    }
}

void html_tagged(FILE *out, const char *tag, const char *text)
{
    fprintf(out, "<%s>", tag);
    html_text(out, text);
    fprintf(out, "</%s>\n", tag);
}

void html_begin(FILE *out, const char *title, const char *const *styles)
{
    fputs("<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
          "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
          "<link rel=\"icon\" href=\"data:,\">\n",
          out);
    html_tagged(out, "title", title);
    fputs("<style>\n", out);
    for (; *styles != NULL; styles++)
        fputs(*styles, out);
    fputs("</style>\n</head>\n<body>\n", out);
    html_tagged(out, "h1", title);
}

void html_end(FILE *out)
{
    fputs("</body>\n</html>\n", out);
}

/* So few colours that a palette is shorter than the pixels: of a byte the upper bits count. */
enum { COLOURS = 64, PER_COLOUR = 4, ZERO = COLOURS / 2, CHANNELS = 4, PNG_BYTES = 8192 };

static void fill_palette(uint8_t out[COLOURS][CHANNELS])
{
    static const uint8_t above[] = {0xd5, 0x5e, 0x00}, below[] = {0x00, 0x72, 0xb2};
    for (int i = 0; i < COLOURS; i++) {
        memcpy(out[i], i > ZERO ? above : below, sizeof above);
        out[i][CHANNELS - 1] = (uint8_t)(abs(i - ZERO) * UINT8_MAX / ZERO);
    }
}

/* Sets *size_bytes to the length of the PNG. */
static status make_png(int side, const uint8_t *pixels, image_palette palette,
                       uint8_t png[PNG_BYTES], size_t *size_bytes)
{
    uint8_t colours[COLOURS][CHANNELS], indices[IMAGE_MAX_SIDE * IMAGE_MAX_SIDE];
    bool greys = palette == IMAGE_GREYS;
    png_alloc_size_t length = PNG_BYTES;
    png_image image = {.version = PNG_IMAGE_VERSION,
                       .width = (png_uint_32)side,
                       .height = (png_uint_32)side,
                       .format = greys ? PNG_FORMAT_GRAY : PNG_FORMAT_RGBA_COLORMAP,
                       .colormap_entries = COLOURS};
    for (int i = 0; i < side * side; i++)
        indices[i] = pixels[i] / PER_COLOUR;
    fill_palette(colours);
    if (png_image_write_to_memory(&image, png, &length, 0, greys ? pixels : indices, side,
                                  colours) == 0)
        return FAIL(STATUS_NO_MEMORY, "a picture of %d x %d: %s", side, side, image.message);
    *size_bytes = length;
    return STATUS_OK;
}

/* Ends the element that has its src to come. */
static status put_data(FILE *out, const char *type, const void *bytes, size_t size_bytes)
{
    char *letters = NULL;
    TRY(memory_alloc(BASE64_TEXT_BYTES(size_bytes), (void **)&letters));
    base64_write(bytes, size_bytes, letters);
    fprintf(out, "src=\"data:image/%s;base64,%s\">", type, letters);
    free(letters);
    return STATUS_OK;
}

status image_write_svg(FILE *out, const char *path, const char *style, const char *text)
{
    enum { SVG_BYTES = 16 << 20 };
    char *svg = NULL;
    size_t size_bytes = 0;
    TRY(file_read(path, SVG_BYTES, &svg, &size_bytes));
    fprintf(out, "<img style=\"%s\" alt=\"", style);
    html_text(out, text);
    fputs("\" ", out);
    status st = put_data(out, "svg+xml", svg, size_bytes);
    free(svg);
    return st;
}

status image_write(FILE *out, int side, const uint8_t *pixels, image_palette palette,
                   const char *text)
{
    uint8_t png[PNG_BYTES];
    size_t size_bytes = 0;
    ASSERT(side >= 1 && side <= IMAGE_MAX_SIDE);
    TRY(make_png(side, pixels, palette, png, &size_bytes));
    fputs("<img alt=\"", out);
    html_text(out, text);
    fputs("\" title=\"", out);
    html_text(out, text);
    fputs("\" ", out);
    return put_data(out, "png", png, size_bytes);
}
