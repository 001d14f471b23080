/* The numbers of a run over time: metrics.jsonl, and TensorBoard's event files, read back by a
 * parser of this test's own. */
#include "app/train/metrics.h"
#include "tests/app/support/event_records.h"
#include "tests/app/support/training.h"
#include "tests/support/no_memory.h"

#include <glob.h>
#include <jansson.h>
#include <math.h>
#include <signal.h>
#include <sys/resource.h>

#define RUN \
    "train", "--model", "mlp", TRAINING_SGD, "--limit", "192", "--batch-size", "16", "--threads", \
        "1", "--quiet", "--run-dir", "run", "--log-interval", "2"

enum { STEPS = 12 }; /* of an epoch of one rank */

static void train(int exit_code, const char *const *flags)
{
    const char *words[MAX_WORDS] = {RUN};
    int n = 0;
    while (words[n] != NULL)
        n++;
    for (; *flags != NULL; flags++)
        words[n++] = *flags;
    program p = program_run_with(NULL, words);
    ASSERT_EXIT(p, exit_code);
    program_close(&p);
}

enum { MAX_EVENTS = 256 };

/* All events of the folder's nth file. Returns their number. */
static int read_events(int nth, event_record out[MAX_EVENTS])
{
    glob_t found;
    char *text = NULL;
    size_t size_bytes = 0;
    int n = 0;
    ck_assert_int_eq(glob("run/events.out.tfevents.*", 0, NULL, &found), 0);
    ck_assert_int_lt(nth, (int)found.gl_pathc);
    ck_assert_int_eq(file_read(found.gl_pathv[nth], 1 << 20, &text, &size_bytes), STATUS_OK);
    event_reader in = {(const uint8_t *)text, (const uint8_t *)text + size_bytes};
    while (in.at < in.end && n < MAX_EVENTS)
        out[n++] = event_records_take(&in);
    free(text);
    globfree(&found);
    return n;
}

START_TEST(records_have_their_crcs)
{
    uint8_t bytes[EVENT_FILE_RECORD_BYTES];
    const event_scalar scalars[] = {{"a", 0.5}, {"test/accuracy", -1e30}};
    ck_assert_uint_eq(event_records_crc((const uint8_t *)"123456789", 9),
                      0xe3069283u); /* as published */
    size_t size_bytes = event_file_scalars(1.25, INT64_C(1) << 40, scalars, 2, bytes);
    event_reader in = {bytes, bytes + size_bytes};
    event_record e = event_records_take(&in);
    ck_assert_ptr_eq(in.at, in.end);
    ck_assert(e.wall_time == 1.25 && e.step == INT64_C(1) << 40 && e.n == 2);
    ck_assert(e.values[0] == 0.5f && e.values[1] == -1e30f);
    ck_assert_str_eq(e.tags[1], "test/accuracy");
}
END_TEST

/* All lines, as one array. */
static json_t *read_lines(void)
{
    json_t *lines = json_array();
    char *text = test_folder_read("run/metrics.jsonl"), *rest = NULL;
    ck_assert_int_eq(text[strlen(text) - 1], '\n');
    for (char *line = strtok_r(text, "\n", &rest); line != NULL;
         line = strtok_r(NULL, "\n", &rest)) {
        json_t *entry = json_loads(line, JSON_REJECT_DUPLICATES, NULL);
        ck_assert_msg(json_is_object(entry), "no JSON: %s", line);
        json_array_append_new(lines, entry);
    }
    free(text);
    return lines;
}

static double number_of(const json_t *line, const char *key)
{
    const json_t *value = json_object_get(line, key);
    ck_assert_msg(json_is_number(value), "no number %s", key);
    return json_number_value(value);
}

static bool is_event(const json_t *line, const char *name)
{
    return strcmp(json_string_value(json_object_get(line, "event")), name) == 0;
}

static int count_events(const json_t *lines, const char *name)
{
    int n = 0;
    for (size_t i = 0; i < json_array_size(lines); i++)
        n += is_event(json_array_get(lines, i), name);
    return n;
}

/* The line and the event say the same. */
static void assert_same(const json_t *line, const event_record *e)
{
    static const char *const step[] = {"loss", "lr", "images_per_s"};
    static const char *const test[] = {"test_loss", "test_acc"};
    static const char *const tags[] = {"train/loss", "train/lr", "train/images_per_s", "test/loss",
                                       "test/accuracy"};
    bool is_step = is_event(line, "step");
    ck_assert_int_eq(e->n, is_step ? 3 : 2);
    ck_assert(number_of(line, "step") == (double)e->step);
    for (int i = 0; i < e->n; i++) {
        double want = number_of(line, is_step ? step[i] : test[i]);
        ck_assert_str_eq(e->tags[i], tags[is_step ? i : 3 + i]);
        ck_assert_double_eq_tol((double)e->values[i], want, 1e-5 * fabs(want));
    }
}

