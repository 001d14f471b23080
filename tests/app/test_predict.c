/* mnist_ddp predict: images of IDX files and pictures of them get the same answer, a picture that
 * cannot be read does not keep the others from theirs. */
#include "tests/app/support/test_folder.h"
#include "tests/app/support/training.h"

#include <jansson.h>

enum { DRAWN = 40, SIDE = 28, ENLARGED = 5, PAPER_SIDE = 300 };

#define TEST_IMAGES "data/t10k-images-idx3-ubyte"

/* The model that all tests use: more than nine in ten of the test images are right. */
static void train(void)
{
    program p = program_run_with(NULL, WORDS("train", "--model=mlp", TRAINING_SGD, "--epochs=8",
                                             "--batch-size=16", "--threads=1", "--quiet",
                                             "--run-dir=runs/a", "--no-progress"));
    test_folder_require(p.exit_code == 0 ? STATUS_OK : FAIL(STATUS_INVALID, "%s", p.err));
    program_close(&p);
}

/* Test image `i`, black on white, enlarged, in the lower right of a picture. */
static void draw(int i, const char *path)
{
    static uint8_t paper[PAPER_SIDE * PAPER_SIDE];
    char *idx = NULL;
    size_t size_bytes = 0;
    ck_assert_int_eq(file_read(TEST_IMAGES, 1 << 24, &idx, &size_bytes), STATUS_OK);
    const uint8_t *image = (const uint8_t *)idx + 16 + i * SIDE * SIDE;
    const int from = PAPER_SIDE - SIDE * ENLARGED;
    memset(paper, 255, sizeof paper);
    for (int y = 0; y < SIDE * ENLARGED; y++)
        for (int x = 0; x < SIDE * ENLARGED; x++)
            paper[(from + y) * PAPER_SIDE + from + x] =
                (uint8_t)(255 - image[y / ENLARGED * SIDE + x / ENLARGED]);
    char header[32];
    const int length = snprintf(header, sizeof header, "P5 %d %d 255\n", PAPER_SIDE, PAPER_SIDE);
    const file_part parts[] = {{header, (size_t)length}, {paper, sizeof paper}};
    unlink(path);
    ck_assert_int_eq(file_write(path, parts, 2), STATUS_OK);
    free(idx);
}

START_TEST(pictures_are_read_as_their_images)
{
    char names[DRAWN][16], range[64];
    const char *words[DRAWN + 3] = {"predict", "--quiet"};
    int alike = 0, right = 0;
    for (int i = 0; i < DRAWN; i++) {
        snprintf(names[i], sizeof names[i], "%d.pgm", i);
        draw(i, names[i]);
        words[2 + i] = names[i];
    }
    snprintf(range, sizeof range, TEST_IMAGES "#0-%d", DRAWN - 1);
    program pictures = program_run_with(NULL, words);
    program images = program_run_with(NULL, WORDS("predict", "--quiet", range));
    ASSERT_EXIT(pictures, 0);
    ASSERT_EXIT(images, 0);
    ck_assert_str_eq(images.err, "");
    ck_assert_uint_eq(strlen(images.out), 2 * DRAWN); /* a digit a line */
    ck_assert_uint_eq(strlen(pictures.out), 2 * DRAWN);
    char *labels = NULL;
    size_t size_bytes = 0;
    ck_assert_int_eq(file_read("data/t10k-labels-idx1-ubyte", 1 << 16, &labels, &size_bytes),
                     STATUS_OK);
    for (int i = 0; i < DRAWN; i++) {
        alike += pictures.out[2 * i] == images.out[2 * i];
        right += images.out[2 * i] - '0' == labels[8 + i];
    }
    ck_assert_int_ge(right, DRAWN * 8 / 10);
    ck_assert_int_ge(alike, DRAWN * 9 / 10);
    free(labels);
    program_close(&pictures);
    program_close(&images);
}
END_TEST

/* Two images side by side are more than one shape, and laid over each other in many ways they are
 * no digit: those are doubted of which the likeliest class has less than 60 %. */
