/* The defaults and the recipes train to the accuracy that the README promises: on the embedded
 * digits, and as `test_app_accuracy mnist` on MNIST. SKIP without MNIST's files. Runs of seconds:
 * left out under sanitizers (label slow). */
#include "tests/app/support/test_folder.h"

#include <jansson.h>

static char *mnist; /* $MNIST_DDP_DATA as it was, or NULL */

static double accuracy_of(const program *p)
{
    json_t *object = json_loads(p->out, 0, NULL);
    ck_assert_msg(object != NULL, "no JSON: %s", p->out);
    double accuracy = 100 * json_real_value(json_object_get(object, "test_acc"));
    json_decref(object);
    return accuracy;
}

static double train(const char *model, const char *epochs, const char *limit, const char *folder)
{
    program p = program_mnist("train", "--nproc_per_node=2", "--model", model, "--epochs", epochs,
                              "--limit", limit, "--json", "--quiet", "--run-dir",
                              test_folder_path(folder), NULL);
    ASSERT_EXIT(p, 0);
    double accuracy = accuracy_of(&p);
    program_close(&p);
    printf("%s, %s epochs of at most %s images: %.2f %%\n", model, epochs, limit, accuracy);
    return accuracy;
}

static void use_mnist(void)
{
    setenv("MNIST_DDP_DATA", mnist, 1);
}

static void use_embedded(void)
{
    unsetenv("MNIST_DDP_DATA");
}

START_TEST(mlp_on_mnist)
{
    use_mnist();
    double accuracy = train("mlp", "3", "60000", "mlp");
    ck_assert_msg(accuracy >= 97.5, "%.2f %%", accuracy);
}
END_TEST

START_TEST(cnn_on_mnist)
{
    use_mnist();
    double accuracy = train("cnn", "1", "60000", "cnn");
    ck_assert_msg(accuracy >= 98.0, "%.2f %%", accuracy);
}
END_TEST

/* One of the 36 seeds of docs/performance.md, with as many images as are said there. */
START_TEST(recipes_on_mnist)
{
    static const struct {
        const char *config;
        double least, images;
    } recipes[] = {{"to-97", 97, 36000}, {"speedrun", 98.95, 40000}};
    use_mnist();
    char path[FILE_PATH_BYTES];
    snprintf(path, sizeof path, "%s/configs/%s.yaml", getenv("SOURCE_DIR"), recipes[_i].config);
    program p = program_mnist("train", "--config", path, "--seed", "5003", "--json", "--quiet",
                              "--run-dir", test_folder_path(recipes[_i].config), NULL);
    ASSERT_EXIT(p, 0);
    double accuracy = accuracy_of(&p);
    json_t *object = json_loads(p.out, 0, NULL);
    double images = json_number_value(json_object_get(object, "images_per_epoch"));
    json_decref(object);
    program_close(&p);
    printf("%s: %.2f %%\n", recipes[_i].config, accuracy);
    ck_assert_msg(accuracy >= recipes[_i].least, "%.2f %%", accuracy);
    ck_assert_msg(images <= recipes[_i].images, "%g images", images);
}
END_TEST

/* Neither noise nor a toy: a network must learn them, and must not learn them at once. */
START_TEST(mlp_on_embedded_digits)
{
    use_embedded();
    double accuracy = train("mlp", "3", "60000", "embedded-mlp");
    ck_assert_msg(accuracy >= 95.0 && accuracy <= 99.5, "%.2f %%", accuracy);
}
END_TEST

/* Trained on the embedded digits alone, the CNN reads handwriting that it has never seen. */
START_TEST(embedded_digits_teach_to_read_mnist)
{
    use_embedded();
    train("cnn", "1", "20000", "embedded-cnn");
    use_mnist();
    program p =
        program_mnist("eval", "--checkpoint", test_folder_path("embedded-cnn"), "--json", NULL);
    ASSERT_EXIT(p, 0);
    double accuracy = accuracy_of(&p);
    program_close(&p);
    printf("the same network on MNIST: %.2f %%\n", accuracy);
    ck_assert_msg(accuracy >= 60.0, "%.2f %%", accuracy);
}
END_TEST

int main(int argc, char **argv)
{
    bool on_mnist = argc > 1 && strcmp(argv[1], "mnist") == 0;
    mnist = getenv("MNIST_DDP_DATA");
    if (on_mnist && mnist == NULL) {
        printf("SKIP: $MNIST_DDP_DATA does not name MNIST's files\n");
        return TEST_SKIPPED;
    }
    if (mnist != NULL && (mnist = realpath(mnist, NULL)) == NULL) {
        fprintf(stderr, "$MNIST_DDP_DATA names no folder\n");
        return EXIT_FAILURE;
    }
    test_folder_open();
    Suite *suite = suite_create("accuracy");
    TCase *core = suite_case(suite, on_mnist ? "mnist" : "embedded", 200);
    if (on_mnist) {
        tcase_add_test(core, embedded_digits_teach_to_read_mnist);
        tcase_add_test(core, mlp_on_mnist);
        tcase_add_test(core, cnn_on_mnist);
        tcase_add_loop_test(core, recipes_on_mnist, 0, 2);
    } else {
        tcase_add_test(core, mlp_on_embedded_digits);
    }
    return test_folder_close(suite_run(suite));
}
