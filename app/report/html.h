/* The pieces of an HTML page that needs nothing else: no network, no script. */
#ifndef MNIST_DDP_APP_REPORT_HTML_H
#define MNIST_DDP_APP_REPORT_HTML_H

#include <stdio.h>

/* All up to <body>, with the title as its heading. `styles` is CSS, in pieces; NULL ends it. */
void html_begin(FILE *out, const char *title, const char *const *styles);
void html_end(FILE *out);

/* Text, with what HTML would take for markup spelled out, and control characters replaced. NULL is
 * "". */
void html_text(FILE *out, const char *text);

/* <tag>text</tag> and a newline. */
void html_tagged(FILE *out, const char *tag, const char *text);

#endif