START_TEST(what_is_no_digit_is_doubted)
{
    enum { WIDTH = 2 * SIDE + 8, HEIGHT = SIDE + 8, MIXED = 40 };
    uint8_t pair[WIDTH * HEIGHT] = {0};
    char *idx = NULL, names[MIXED][16];
    const char *words[MIXED + 3] = {"predict", "--json", "pair.pgm"};
    size_t size_bytes = 0;
    ck_assert_int_eq(file_read(TEST_IMAGES, 1 << 24, &idx, &size_bytes), STATUS_OK);
    const uint8_t *images = (const uint8_t *)idx + 16;
    for (int i = 0; i < SIDE * SIDE; i++)
        for (int which = 0; which < 2; which++)
            pair[(i / SIDE + 4) * WIDTH + 4 + which * SIDE + i % SIDE] =
                images[which * SIDE * SIDE + i];
    const file_part whole[] = {{"P5 64 36 255\n", 13}, {pair, sizeof pair}};
    ck_assert_int_eq(file_write("pair.pgm", whole, 2), STATUS_OK);
    for (int k = 0; k < MIXED - 1; k++) {
        uint8_t mixed[SIDE * SIDE];
        for (int i = 0; i < SIDE * SIDE; i++)
            mixed[i] = images[k * SIDE * SIDE + i] / 2 + images[(k + 1) * SIDE * SIDE + i] / 2;
        const file_part parts[] = {{"P5 28 28 255\n", 13}, {mixed, sizeof mixed}};
        snprintf(names[k], sizeof names[k], "mixed%d.pgm", k);
        ck_assert_int_eq(file_write(names[k], parts, 2), STATUS_OK);
        words[3 + k] = names[k];
    }
    program p = program_run_with(NULL, words);
    ASSERT_EXIT(p, 0);
    ASSERT_FACTS(p.err, "warning", "pair.pgm", "more than one shape");
    json_t *answers = json_loads(p.out, 0, NULL);
    int doubted = 0;
    for (size_t k = 0; k < json_array_size(answers); k++) {
        const json_t *answer = json_array_get(answers, k),
                     *label = json_object_get(answer, "label");
        double share = json_number_value(json_array_get(json_object_get(answer, "probabilities"),
                                                        (size_t)json_integer_value(label)));
        char line[64];
        snprintf(line, sizeof line, "%s: not sure",
                 json_string_value(json_object_get(answer, "file")));
        doubted += share < 0.6;
        ck_assert_msg((strstr(p.err, line) != NULL) == (share < 0.6), "%s: %g", line, share);
    }
    ck_assert(doubted > 0 && doubted < MIXED);
    json_decref(answers);
    program_close(&p);
    free(idx);
}
END_TEST

START_TEST(names_of_others_are_shown_harmlessly)
{
    static const char picture[] = "a\x1b]0;x\a.pgm";
    draw(3, picture);
    program p = program_run_with(NULL, WORDS("predict", picture));
    ASSERT_EXIT(p, 0);
    ASSERT_SAYS(p.out, "a\\x1b]0;x\\x07.pgm: ");
    ASSERT_SILENT(p.out, "\x1b");
    program_close(&p);
    ck_assert_int_eq(system("cp -r data 'd\x1b[m'"), 0);
    p = program_run_with(NULL, WORDS("eval", "--data-dir", "d\x1b[m"));
    ASSERT_EXIT(p, 0);
    ASSERT_SAYS(p.out, " on d\\x1b[m");
    program_close(&p);
}
END_TEST

START_TEST(json_has_an_object_for_each)
{
    draw(3, "3.pgm");
    test_folder_write("not a picture.png", "hello");
    program p = program_run_with(NULL, WORDS("predict", "3.pgm", "--json", "--checkpoint=runs/a",
                                             "not a picture.png", TEST_IMAGES "#3-4"));
    ASSERT_EXIT(p, 65);
    ASSERT_FACTS(p.err, "error", "not a picture.png", "PNG");
    json_t *list = json_loads(p.out, 0, NULL);
    ck_assert_uint_eq(json_array_size(list), 4);
    double sum = 0;
    const json_t *drawn = json_array_get(list, 0), *image = json_array_get(list, 2);
    for (size_t i = 0; i < 10; i++)
        sum += json_number_value(json_array_get(json_object_get(drawn, "probabilities"), i));
    ck_assert(sum > 0.9999 && sum < 1.0001);
    ck_assert_str_eq(json_string_value(json_object_get(drawn, "file")), "3.pgm");
    ck_assert_str_eq(json_string_value(json_object_get(image, "file")), TEST_IMAGES "#3");
    ck_assert_int_eq(json_integer_value(json_object_get(drawn, "label")),
                     json_integer_value(json_object_get(image, "label")));
    ck_assert_ptr_nonnull(json_object_get(json_array_get(list, 1), "error"));
    ck_assert_ptr_null(json_object_get(json_array_get(list, 1), "label"));
    json_decref(list);
    program_close(&p);
}
END_TEST

