/* state.json: damaged, edited, impossible, of another version, or of another checkpoint's files. */
#include "base/digest.h"
#include "base/file.h"
#include "model/checkpoint.h"
#include "tests/model/scratch.h"
#include "tests/model/trainee.h"
#include "tests/support/facts.h"
#include "tests/support/suite.h"

#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <string.h>
#include <unistd.h>

static const char STATE_2[] = "checkpoints/00000002/state.json";

static void write_state(const char *text)
{
    ck_assert_int_eq(file_replace(in_scratch(STATE_2), &(file_part){text, strlen(text)}, 1),
                     STATUS_OK);
}

/* The state of step 2 as versions wrote it that knew no hashes. */
static void write_state_of_before(void)
{
    write_state("{\n  \"format\": 1,\n  \"model\": \"mlp\",\n  \"optimizer\": \"sgd\",\n"
                "  \"seed\": \"18446744073709551615\",\n  \"config_hash\": \"00ff12\",\n"
                "  \"epoch\": 3,\n  \"step_in_epoch\": 2,\n  \"sample_offset\": 256,\n"
                "  \"step\": 2,\n  \"world_size\": 2,\n  \"batch_size\": 64,\n  \"accum\": 1,\n"
                "  \"optimizer_steps\": 2,\n  \"loss_good_steps\": 0,\n"
                "  \"loss_skipped_steps\": 0,\n  \"loss_overflow\": 0,\n  \"epoch_samples\": 0,\n"
                "  \"lr\": 0.033333333333333333,\n  \"gamma\": 0.69999999999999996,\n"
                "  \"momentum\": 0.90000000000000002,\n  \"weight_decay\": 0.0001,\n"
                "  \"loss_scale\": 0.0,\n  \"epoch_loss\": 0.0\n}\n");
}

/* Puts `text` in the place of `old` in the state of step 2. With `sealed` its hash is made right
 * again. */
static void edit_state(const char *old, const char *text, bool sealed)
{
    char *json = NULL, edited[4096];
    size_t size = 0;
    ck_assert_int_eq(file_read(in_scratch(STATE_2), sizeof edited / 2, &json, &size), STATUS_OK);
    char *at = strstr(json, old);
    ck_assert_msg(at != NULL, "no %s in %s", old, json);
    snprintf(edited, sizeof edited, "%.*s%s%s", (int)(at - json), json, text, at + strlen(old));
    char *hash = strstr(edited, ",\n  \"hash\": \"");
    ck_assert(!sealed || hash != NULL);
    if (sealed)
        sprintf(hash + strlen(",\n  \"hash\": \""), "%016" PRIx64 "\"\n}\n",
                fnv1a(FNV1A_START, edited, (size_t)(hash - edited)));
    write_state(edited);
    free(json);
}

static status find_newest(checkpoint_state *state)
{
    bool found = false;
    char path[FILE_PATH_BYTES];
    return checkpoint_find(scratch, CHECKPOINT_NEWEST, &found, state, path);
}

