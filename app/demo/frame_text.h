/* A frame of a demonstration as plain text, for a terminal of 80 columns. */
#ifndef MNIST_DDP_APP_DEMO_FRAME_TEXT_H
#define MNIST_DDP_APP_DEMO_FRAME_TEXT_H

#include <jansson.h>
#include <stdio.h>

void frame_text_print(const json_t *frame, FILE *out);

#endif