START_TEST(text_shows_picture_and_bars)
{
    program p = program_run_with(
        WORDS("env", "LC_ALL=C"),
        WORDS("predict", TEST_IMAGES "#0-1", "--checkpoint", "runs/a/model.safetensors"));
    ASSERT_EXIT(p, 0);
    ck_assert_int_eq(facts_count(p.out, "\n"), 15 + 1 + 15);
    ASSERT_SAYS(p.out, TEST_IMAGES "#0: ");
    ck_assert_int_eq(facts_count(p.out, " %\n"), 2 * 10); /* bars */
    ck_assert_int_gt(facts_count(p.out, "######"), 0);
    ASSERT_SILENT(p.out, "\033");
    program_close(&p);
}
END_TEST

/* config.json beside the model names the data set, and the data set its classes. */
START_TEST(classes_are_those_of_the_data_set)
{
    static const char was[] = "\"dataset\": {\"value\":\"mnist\"",
                      is[] = "\"dataset\": {\"value\":\"fashion\"";
    test_folder_remove("b");
    ck_assert_int_eq(system("mkdir b && cp runs/a/model.safetensors b"), 0);
    char *config = test_folder_read("runs/a/config.json"), text[1 << 16];
    const char *at = strstr(config, was);
    ck_assert_ptr_nonnull(at);
    snprintf(text, sizeof text, "%.*s%s%s", (int)(at - config), config, is, at + strlen(was));
    test_folder_write("b/config.json", text);
    free(config);
    program p = program_run_with(NULL, WORDS("predict", "--checkpoint=b", TEST_IMAGES "#0"));
    ASSERT_EXIT(p, 0);
    ASSERT_SAYS(p.out, "T-shirt/top");
    ASSERT_SAYS(p.out, "Ankle boot");
    program_close(&p);
}
END_TEST

/* As other programs leave one beside a model. */
START_TEST(a_foreign_config_is_no_failure)
{
    test_folder_remove("b");
    ck_assert_int_eq(system("mkdir b && cp runs/a/model.safetensors b"), 0);
    test_folder_write("b/config.json", "{\"architectures\": [\"LeNet\"]}");
    program p = program_run_with(
        NULL, WORDS("predict", "--checkpoint=b/model.safetensors", TEST_IMAGES "#0"));
    ASSERT_EXIT(p, 0);
    ASSERT_FACTS(p.err, "warning", "b/config.json", "classes");
    program_close(&p);
}
END_TEST

/* What is wrong, the exit code, and facts of the one line that says so. */
static const struct {
    const char *words[5];
    int exit_code;
    const char *facts[5];
} REFUSED[] = {
    {{"predict"}, 64, {"error", "predict", "png"}},
    {{"predict", "none.png"}, 65, {"error", "none.png"}},
    {{"predict", "data"}, 65, {"error", "data", "folder"}},
    {{"predict", TEST_IMAGES}, 65, {"error", "IDX", "#0-9"}},
    {{"predict", TEST_IMAGES "#249-250"}, 65, {"error", "#250", "249"}},
    {{"predict", TEST_IMAGES "#7-5"}, 65, {"error", "#7-5"}},
    {{"predict", "blank.pgm"}, 65, {"error", "blank.pgm", "nothing is drawn"}},
    {{"predict", "photo.jpg"}, 65, {"error", "photo.jpg", "JPEG", "convert"}},
    {{"predict", "--checkpoint=none", "blank.pgm"}, 74, {"error", "none"}},
    {{"predict", "--epochs=3", "blank.pgm"}, 64, {"error", "--epochs", "train"}},
};

START_TEST(what_cannot_be_read_is_one_error)
{
    test_folder_write("blank.pgm", "P2 3 2 255 9 9 9 9 9 9\n");
    test_folder_write("photo.jpg", "\xff\xd8\xff\xe0 JFIF");
    program p = program_run_with(NULL, REFUSED[_i].words);
    ASSERT_EXIT(p, REFUSED[_i].exit_code);
    ASSERT_FACTS_LISTED(p.err, REFUSED[_i].facts);
    ck_assert_int_eq(facts_count(p.err, "error"), 1);
    ck_assert_str_eq(p.out, "");
    program_close(&p);
}
END_TEST

/* paste(1) puts the lines beside a list of the files. */
START_TEST(a_file_that_fails_keeps_its_line)
{
    draw(0, "seven.pgm");
    program p = program_run_with(
        NULL, WORDS("predict", "--quiet", "seven.pgm", "missing.pgm", "seven.pgm"));
    ASSERT_EXIT(p, 65);
    ck_assert_uint_eq(strlen(p.out), 6);
    ck_assert_int_eq(strncmp(p.out + 2, "?\n", 2), 0);
    ck_assert_int_eq(strncmp(p.out, p.out + 4, 2), 0);
    program_close(&p);
}
END_TEST

