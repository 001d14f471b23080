/* What a test may ask of a message: the facts in it, not its wording. A fact is an exit code, a
 * rank, a node, a file, a number, a host, a flag, a variable, a signal's or an error's name; where
 * there is none, one term of the field. A better sentence with the same facts passes. */
#ifndef MNIST_DDP_TESTS_SUPPORT_FACTS_H
#define MNIST_DDP_TESTS_SUPPORT_FACTS_H

#include <check.h>
#include <stdbool.h>
#include <string.h>

/* True if one line of `text` holds every one of the facts, in any order. A fact that begins or ends
 * with a letter or a digit does so as a word: "rank 1" is not in "rank 12". The last is NULL. */
bool facts_in_a_line(const char *text, const char *first, ...) __attribute__((sentinel));

/* The same, for a list that ends with NULL. */
bool facts_listed_in_a_line(const char *text, const char *const *facts);

/* The whole number after the word `name` in the first line that holds `fact`; -1 if there is none:
 * 12 for "stopped", "epoch" and "stopped after epoch 12". */
int facts_number(const char *text, const char *fact, const char *name);

#define ASSERT_FACTS(text, ...) \
    ck_assert_msg(facts_in_a_line((text), __VA_ARGS__, NULL), "no line with %s in:\n%s", \
                  #__VA_ARGS__, (text))
#define ASSERT_NO_FACTS(text, ...) \
    ck_assert_msg(!facts_in_a_line((text), __VA_ARGS__, NULL), "a line with %s in:\n%s", \
                  #__VA_ARGS__, (text))

/* For a row of a table, or what a helper was given: a list that ends with NULL. */
#define ASSERT_FACTS_LISTED(text, facts) facts_assert_listed((text), (facts), __FILE__, __LINE__)
void facts_assert_listed(const char *text, const char *const *facts, const char *file, int line);

/* A list of facts. */
#define FACTS(...) ((const char *const[]){__VA_ARGS__, NULL})

/* For what is an interface, character by character: JSON, documented lines, a script's output. What
 * the program says in prose is asked for its facts. */
#define ASSERT_SAYS(text, words) \
    ck_assert_msg(strstr((text), (words)) != NULL, "'%s' is not in: %s", (words), (text))
#define ASSERT_SILENT(text, words) \
    ck_assert_msg(strstr((text), (words)) == NULL, "'%s' is in: %s", (words), (text))

/* How often `words` stand in `text`. */
int facts_count(const char *text, const char *words);

#endif
