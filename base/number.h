/* Numbers in text: decimal, without a sign or blanks. */
#ifndef MNIST_DDP_BASE_NUMBER_H
#define MNIST_DDP_BASE_NUMBER_H

#include <stdbool.h>

/* The number that begins at *at; moves *at after its digits. false, and nothing is set, if none
 * begins there or it is not low to high (low >= 0). */
bool number_next(const char **at, int low, int high, int *out);

/* The number that is all of the text; false likewise. */
bool number_parse(const char *text, int low, int high, int *out);

/* The real number that begins at *at, as 0.5, .5 or 1e-3; moves *at after it. false, and nothing is
 * set, if none begins there: inf, nan and hexadecimal digits are none. */
bool number_next_real(const char **at, double *out);

#endif