static const char *const EDITS[][6] = {
    /* what is there, what takes its place, the facts that name it */
    {"\"mlp\"", "\"mlq\"", "model"},
    {"\"mlp\"", "\"cnn\"", "model", "cnn", "mlp"},
    {"\"sgd\"", "\"sgx\"", "optimizer"},
    {"\"step\": 2", "\"step\": 3", "step 2", "step 3"},
    {"\"epoch\": 3", "\"epoch\":-3", "epoch"},
    {"\"epoch\": 3", "\"epock\": 3", "epoch"},
    {"\"epoch\": 3", "\"epoch\": 2147483648", "epoch"},
    {"\"world_size\": 2", "\"world_size\": 0", "world_size", "is 0", "1 to 2147483647"},
    {"\"accum\": 1", "\"accum\":1.", "JSON"},
    {"\"accum\": 1", "\"epoch\": 1", "JSON"},
    {"\"18446744073709551615\"", "\"18446744073709551616\"", "seed"},
    {"\"18446744073709551615\"", "\"1844674407370955161x\"", "seed"},
    {"\"00ff12\"", "\"00fg12\"", "config_hash"},
    {"\"gamma\": 0.", "\"gamma\": \"0", "JSON"},
    {"\"gamma\": 0.", "\"gamma\": -0.", "gamma"},
    {"\"step_in_epoch\": 2", "\"step_in_epoch\": 3", "step_in_epoch"},
    {"\"step_in_epoch\": 2", "\"step_in_epoch\": 9223372036854775807", "step_in_epoch"},
    {"\"epoch_samples\": 0", "\"epoch_samples\": 257", "epoch_samples"},
    {"\"epoch_samples\": 0", "\"epoch_samples\": 9223372036854775807", "epoch_samples"},
    {"\"optimizer_steps\": 2", "\"optimizer_steps\": 5", "optimizer_steps"},
    {"\"loss_scale\": 0.0", "\"loss_scale\": 1e300", "loss_scale"},
    {"\"loss_good_steps\": 0", "\"loss_good_steps\": 2147483648", "loss_good_steps"},
    {"\"epoch_loss\": 0.0", "\"epoch_loss\": 1e300", "epoch_loss"},
    {"\"epoch_loss\": 0.0", "\"epoch_loss\": \"nan\"", "epoch_loss"},
    {"\"epoch_loss\": 0.0", "\"epoch_loss\": null", "epoch_loss"},
};
enum { N_EDITS = sizeof EDITS / sizeof EDITS[0] };

/* Whichever version has written it, and even if the hash is right. */
START_TEST(state_is_checked)
{
    char *whole = NULL;
    size_t size = 0;
    save(2);
    ck_assert_int_eq(file_read(in_scratch(STATE_2), 1 << 16, &whole, &size), STATUS_OK);
    for (int i = 0; i < 2 * N_EDITS; i++) {
        bool of_before = i >= N_EDITS;
        const char *const *edit = EDITS[i % N_EDITS];
        checkpoint_state state = {0};
        if (of_before)
            write_state_of_before();
        else
            write_state(whole);
        ck_assert_int_eq(find_newest(&state), STATUS_OK);
        state.at.step = 0;
        edit_state(edit[0], edit[1], !of_before);
        ck_assert_int_eq(find_newest(&state), STATUS_INVALID);
        ck_assert_int_eq(state.at.step, 0);
        ASSERT_FACTS_LISTED(status_text(), edit + 2);
    }
    free(whole);
}
END_TEST

/* Numbers that are possible, and are not those that were written. */
START_TEST(an_edited_state_is_refused)
{
    checkpoint_state state = {0};
    save(1);
    save(2);
    edit_state("\"epoch\": 3", "\"epoch\": 2", false);
    expect_newest(1);
    edit_state("\"epoch\": 2", "\"epoch\": 3", false);
    expect_newest(2);
    edit_state("\"format\": 2", "\"format\": 3", true);
    expect_newest(1);
    edit_state("\"format\": 3", "\"format\": 2", true);
    ck_assert_int_eq(find_newest(&state), STATUS_OK);
    ck_assert_int_eq(state.at.step, 2);
}
END_TEST

START_TEST(a_state_without_hashes_is_read)
{
    save(1);
    save(2);
    write_state_of_before();
    expect_newest(2);
    /* The three steps are compared nevertheless. */
    const char *other = strdupa(in_scratch("checkpoints/00000001/model.safetensors"));
    ck_assert_int_eq(file_copy(other, in_scratch("checkpoints/00000002/model.safetensors")),
                     STATUS_OK);
    expect_newest(1);
}
END_TEST

