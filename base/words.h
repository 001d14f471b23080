/* Words that people type: numbers, lists, and words for a shell. */
#ifndef MNIST_DDP_BASE_WORDS_H
#define MNIST_DDP_BASE_WORDS_H

#include <stdbool.h>
#include <stddef.h>

/* Lists in one word of a flag or a variable: "0,3", "SIGTERM, SIGINT". */

/* The next entry of the list at *at, without the blanks around it; NULL at the end. Moves *at after
 * the entry's comma. An entry may be empty ("0,,3"), but for one after the last comma: that is the
 * end.
 *
 *   for (const char *at = list, *word; (word = comma_list_next(&at, &length)) != NULL;) */
const char *comma_list_next(const char **at, size_t *length);

/* Numbers in text: decimal, without a sign or blanks. */

/* The number that begins at *at; moves *at after its digits. false, and nothing is set, if none
 * begins there or it is not low to high (low >= 0). */
bool number_next(const char **at, int low, int high, int *out);

/* The number that is all of the text; false likewise. */
bool number_parse(const char *text, int low, int high, int *out);

/* The real number that begins at *at, as 0.5, .5 or 1e-3; moves *at after it. false, and nothing is
 * set, if none begins there: inf, nan and hexadecimal digits are none. */
bool number_next_real(const char **at, double *out);

/* A command's words as one types them in a shell. */

/* All words (NULL at the end) in one line. What a shell would take apart or replace stands in
 * single quotes. Free with free(). NULL: no memory. */
char *shell_words_line(char *const *words);

#endif
