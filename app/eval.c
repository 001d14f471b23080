#include "app/commands.h"
#include "app/common/exit_codes.h"
#include "app/common/json_value.h"
#include "app/train/evaluate.h"
#include "app/train/rank_context.h"
#include "base/log.h"
#include "model/checkpoint.h"

#include <stdio.h>
#include <stdlib.h>

/* One line. */
static status print_json(model_kind kind, const evaluation *test)
{
    json_t *object = json_object();
    json_object_set_new(object, "model", json_string(model_kind_name(kind)));
    json_object_set_new(object, "test_acc", json_value_rounded(evaluation_accuracy(test), 6));
    json_object_set_new(object, "correct", json_integer(test->correct));
    json_object_set_new(object, "images", json_integer(test->images));
    json_object_set_new(object, "test_loss", json_value_rounded(test->loss, 6));
    json_object_set_new(object, "eval_s", json_value_rounded(test->elapsed_s, 4));
    return json_value_print(object);
}

/* Such a weight need not show: a ReLU makes a NaN of it a zero. */
static status tell_if_not_finite(const char *path, network *net)
{
    bool finite = true;
    TRY(network_is_finite(net, &finite));
    if (!finite)
        LOG_W("%s holds a weight that is not finite: its figures mean nothing", path);
    return STATUS_OK;
}

int eval_command(const options *o)
{
    model_kind kind = MODEL_CNN;
    int exit_code = EXIT_CODE_CHECKPOINT;
    rank_context rank = {0};
    evaluation test;
    if (o->checkpoint == NULL) {
        FAIL(STATUS_INVALID, "eval needs --checkpoint FILE (a model.safetensors or a run folder)");
        return exit_code_failed(STATUS_INVALID, EXIT_CODE_USAGE);
    }
    status st = checkpoint_model_kind(o->checkpoint, &kind);
    if (st == STATUS_OK)
        st = rank_context_open_eval(o, kind, &rank, &exit_code);
    if (st == STATUS_OK) {
        exit_code = EXIT_CODE_CHECKPOINT;
        st = checkpoint_load_model(o->checkpoint, rank.net);
    }
    if (st == STATUS_OK)
        st = tell_if_not_finite(o->checkpoint, rank.net);
    if (st == STATUS_OK)
        st = evaluate(&rank, &test);
    if (st != STATUS_OK) {
        rank_context_close(&rank);
        return exit_code_failed(st, exit_code);
    }
    if (o->json)
        st = print_json(kind, &test);
    else
        printf("%s: %s, accuracy %.2f%% (%lld/%lld), loss %.4f on %s%s\n", o->checkpoint,
               model_kind_name(kind), 100 * evaluation_accuracy(&test), (long long)test.correct,
               (long long)test.images, test.loss, rank.location.folder,
               rank.location.embedded ? " (generated digits, NOT MNIST)" : "");
    rank_context_close(&rank);
    return st == STATUS_OK ? EXIT_SUCCESS : exit_code_failed(st, EXIT_CODE_INTERNAL);
}
