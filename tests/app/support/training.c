#include "tests/app/support/training.h"

#include <jansson.h>
#include <stdio.h>

const char *training_backend = "shm";

bool training_has_gloo(void)
{
    char module[FILE_PATH_BYTES];
    const char *folder = getenv("BUILD_DIR");
    snprintf(module, sizeof module, "%s/mnist_ddp_gloo.so", folder != NULL ? folder : ".");
    return file_exists(module);
}

bool training_is_on_gloo(void)
{
    return strcmp(training_backend, "gloo") == 0;
}

bool training_choose_backend(int argc, char **argv)
{
    bool gloo = argc > 1 && strcmp(argv[1], "--backend=gloo") == 0;
    training_backend = gloo ? "gloo" : "shm";
    if (!gloo || training_has_gloo())
        return true;
    printf("SKIP: gloo is not in this build\n");
    return false;
}

void training_await(const program *p)
{
    program_await(p, "epoch 2/");
}

double training_number(const char *text, const char *key)
{
    json_error_t error;
    json_t *object = json_loads(text, 0, &error);
    ck_assert_msg(object != NULL, "%s in: %s", error.text, text);
    ck_assert_msg(json_is_number(json_object_get(object, key)), "no %s in: %s", key, text);
    double value = json_number_value(json_object_get(object, key));
    json_decref(object);
    return value;
}