static const char *const BAD_RANGES[] = {"#5-3", "#999999999999", "#0,5", "#3-", "#-1"};

START_TEST(a_range_that_is_none_is_told)
{
    char word[256];
    snprintf(word, sizeof word, TEST_IMAGES "%s", BAD_RANGES[_i]);
    program p = program_run_with(NULL, WORDS("predict", word));
    ASSERT_EXIT(p, 65);
    ASSERT_FACTS(p.err, "error", BAD_RANGES[_i], "range", "#3-7");
    program_close(&p);
}
END_TEST

START_TEST(half_a_picture_of_ink_is_not_blank)
{
    static uint8_t half[32 * 32];
    memset(half, 255, sizeof half / 2);
    const char header[] = "P5 32 32 255\n";
    const file_part parts[] = {{header, sizeof header - 1}, {half, sizeof half}};
    ck_assert_int_eq(file_write("half.pgm", parts, 2), STATUS_OK);
    program p = program_run_with(NULL, WORDS("predict", "half.pgm"));
    ASSERT_EXIT(p, 65);
    ASSERT_FACTS(p.err, "error", "half.pgm", "ink", "paper");
    ASSERT_NO_FACTS(p.err, "alike");
    program_close(&p);
}
END_TEST

START_TEST(without_a_run_a_model_must_be_named)
{
    program p = program_run_with(WORDS("sh", "-c", "mkdir -p empty; cd empty; exec \"$@\"", "sh"),
                                 WORDS("predict", "../" TEST_IMAGES "#0"));
    ASSERT_EXIT(p, 74);
    ASSERT_FACTS(p.err, "error", "runs", "predict RUN");
    program_close(&p);
}
END_TEST

/* The first word may be a run; elsewhere it is no picture. */
START_TEST(a_run_may_stand_before_the_pictures)
{
    const char *const *wrong[] = {
        WORDS("predict", TEST_IMAGES "#0", "runs/a"),
        WORDS("predict", "--checkpoint=runs/a", "runs/a", TEST_IMAGES "#0")};
    for (int i = 0; i < 2; i++) {
        program p = program_run_with(NULL, wrong[i]);
        ASSERT_EXIT(p, 64);
        ASSERT_FACTS(p.err, "error", "runs/a", "model", "before");
        program_close(&p);
    }
    program flag = program_run_with(
        NULL, WORDS("predict", "--json", "--checkpoint=runs/a", TEST_IMAGES "#0-1"));
    program word = program_run_with(NULL, WORDS("predict", "runs/a", "--json", TEST_IMAGES "#0-1"));
    program file = program_run_with(
        NULL, WORDS("predict", "runs/a/model.safetensors", "--json", TEST_IMAGES "#0-1"));
    ASSERT_EXIT(word, 0);
    ck_assert_str_eq(word.out, flag.out);
    ck_assert_str_eq(file.out, flag.out);
    program_close(&flag);
    program_close(&word);
    program_close(&file);
    program alone = program_run_with(NULL, WORDS("predict", "runs/a"));
    ASSERT_EXIT(alone, 64);
    ASSERT_FACTS(alone.err, "error", "name a picture");
    program_close(&alone);
}
END_TEST

int main(void)
{
    program_clean_environment();
    test_folder_open();
    train();
    Suite *suite = suite_create("predict");
    TCase *all = suite_case(suite, "all", 2 * RUN_S);
    tcase_add_test(all, pictures_are_read_as_their_images);
    tcase_add_test(all, what_is_no_digit_is_doubted);
    tcase_add_test(all, names_of_others_are_shown_harmlessly);
    tcase_add_test(all, json_has_an_object_for_each);
    tcase_add_test(all, text_shows_picture_and_bars);
    tcase_add_test(all, classes_are_those_of_the_data_set);
    tcase_add_test(all, a_foreign_config_is_no_failure);
    tcase_add_loop_test(all, what_cannot_be_read_is_one_error, 0,
                        sizeof REFUSED / sizeof REFUSED[0]);
    tcase_add_test(all, a_file_that_fails_keeps_its_line);
    tcase_add_loop_test(all, a_range_that_is_none_is_told, 0,
                        sizeof BAD_RANGES / sizeof BAD_RANGES[0]);
    tcase_add_test(all, half_a_picture_of_ink_is_not_blank);
    tcase_add_test(all, a_run_may_stand_before_the_pictures);
    tcase_add_test(all, without_a_run_a_model_must_be_named);
    return test_folder_close(suite_run(suite));
}
