/* A command's words as one types them in a shell. */
#ifndef MNIST_DDP_BASE_SHELL_WORDS_H
#define MNIST_DDP_BASE_SHELL_WORDS_H

/* All words (NULL at the end) in one line. What a shell would take apart or replace stands in
 * single quotes. Free with free(). NULL: no memory. */
char *shell_words_line(char *const *words);

#endif
