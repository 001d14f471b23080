/* Grey pictures as lines of text: a line shows two rows of pixels, a column one of them. */
#ifndef MNIST_DDP_APP_COMMON_PICTURE_H
#define MNIST_DDP_APP_COMMON_PICTURE_H

#include <stdint.h>

typedef enum picture_style {
    PICTURE_ASCII,  /* letters of rising ink, for two pixels together */
    PICTURE_BLOCKS, /* UTF-8's half blocks, for pixels of at least half the ink */
    PICTURE_GREYS,  /* half blocks in 24 greys */
} picture_style;

typedef struct picture {
    const uint8_t *pixels; /* (height, width): 0 is paper, 255 is ink */
    int width, height;
} picture;

/* A line has width * PICTURE_CELL_BYTES + PICTURE_END_BYTES at most, its zero byte included. */
enum { PICTURE_CELL_BYTES = 23, PICTURE_END_BYTES = 5 };

/* What is readable there: greys if it has colours, blocks if the locale ($LC_ALL, $LC_CTYPE, $LANG)
 * is one of UTF-8. */
picture_style picture_style_of(int fd);

/* (height + 1) / 2. */
int picture_lines(const picture *p);

/* Line `line` from the top, `width` columns wide, without a line's end. */
void picture_line(const picture *p, picture_style style, int line, char *out);

#endif
