/* What the server answers: a page to draw on, what the model takes a drawing for, what the run has
 * come to.
 *
 *     GET  /, /page.css, /page.js
 *     GET  /watch/GENERATION/BYTE   {"model": null or {"name", "kind", "dataset", "classes",
 *                                    "loads"}, "run": null or as run_watch_lines has it,
 *                                    "examples": count}
 *     GET  /examples/INDEX          {"examples": [{"index", "label", "picture"}, ...]}
 *     POST /predict                 a drawing as a PGM file (data/raster/netpbm.h) gives
 *                                   {"picture", "label", "probabilities"}, or {"error": "..."},
 *                                   with the picture if there is only no model
 *
 * A "picture" is 28x28 pixels of two hex digits. No name in a request becomes that of a file. */
#ifndef MNIST_DDP_APP_SERVE_SITE_H
#define MNIST_DDP_APP_SERVE_SITE_H

#include "app/common/http_server_ops.h"
#include "app/predict/trained_model.h"
#include "app/serve/run_watch.h"
#include "data/dataset.h"
#include "dist/net/socket_address.h"

enum { SITE_BODY_BYTES = 1 << 20, SITE_HOSTS = 4 };

typedef struct site {
    trained_model model;
    int loads; /* of the model; 0: there is none yet */
    run_watch watch;
    dataset examples;                 /* count 0: there are none */
    const dataset_facts *examples_of; /* NULL: no model has been loaded */
    bool model_waits; /* it cannot be loaded now, but perhaps later: that was told */
    bool checks_host; /* only this machine is to reach it: any other name for it is refused */
    char hosts[SITE_HOSTS][SOCKET_ADDRESS_BYTES]; /* the names that it has, with the port */
    char *text;                                   /* of the last answer */
} site;

/* Of every answer; for http_server_options. */
extern const char *const site_headers[];

/* For http_server_options, with the site as `ctx`. */
void site_answer(void *self, const http_request *request, http_answer *out);

#endif
