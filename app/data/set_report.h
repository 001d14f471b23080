/* A data set as it is here: its four files, and whether they are the original ones. */
#ifndef MNIST_DDP_APP_DATA_SET_REPORT_H
#define MNIST_DDP_APP_DATA_SET_REPORT_H

#include "base/digest.h"
#include "base/file.h"
#include "data/dataset.h"

#include <jansson.h>

typedef enum verdict { VERDICT_MISSING, VERDICT_RIGHT, VERDICT_WRONG, VERDICT_UNKNOWN } verdict;

/* One of a set's four files. */
typedef struct file_row {
    char path[FILE_PATH_BYTES]; /* "": it is missing */
    uint64_t size_bytes;
    uint32_t count; /* images or labels */
    char sum[DIGEST_TEXT_BYTES];
    verdict verdict;
    char why[1024]; /* VERDICT_UNKNOWN because it cannot be read: the reason; else "" */
    bool fetched;   /* just now; the caller's to say */
} file_row;

typedef struct set_report {
    const dataset_facts *facts;
    dataset_location location;
    bool found;     /* all four, in location.folder */
    char why[2048]; /* it was not found, or a file of it cannot be read: the reason; else "" */
    file_row rows[MNIST_FILES_COUNT];
} set_report;

/* Looks where a run would look. */
void set_report_find(dataset_kind kind, const char *data_dir, set_report *out);

/* Looks in one folder, which need not exist. */
void set_report_look(dataset_kind kind, const dataset_location *location, set_report *out);

/* Looks again at the files that were not right. */
void set_report_look_again(set_report *set);

/* Lines for people. */
void set_report_print(const set_report *set);

/* One JSON line of n of them. STATUS_NO_MEMORY. */
status set_report_print_json(const set_report *sets, int n);

/* STATUS_INVALID unless all four files are the original ones. */
status set_report_check(const set_report *set);

#endif
