/* Parts of a page. */
#ifndef MNIST_DDP_APP_REPORT_HTML_H
#define MNIST_DDP_APP_REPORT_HTML_H

#include "base/status.h"

#include <stdint.h>
#include <stdio.h>

/* The pieces of an HTML page that needs nothing else: no network, no script. */

/* All up to <body>, with the title as its heading. `styles` is CSS, in pieces; NULL ends it. */
void html_begin(FILE *out, const char *title, const char *const *styles);
void html_end(FILE *out);

/* Text, with what HTML would take for markup spelled out, and control characters replaced. NULL is
 * "". */
void html_text(FILE *out, const char *text);

/* <tag>text</tag> and a newline. */
void html_tagged(FILE *out, const char *tag, const char *text);

/* Pictures inside a page: an <img> whose PNG or SVG stands in the page itself. */

enum { IMAGE_MAX_SIDE = 28 };

typedef enum image_palette {
    IMAGE_GREYS,  /* 0 is black, 255 white */
    IMAGE_SIGNED, /* 128 is transparent; above it orange, below it blue, the stronger the farther */
} image_palette;

/* side x side pixels, row by row; `side` is IMAGE_MAX_SIDE at most. `text` is what it shows, in
 * words. STATUS_NO_MEMORY. */
status image_write(FILE *out, int side, const uint8_t *pixels, image_palette palette,
                   const char *text);

/* The SVG of a file, 16 MiB at most. As an image: no script of it runs, whatever it holds. `style`
 * is its CSS. */
status image_write_svg(FILE *out, const char *path, const char *style, const char *text);

#endif
