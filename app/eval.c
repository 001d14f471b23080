#include "app/commands.h"
#include "app/exit_codes.h"
#include "app/train/evaluate.h"
#include "app/train/job.h"
#include "model/checkpoint.h"

#include <stdio.h>
#include <stdlib.h>

int eval_command(const options *o)
{
    model_kind kind = MODEL_CNN;
    int exit_code = EXIT_CODE_CHECKPOINT;
    job j = {0};
    evaluation test;
    if (o->checkpoint == NULL) {
        FAIL(STATUS_INVALID, "eval needs --checkpoint FILE (a model.safetensors or a run folder)");
        return exit_code_failed(STATUS_INVALID, EXIT_CODE_USAGE);
    }
    status st = checkpoint_model_kind(o->checkpoint, &kind);
    if (st == STATUS_OK)
        st = job_open_eval(o, kind, &j, &exit_code);
    if (st == STATUS_OK) {
        exit_code = EXIT_CODE_CHECKPOINT;
        st = checkpoint_load_model(o->checkpoint, j.net);
    }
    if (st == STATUS_OK)
        st = evaluate(&j, &test);
    if (st != STATUS_OK) {
        job_close(&j);
        return exit_code_failed(st, exit_code);
    }
    if (o->json)
        printf("{\"model\":\"%s\",\"test_acc\":%.6f,\"correct\":%lld,\"images\":%lld,"
               "\"test_loss\":%.6f,\"eval_s\":%.4f}\n",
               model_kind_name(kind), evaluation_accuracy(&test), (long long)test.correct,
               (long long)test.images, test.loss, test.elapsed_s);
    else
        printf("%s: %s, accuracy %.2f%% (%lld/%lld), loss %.4f on %s%s\n", o->checkpoint,
               model_kind_name(kind), 100 * evaluation_accuracy(&test), (long long)test.correct,
               (long long)test.images, test.loss, j.location.folder,
               j.location.embedded ? " (generated digits, NOT MNIST)" : "");
    job_close(&j);
    return EXIT_SUCCESS;
}