/* Two ranks, 6 steps an epoch, a test inside each. */
START_TEST(both_files_say_the_same)
{
    static event_record events[MAX_EVENTS];
    train(0, WORDS("--nproc-per-node=2", "--epochs=2", "--eval-every=4steps", "--gamma=0.5"));
    json_t *lines = read_lines();
    int n = read_events(0, events);
    ck_assert_int_eq(count_events(lines, "step"), 6);
    ck_assert_int_eq(count_events(lines, "test"), 2);
    ck_assert_int_eq(count_events(lines, "epoch"), 2);
    ck_assert(events[0].is_version && events[1].is_start && events[1].step == 1);
    int at = 2;
    double before_s = 0;
    for (size_t i = 0; i < json_array_size(lines); i++) {
        const json_t *line = json_array_get(lines, i);
        double epoch = number_of(line, "epoch"), step = number_of(line, "step");
        ck_assert(epoch == (step <= 6 ? 1 : 2));
        ck_assert(number_of(line, "time_s") >= before_s);
        before_s = number_of(line, "time_s");
        if (!is_event(line, "test"))
            ck_assert(number_of(line, "lr") == (epoch > 1 ? 0.025 : 0.05));
        if (is_event(line, "epoch"))
            ck_assert(number_of(line, "train_loss") > 0 && step == 6 * epoch);
        if (is_event(line, "epoch") && json_is_null(json_object_get(line, "test_acc")))
            continue;
        ck_assert_int_lt(at, n);
        assert_same(line, &events[at++]);
    }
    ck_assert_int_eq(at, n);
    json_decref(lines);
}
END_TEST

/* A run that was killed after its checkpoint, and whose last line is torn, goes on without a gap
 * and without a step told twice. */
START_TEST(a_resume_cuts_off_what_the_checkpoint_does_not_have)
{
    static event_record events[MAX_EVENTS];
    train(128 + SIGKILL, WORDS("--epochs=3", "--save-every=4steps", "--log-interval=1",
                               "--inject=kill:rank=0,step=19"));
    char *before = test_folder_read("run/metrics.jsonl");
    char later[8192];
    snprintf(later, sizeof later,
             "%.6000s{\"event\":\"step\",\"step\":17,\"epoch\":2}\n{\"event\":\"st", before);
    test_folder_write("run/metrics.jsonl", later);
    free(before);
    train(0, WORDS("--epochs=3", "--save-every=4steps", "--log-interval=1", "--resume"));
    json_t *lines = read_lines();
    double step = 0, epoch = 0, time_s = 0;
    for (size_t i = 0; i < json_array_size(lines); i++) {
        const json_t *line = json_array_get(lines, i);
        if (is_event(line, "epoch")) {
            epoch++;
            ck_assert(number_of(line, "epoch") == epoch && number_of(line, "step") == step);
            ck_assert(step == epoch * STEPS);
        } else {
            ck_assert(number_of(line, "step") == step + 1);
        }
        ck_assert(number_of(line, "time_s") >= time_s);
        step = number_of(line, "step");
        time_s = number_of(line, "time_s");
        ck_assert_ptr_nonnull(json_object_get(line, "lr")); /* the one at step 17 had none */
    }
    ck_assert(step == 3 * STEPS && epoch == 3);
    ck_assert_int_gt(read_events(1, events), 2);
    ck_assert(events[1].is_start && events[1].step == 17 && events[2].step == 17);
    json_decref(lines);
}
END_TEST

/* The images per second of the fastest epoch that was trained from `step` on. */
static double fastest_after(double step)
{
    double most = 0;
    json_t *lines = read_lines();
    for (size_t i = 0; i < json_array_size(lines); i++) {
        const json_t *line = json_array_get(lines, i);
        if (is_event(line, "epoch") && number_of(line, "step") > step)
            most = fmax(most, number_of(line, "images_per_s"));
    }
    json_decref(lines);
    return most;
}

static void assert_rate(double want)
{
    char *result = test_folder_read("run/result.json");
    ck_assert_double_eq_tol(training_number(result, "images_per_s"), want, 1 + 1e-6 * want);
    free(result);
}

