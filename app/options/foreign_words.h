/* Words of PyTorch's scripts, of nccl-tests and of other launchers that are none here, and what to
 * do instead: the table of "Words that are none here" in docs/for-pytorch-users.md. */
#ifndef MNIST_DDP_APP_OPTIONS_FOREIGN_WORDS_H
#define MNIST_DDP_APP_OPTIONS_FOREIGN_WORDS_H

#include <stddef.h>

typedef struct foreign_word {
    const char *words;  /* separated by blanks: flags with their dashes, or a command */
    unsigned commands;  /* to which it is none of their own: FOR_TRAIN | ... */
    const char *answer; /* as in that document */
} foreign_word;

extern const foreign_word foreign_words[];
extern const size_t foreign_words_count;

/* What to do instead of `word`, as it was typed ("--num_workers=4"; "--mode=tp"). NULL: it is not
 * in the table, or not for these commands. */
const char *foreign_words_answer(const char *word, unsigned commands);

#endif
