/* Text: made safe for a terminal, written into memory, taken apart and put together as words, and
 * broken into lines. */
#ifndef MNIST_DDP_BASE_TEXT_H
#define MNIST_DDP_BASE_TEXT_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* Text from outside, made safe for a terminal or a log. */

/* The bytes of the UTF-8 character that `text` begins with, of `left` bytes, and its code point; 0:
 * it is none. */
size_t utf8_bytes(const char *text, size_t left, uint32_t *code);

/* What may stand as it is besides printable UTF-8. */
typedef enum printable_kind {
    PRINTABLE_LINE, /* nothing: newlines are escaped too */
    /* Newlines, if the next line begins with a blank or there is none: no line of it looks like one
     * of ours. */
    PRINTABLE_LINES,
} printable_kind;

/* Sets out[0 .. size_bytes) to `text` and a zero, cut if it does not fit. Control
 * characters, and bytes that are no UTF-8, become \x1b and so on, newlines \n; never in part. */
void printable_copy(printable_kind kind, const char *text, char *out, size_t size_bytes);

/* The same of n bytes, as a line; a zero among them is \x00. */
void printable_bytes(const void *bytes, size_t n, char *out, size_t size_bytes);

/* Text of unknown length, written through stdio into memory that grows. Unlike open_memstream it
 * tells if memory ran out: glibc's fclose() returns 0 then and leaves no text. */

/* Stays where it is while it is open: `file` points to it. */
typedef struct text_stream {
    FILE *file; /* to write to; its end is the only place to look for errors */
    char *text;
    size_t size_bytes, room_bytes;
    bool failed;
} text_stream;

/* STATUS_NO_MEMORY; then there is nothing to close. */
status text_stream_open(text_stream *out);

/* Ends it. *text: all that was written and a zero byte, the caller's to free; *size_bytes, unless
 * NULL: without that byte. STATUS_NO_MEMORY, and *text is NULL, if not all of it is there. */
status text_stream_close(text_stream *stream, char **text, size_t *size_bytes);

/* Ends it. If `st`, of what was written, is STATUS_OK, the text becomes the file `path`
 * (file_replace); else `st` is returned, and the file is as it was. */
status text_stream_save(text_stream *stream, status st, const char *path);

/* Words that people type: numbers, lists, and words for a shell. */

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

/* Sentences, broken between words at 80 columns, or at the width of a terminal that is narrower. */

/* The columns of the terminal as they are now, else $COLUMNS, else 80. */
int paragraph_terminal_columns(int fd);

/* The columns of a line that goes to `out`. */
int paragraph_columns(FILE *out);

/* Columns of a text: letters, not bytes. */
int paragraph_width(const char *text);

/* Writes the words of `text` from column `column` on, where the line is now, and ends the line. The
 * next lines begin at `indent`. */
void paragraph_print(FILE *out, int column, int indent, const char *text);

/* The same for a line that a program may read: it is broken on a terminal only. */
void paragraph_print_line(FILE *out, int column, int indent, const char *text);

#endif