/* One step of the second epoch is left to the resumed run, and is not the speed of a whole one. */
START_TEST(a_part_of_an_epoch_has_its_own_speed)
{
    train(128 + SIGKILL,
          WORDS("--epochs=3", "--save-every=23steps", "--inject=kill:rank=0,step=24"));
    train(0, WORDS("--epochs=3", "--save-every=23steps", "--resume"));
    assert_rate(fastest_after(23));
}
END_TEST

/* Stopped inside the second epoch by its target, and then told to go on. */
START_TEST(an_epoch_that_is_continued_has_one_line)
{
    train(0, WORDS("--epochs=3", "--eval-every=15steps", "--target-acc=0"));
    assert_rate(fastest_after(0));
    train(0, WORDS("--epochs=3", "--resume"));
    json_t *lines = read_lines();
    ck_assert_int_eq(count_events(lines, "epoch"), 3);
    for (size_t i = 0, epoch = 0; i < json_array_size(lines); i++) {
        const json_t *line = json_array_get(lines, i);
        if (is_event(line, "epoch")) {
            epoch++;
            ck_assert(number_of(line, "epoch") == (double)epoch);
            ck_assert(number_of(line, "step") == (double)(epoch * STEPS));
        }
    }
    json_decref(lines);
}
END_TEST

/* A test after an epoch may write a checkpoint of its own: the best one. */
#define UNTESTED "--eval-every=0"

/* How often the event files of all starts say the tag of the step. */
static int count_values(int files, const char *tag, int64_t step)
{
    static event_record events[MAX_EVENTS];
    int n = 0;
    for (int nth = 0; nth < files; nth++)
        for (int i = read_events(nth, events) - 1; i >= 0; i--)
            for (int v = 0; v < events[i].n; v++)
                n += events[i].step == step && strcmp(events[i].tags[v], tag) == 0;
    return n;
}

/* Killed after the checkpoint of the epoch's last step: its line is in the file, or is not. */
START_TEST(an_epoch_that_has_no_step_left_has_one_line)
{
    train(128 + SIGKILL,
          WORDS("--epochs=2", "--save-every=12steps", "--inject=kill:rank=0,step=13", UNTESTED));
    train(0, WORDS("--epochs=2", "--save-every=12steps", "--eval-every=1", "--resume"));
    json_t *lines = read_lines();
    ck_assert_int_eq(count_events(lines, "epoch"), 2);
    ck_assert_int_eq(count_values(2, "test/accuracy", STEPS), 1);
    for (size_t i = 0; i < json_array_size(lines); i++) {
        const json_t *line = json_array_get(lines, i);
        if (!is_event(line, "epoch") || number_of(line, "epoch") > 1)
            continue;
        ck_assert(number_of(line, "lr") == 0.05 && number_of(line, "train_loss") > 0);
        /* it has trained none of the images */
        ck_assert(json_is_null(json_object_get(line, "images_per_s")));
    }
    json_decref(lines);
}
END_TEST

/* The run is over but for what follows its last step, which was done before: once without and once
 * with validation images. */
START_TEST(a_test_is_told_once)
{
    const char *split = _i == 1 ? "--val-split=24" : "--val-split=0";
    train(0, WORDS("--epochs=1", "--save-every=6steps", split));
    json_t *first = read_lines();
    size_t last = json_array_size(first) - 1;
    int64_t step = (int64_t)number_of(json_array_get(first, last), "step");
    train(0, WORDS("--epochs=1", split, "--resume"));
    train(0, WORDS("--epochs=1", split, "--resume"));
    json_t *lines = read_lines();
    ck_assert_uint_eq(json_array_size(lines), last + 1);
    ck_assert_int_eq(count_events(lines, "test"), _i);
    ck_assert_int_eq(count_events(lines, "epoch"), 1);
    ck_assert_int_eq(count_values(3, "test/accuracy", step), 1);
    ck_assert_int_eq(count_values(3, "val/accuracy", step), _i);
    json_decref(first);
    json_decref(lines);
}
END_TEST

