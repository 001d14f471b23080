/* The files of app/serve/page/ and app/report/page/, which the build puts into the program
 * (cmake/embed.cmake). */
#ifndef MNIST_DDP_APP_COMMON_PAGE_FILES_H
#define MNIST_DDP_APP_COMMON_PAGE_FILES_H

#include <stddef.h>

extern const char page_html[], page_css[], page_js[];
extern const size_t page_html_bytes, page_css_bytes, page_js_bytes;

extern const char report_css[], draw_js[], runs_js[], trace_js[], demo_js[], main_js[];
extern const size_t report_css_bytes, draw_js_bytes, runs_js_bytes, trace_js_bytes, demo_js_bytes,
    main_js_bytes;

#endif