/* Each flip is seen by the file alone, whatever else there is. */
START_TEST(no_bit_of_the_state_can_be_flipped)
{
    char *json = NULL;
    const char *path = strdupa(in_scratch(STATE_2));
    size_t size = 0;
    checkpoint_state state = {0};
    save(2);
    ck_assert_int_eq(file_read(path, 1 << 16, &json, &size), STATUS_OK);
    for (size_t bit = 0; bit < 8 * size; bit++) {
        json[bit / 8] ^= (char)(1 << bit % 8);
        int fd = open(path, O_WRONLY);
        ck_assert_int_eq(file_append(fd, path, json, size), STATUS_OK);
        close(fd);
        ck_assert_msg(checkpoint_state_read(path, &state) == STATUS_INVALID, "bit %zu", bit);
        json[bit / 8] ^= (char)(1 << bit % 8);
    }
    for (size_t length = 0; length < size; length++) {
        int fd = open(path, O_WRONLY | O_TRUNC);
        ck_assert_int_eq(file_append(fd, path, json, length), STATUS_OK);
        close(fd);
        ck_assert_msg(checkpoint_state_read(path, &state) == STATUS_INVALID, "length %zu", length);
    }
    printf("%zu bits and %zu lengths of state.json, all refused\n", 8 * size, size);
    free(json);
}
END_TEST

/* Files that are whole, and do not belong together. */
static const char *const MIXTURES[][2] = {
    {"00000001/model.safetensors", "00000002/model.safetensors"},
    {"00000001/optimizer.safetensors", "00000002/optimizer.safetensors"},
    {"00000002/model.safetensors", "00000002/optimizer.safetensors"},
    {"00000002/optimizer.safetensors", "00000002/model.safetensors"},
    {"00000001/state.json", "00000002/state.json"},
    {"../../other/checkpoints/00000002/model.safetensors", "00000002/model.safetensors"},
    {"../../other/checkpoints/00000002/state.json", "00000002/state.json"},
};
enum { N_MIXTURES = sizeof MIXTURES / sizeof MIXTURES[0] };

START_TEST(mixtures_fall_back)
{
    char from[FILE_PATH_BYTES], to[FILE_PATH_BYTES], folder[FILE_PATH_BYTES];
    checkpoint_state state = state_of(2);
    save(1);
    save(2);
    /* Another run's checkpoint of the same step. */
    strcpy(folder, in_scratch("other"));
    stamp(&mlp, 1, false);
    ck_assert_int_eq(checkpoint_save(folder, &state, mlp.net, mlp.opt, NULL), STATUS_OK);
    strcpy(folder, in_scratch("checkpoints"));
    ck_assert_int_eq(file_join(folder, MIXTURES[_i][0], from), STATUS_OK);
    ck_assert_int_eq(file_join(folder, MIXTURES[_i][1], to), STATUS_OK);
    if (strncmp(MIXTURES[_i][0], "..", 2) == 0)
        snprintf(from, sizeof from, "%s/%s", scratch, MIXTURES[_i][0] + strlen("../../"));
    ck_assert_msg(file_copy(from, to) == STATUS_OK, "%s", status_text());
    expect_newest(1);
    ck_assert_int_eq(checkpoint_load(in_scratch("checkpoints/00000002"), mlp.net, mlp.opt, NULL),
                     STATUS_INVALID);
}
END_TEST

START_TEST(state_is_checked_before_it_is_written)
{
    checkpoint_state bad[6] = {state_of(1), state_of(1), state_of(1),
                               state_of(1), state_of(1), state_of(1)};
    static const char *const names[] = {"lr",         "world_size",    "config_hash",
                                        "loss_scale", "epoch_samples", "epoch_loss"};
    bad[0].world.lr = (double)NAN;
    bad[1].world.size = 0;
    strcpy(bad[2].config_hash, "xyz");
    bad[3].loss_scale = HUGE_VAL;
    bad[4].at.epoch_samples = 1 << 20;
    bad[5].at.epoch_loss = 1e-9;
    for (int i = 0; i < 6; i++) {
        stamp(&mlp, 1, false);
        ck_assert_int_eq(checkpoint_save(scratch, &bad[i], mlp.net, mlp.opt, NULL), STATUS_INVALID);
        ck_assert_msg(strstr(status_text(), names[i]) != NULL, "%s", status_text());
    }
    ck_assert_int_eq(count_names(), 0);
}
END_TEST