static const struct {
    const char *text;
    size_t kept_bytes;
    unsigned cut;
} CUTS[] = {
    {"", 0, 0},
    {"{\"step\":5}\n{\"step\":6}\n", 11, 0},
    {"{\"step\":5}\n{\"step\":5}", 11, 0},
    {"{\"step\":5}\n\n[5]\n{\"step\":5,\"time_s\":2}\n", 38, 0},
    {"{\"step\":5}\n[5]\n", 11, 0},
    {"\xff\n{\"step\":5}\n\n{\"step\":6}\n\n{\"step\":6}\n", 14, 0},
    {"{\"epoch\":5}\n", 0, 0},
    {"{\"event\":\"epoch\",\"step\":3,\"epoch\":2}\n", 37, 0},
    {"{\"step\":4}\n{\"event\":\"epoch\",\"step\":4,\"epoch\":3}\n", 11, 0},
    {"\xff\xfe\n", 0, 0},
    {"{\"event\":\"test\",\"step\":5,\"epoch\":3,\"test_acc\":1}\n", 49, 0},
    {"{\"event\":\"test\",\"step\":5,\"epoch\":2,\"test_acc\":1}\n", 0, 1u << METRICS_TEST},
    {"{\"event\":\"epoch\",\"step\":5,\"epoch\":3,\"test_acc\":1}\n"
     "{\"event\":\"test\",\"step\":5,\"epoch\":3,\"test_acc\":1}\n",
     0, 1u << METRICS_EPOCH | 1u << METRICS_TEST},
    {"{\"event\":\"epoch\",\"step\":5,\"epoch\":3,\"test_acc\":null}\n", 0, 0},
};

/* The run goes on after 5 steps and 2 epochs. */
static const metrics_options FROM = {.step = 5, .epochs = 2};

START_TEST(lines_are_cut_off_at_the_first_that_is_late_or_a_torn_last)
{
    int fd = -1;
    metrics_lines_found found = {.time_s = -1};
    test_folder_write("lines", CUTS[_i].text);
    ck_assert_int_eq(metrics_lines_open("lines", &FROM, &fd, &found), STATUS_OK);
    close(fd);
    char *text = test_folder_read("lines");
    ck_assert_uint_eq(strlen(text), CUTS[_i].kept_bytes);
    ck_assert(found.time_s == (strstr(CUTS[_i].text, "time_s") != NULL ? 2 : 0));
    ck_assert_uint_eq(found.cut, CUTS[_i].cut);
    free(text);
}
END_TEST

START_TEST(a_file_without_a_line_is_kept_aside)
{
    static const char damaged[] = "\xff\n\xfe\nno newline";
    int fd = -1;
    metrics_lines_found found;
    test_folder_write("lines", damaged);
    ck_assert_int_eq(metrics_lines_open("lines", &FROM, &fd, &found), STATUS_OK);
    close(fd);
    char *text = test_folder_read("lines.damaged");
    ck_assert_str_eq(text, damaged);
    free(text);
    text = test_folder_read("lines");
    ck_assert_str_eq(text, "");
    free(text);
    test_folder_write("lines", "[6]\n");
    ck_assert_int_eq(metrics_lines_open("lines", &FROM, &fd, &found), STATUS_IO);
    text = test_folder_read("lines.damaged");
    ck_assert_str_eq(text, damaged);
    free(text);
}
END_TEST

/* A resume and the page pass over a blank line in the middle, each with a warning. */
START_TEST(a_line_that_cannot_be_read_stays)
{
    train(0, WORDS("--epochs=1"));
    json_t *before = read_lines();
    char *text = test_folder_read("run/metrics.jsonl"), *damaged = NULL;
    char *second = strchr(text, '\n') + 1;
    ck_assert_int_gt(asprintf(&damaged, "%.*s\n%s", (int)(second - text), text, second), 0);
    test_folder_write("run/metrics.jsonl", damaged);
    program p = program_run_with(NULL, WORDS(RUN, "--epochs=2", "--resume"));
    ASSERT_EXIT(p, 0);
    ck_assert_int_eq(facts_count(p.err, "warning"), 2);
    ASSERT_FACTS(p.err, "run/metrics.jsonl", "cannot be read: 1", "line 2; they stay");
    ASSERT_FACTS(p.err, "not shown: 1, the first is line 2");
    program_close(&p);
    p = program_run_with(NULL, WORDS("report", "run"));
    ASSERT_EXIT(p, 0);
    ck_assert_int_eq(facts_count(p.err, "warning"), 1);
    ASSERT_FACTS(p.err, "run/metrics.jsonl", "not shown: 1, the first is line 2");
    program_close(&p);
    char *after = test_folder_read("run/metrics.jsonl");
    ck_assert_int_eq(strncmp(after, damaged, strlen(damaged)), 0);
    json_t *lines = read_lines();
    ck_assert_uint_eq(json_array_size(lines), 2 * json_array_size(before));
    json_decref(lines);
    json_decref(before);
    free(after);
    free(damaged);
    free(text);
}
END_TEST

