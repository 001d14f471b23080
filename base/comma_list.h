/* Lists in one word of a flag or a variable: "0,3", "SIGTERM, SIGINT". */
#ifndef MNIST_DDP_BASE_COMMA_LIST_H
#define MNIST_DDP_BASE_COMMA_LIST_H

#include <stddef.h>

/* The next entry of the list at *at, without the blanks around it; NULL at the end. Moves *at after
 * the entry's comma. An entry may be empty ("0,,3"), but for one after the last comma: that is the
 * end.
 *
 *   for (const char *at = list, *word; (word = comma_list_next(&at, &length)) != NULL;) */
const char *comma_list_next(const char **at, size_t *length);

#endif
