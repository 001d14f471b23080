/* The files of app/serve/page/, app/demo/page/ and app/report/page/, which the build puts into the
 * program (cmake/embed.cmake). */
#ifndef MNIST_DDP_APP_COMMON_PAGE_FILES_H
#define MNIST_DDP_APP_COMMON_PAGE_FILES_H

#include <stddef.h>

extern const char page_html[], page_css[], page_js[];
extern const size_t page_html_bytes, page_css_bytes, page_js_bytes;

extern const char demo_css[], demo_js[];
extern const size_t demo_css_bytes, demo_js_bytes;

extern const char trace_css[], trace_page_css[], trace_js[];
extern const size_t trace_css_bytes, trace_page_css_bytes, trace_js_bytes;

#endif