/* A run whose loss is no number any more can be stopped and continued like any other. */
START_TEST(a_diverged_run_is_kept)
{
    static const double losses[] = {(double)NAN, HUGE_VAL, -HUGE_VAL};
    checkpoint_state state = state_of(2), back = {0};
    state.at.epoch_samples = 256;
    state.at.epoch_loss = losses[_i];
    stamp(&mlp, 2, false);
    ck_assert_msg(checkpoint_save(scratch, &state, mlp.net, mlp.opt, NULL) == STATUS_OK, "%s",
                  status_text());
    ck_assert_int_eq(find_newest(&back), STATUS_OK);
    ck_assert_int_eq(back.at.epoch_samples, 256);
    ck_assert(isnan(losses[_i]) ? isnan(back.at.epoch_loss) : back.at.epoch_loss == losses[_i]);
}
END_TEST

static const char *const RARE[] = {
    "job",           "data",          "sums",           "epoch_first",
    "world_changes", "tested_images", "tested_correct", "tested_loss"};

/* A rare field is in the file if it says something, and comes back. */
START_TEST(rare_fields_come_back)
{
    checkpoint_state state = state_of(2), back = {0};
    json_t *file;
    save(2);
    ck_assert_ptr_nonnull(file = json_load_file(in_scratch(STATE_2), 0, NULL));
    for (size_t i = 0; i < sizeof RARE / sizeof RARE[0]; i++)
        ck_assert_msg(json_object_get(file, RARE[i]) == NULL, "%s", RARE[i]);
    json_decref(file);
    strcpy(state.launch, "launch");
    strcpy(state.data, "00ff13");
    strcpy(state.sums, "order");
    state.at.epoch_first = 64;
    state.at.world_changes = 3;
    state.test = (checkpoint_test){.images = 100, .correct = 90, .loss = 0.25};
    stamp(&mlp, 2, false);
    ck_assert_int_eq(checkpoint_save(scratch, &state, mlp.net, mlp.opt, NULL), STATUS_OK);
    ck_assert_int_eq(find_newest(&back), STATUS_OK);
    ck_assert_str_eq(back.launch, "launch");
    ck_assert_str_eq(back.data, "00ff13");
    ck_assert_str_eq(back.sums, "order");
    ck_assert(back.at.epoch_first == 64 && back.at.world_changes == 3);
    ck_assert(back.test.images == 100 && back.test.correct == 90 && back.test.loss == 0.25);
    ck_assert_ptr_nonnull(file = json_load_file(in_scratch(STATE_2), 0, NULL));
    for (size_t i = 0; i < sizeof RARE / sizeof RARE[0]; i++)
        ck_assert_msg(json_object_get(file, RARE[i]) != NULL, "%s", RARE[i]);
    json_decref(file);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("checkpoint_state");
    TCase *core = suite_case(suite, "core", 60);
    tcase_add_checked_fixture(core, setup, teardown);
    tcase_add_test(core, state_is_checked);
    tcase_add_test(core, an_edited_state_is_refused);
    tcase_add_test(core, a_state_without_hashes_is_read);
    tcase_add_test(core, rare_fields_come_back);
    tcase_add_test(core, no_bit_of_the_state_can_be_flipped);
    tcase_add_loop_test(core, mixtures_fall_back, 0, N_MIXTURES);
    tcase_add_loop_test(core, a_diverged_run_is_kept, 0, 3);
    tcase_add_test(core, state_is_checked_before_it_is_written);
    return suite_run(suite);
}
