/* The names of what a run or a benchmark leaves in its folder (docs/run-folder.md). Those of the
 * checkpoints are in model/checkpoint.h. */
#ifndef MNIST_DDP_APP_COMMON_RUN_FILES_H
#define MNIST_DDP_APP_COMMON_RUN_FILES_H

#define RUN_FILE_CONFIG "config.json"
#define RUN_FILE_EVAL "eval.json"
#define RUN_FILE_LOG "train.log"
#define RUN_FILE_METRICS "metrics.jsonl"
#define RUN_FILE_TRACE "trace_steps.json"
#define RUN_FILE_REPORT "report.html"
#define RUN_FILE_RESULT "result.json"
#define RUN_FILE_ROUND "round.json"

#endif
