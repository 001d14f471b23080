/* A classifier computes a network's logits, however many images go at once; a prediction is their
 * softmax. */
#include "model/classifier.h"

#include "kernels/device_kind.h"
#include "kernels/pixel.h"
#include "tests/model/trainee.h"
#include "tests/support/suite.h"

#include <math.h>

enum { IMAGES = 37, AT_ONCE = 16 };

static uint8_t images[IMAGES][CLASSIFIER_PIXELS];
static float got[IMAGES][NETWORK_CLASSES];

static void ok(status st)
{
    ck_assert_msg(st == STATUS_OK, "%s", status_text());
}

static void save_model(model_kind kind)
{
    trainee t = {0};
    checkpoint_state state = state_of(1);
    state.model = kind;
    trainee_init(&t, kind, OPTIMIZER_SGD, 7);
    ok(checkpoint_save(scratch, &state, t.net, t.opt, NULL));
    trainee_close(&t);
}

static void draw_images(void)
{
    for (int i = 0; i < IMAGES; i++)
        for (int j = 0; j < CLASSIFIER_PIXELS; j++)
            images[i][j] = (uint8_t)((i * 31 + j * 7) % 256);
}

/* The logits of image i, by a forward pass of its own. */
static void forward_alone(network *net, int i, float out[NETWORK_CLASSES])
{
    static float x[CLASSIFIER_PIXELS];
    const uint8_t label = 0;
    const uint32_t sample = 0;
    for (int j = 0; j < CLASSIFIER_PIXELS; j++)
        x[j] = pixel_normalised((float)images[i][j]);
    batch in = {.n = 1, .x = x, .labels = &label, .samples = &sample};
    ok(network_forward(net, &in, NETWORK_EVAL));
    memcpy(out, network_logits(net), sizeof(float) * NETWORK_CLASSES);
}

static void classify(const char *device_name)
{
    classifier *c = NULL;
    device *dev = NULL;
    float want[NETWORK_CLASSES];
    device_options wanted = {.name = device_name, .threads = 2};
    ok(device_create(&wanted, &dev));
    ok(classifier_create(dev, scratch, AT_ONCE, &c));
    ok(classifier_run(c, images[0], IMAGES, got[0]));
    for (int i = 0; i < IMAGES; i++) {
        forward_alone(classifier_network(c), i, want);
        for (int k = 0; k < NETWORK_CLASSES; k++)
            ck_assert_msg(fabsf(want[k] - got[i][k]) < 1e-5f, "image %d, class %d: %g, want %g", i,
                          k, (double)got[i][k], (double)want[k]);
    }
    classifier_destroy(c);
    device_destroy(dev);
}

START_TEST(images_are_classified_in_any_number)
{
    scratch_create();
    draw_images();
    save_model((model_kind)_i);
    classify("reference");
    classify("cpu");
    scratch_remove();
}
END_TEST

START_TEST(no_model_is_an_error)
{
    classifier *c = NULL;
    device *dev = NULL;
    device_options wanted = {.name = "reference", .threads = 1};
    ok(device_create(&wanted, &dev));
    ck_assert_int_eq(classifier_create(dev, "/nonexistent", 1, &c), STATUS_IO);
    ck_assert_ptr_null(c);
    device_destroy(dev);
}
END_TEST

START_TEST(a_prediction_is_the_softmax)
{
    const float logits[NETWORK_CLASSES] = {0, 1, 2, 5, 5, -1, 0, 0, 0, 0};
    prediction p = prediction_of(logits);
    double sum = 0;
    for (int k = 0; k < NETWORK_CLASSES; k++) {
        sum += p.probabilities[k];
        ck_assert_double_eq_tol(prediction_loss(logits, k), -log(p.probabilities[k]), 1e-12);
    }
    ck_assert_double_eq_tol(sum, 1, 1e-12);
    ck_assert_int_eq(p.label, 3); /* the first of equals */
    ck_assert_double_eq_tol(p.probabilities[0] / p.probabilities[3], exp(-5.0), 1e-12);
}
END_TEST

START_TEST(logits_that_are_not_finite_are_no_probabilities)
{
    const float logits[NETWORK_CLASSES] = {1, 2, NAN, 0, 0, 0, 0, 0, 0, 0};
    prediction p = prediction_of(logits);
    ck_assert(isnan(p.probabilities[0]) && isnan(p.probabilities[2]));
    ck_assert(isnan(prediction_loss(logits, 1)));
    ck_assert_int_eq(p.label, 1);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("classifier");
    TCase *all = suite_case(suite, "all", 60);
    tcase_add_loop_test(all, images_are_classified_in_any_number, 0, MODEL_COUNT);
    tcase_add_test(all, no_model_is_an_error);
    tcase_add_test(all, a_prediction_is_the_softmax);
    tcase_add_test(all, logits_that_are_not_finite_are_no_probabilities);
    return suite_run(suite);
}
