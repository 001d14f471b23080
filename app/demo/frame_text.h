/* A frame of a demonstration as plain text, for a terminal of 80 columns. */
#ifndef MNIST_DDP_APP_DEMO_FRAME_TEXT_H
#define MNIST_DDP_APP_DEMO_FRAME_TEXT_H

#include <jansson.h>
#include <stdio.h>

enum { FRAME_TEXT_CELL_BYTES = 80 };

/* A cell as it is shown: a text as it is, a number with seven digits. */
void frame_text_cell(const json_t *cell, char out[FRAME_TEXT_CELL_BYTES]);

void frame_text_print(const json_t *frame, FILE *out);

#endif