START_TEST(no_line_is_cut_off_for_want_of_memory)
{
    static const char whole[] = "{\"step\":4}\n{\"step\":5}\n";
    int fd = -1;
    metrics_lines_found found;
    test_folder_write("lines", whole);
    no_memory_begin();
    ck_assert_int_eq(metrics_lines_open("lines", &FROM, &fd, &found), STATUS_NO_MEMORY);
    no_memory_end();
    char *text = test_folder_read("lines");
    ck_assert_str_eq(text, whole);
    free(text);
}
END_TEST

START_TEST(a_clipped_step_has_its_norm)
{
    char line[METRICS_LINE_BYTES];
    metrics_entry e = {.event = METRICS_STEP, .step = 1, .loss = 2, .lr = 1, .grad_norm = 0.25};
    metrics_lines_print(&e, 0.5, line);
    ASSERT_FACTS(line, "\"loss\":2,\"grad_norm\":0.25,\"lr\":1");
    e.grad_norm = (double)NAN;
    metrics_lines_print(&e, 0.5, line);
    ASSERT_FACTS(line, "\"grad_norm\":null");
    e.grad_norm = 0;
    metrics_lines_print(&e, 0.5, line);
    ck_assert_ptr_null(strstr(line, "grad_norm"));
}
END_TEST

START_TEST(what_is_not_finite_is_null)
{
    char line[METRICS_LINE_BYTES];
    const metrics_entry e = {.event = METRICS_EPOCH,
                             .step = 1,
                             .loss = (double)NAN,
                             .lr = HUGE_VAL,
                             .images_per_s = -1e300,
                             .test_loss = -(double)NAN,
                             .test_acc = 1};
    ck_assert_uint_eq(metrics_lines_print(&e, 0.5, line), strlen(line));
    ck_assert_str_eq(line, "{\"event\":\"epoch\",\"step\":1,\"epoch\":1,\"time_s\":0.5,"
                           "\"train_loss\":null,\"test_loss\":null,\"test_acc\":1,\"lr\":null,"
                           "\"images_per_s\":-1e+300}\n");
}
END_TEST

/* No file may be longer than this: the rest is not there, and the run goes on. */
START_TEST(a_full_disk_is_one_warning)
{
    const struct rlimit limit = {1 << 18, 1 << 18}; /* the page and eval.json have room */
    ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &limit), 0);
    program p = program_run_with(NULL, WORDS(RUN, "--epochs=240", "--log-interval=1", "--json",
                                             "--no-save-model", "--eval-every=0"));
    ASSERT_EXIT(p, 0);
    ck_assert_int_eq(facts_count(p.err, "warning"), 1);
    ASSERT_FACTS(p.err, "warning", "metrics", "run/metrics.jsonl");
    ck_assert(training_number(p.out, "steps") == 240 * STEPS);
    program_close(&p);
}
END_TEST

int main(void)
{
    program_clean_environment();
    test_folder_open();
    Suite *suite = suite_create("metrics");
    TCase *bytes = suite_case(suite, "bytes", 10);
    tcase_add_checked_fixture(bytes, test_folder_clean, NULL);
    tcase_add_test(bytes, records_have_their_crcs);
    tcase_add_loop_test(bytes, lines_are_cut_off_at_the_first_that_is_late_or_a_torn_last, 0,
                        sizeof CUTS / sizeof CUTS[0]);
    tcase_add_test(bytes, a_file_without_a_line_is_kept_aside);
    tcase_add_test(bytes, no_line_is_cut_off_for_want_of_memory);
    tcase_add_test(bytes, a_clipped_step_has_its_norm);
    tcase_add_test(bytes, what_is_not_finite_is_null);
    TCase *runs = suite_case(suite, "runs", 2 * RUN_S);
    tcase_add_checked_fixture(runs, test_folder_clean, NULL);
    tcase_add_test(runs, both_files_say_the_same);
    tcase_add_test(runs, a_resume_cuts_off_what_the_checkpoint_does_not_have);
    tcase_add_test(runs, a_part_of_an_epoch_has_its_own_speed);
    tcase_add_test(runs, an_epoch_that_is_continued_has_one_line);
    tcase_add_test(runs, an_epoch_that_has_no_step_left_has_one_line);
    tcase_add_loop_test(runs, a_test_is_told_once, 0, 2);
    tcase_add_test(runs, a_line_that_cannot_be_read_stays);
    tcase_add_test(runs, a_full_disk_is_one_warning);
    return test_folder_close(suite_run(suite));
}
