/* mnist_ddp demo: what each shows, against numbers that are computed here. */
#include "app/demo/demo.h"
#include "tests/app/support/browser.h"
#include "tests/app/support/demo_run.h"
#include "tests/app/support/test_folder.h"
#include "tests/support/facts.h"
#include "tests/support/program.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

enum { COLUMNS = 80, LINE_BYTES = 256 };

/* Each demo, as it is called in the list: ends well, fits a terminal of 80 columns in plain ASCII,
 * has no colours, and a new heading over each picture. */
START_TEST(each_fits_a_plain_terminal)
{
    char line[LINE_BYTES];
    const char *before = "", *heading = "";
    snprintf(line, sizeof line, "demo %s --fast --html=%s.html", demo_table[_i].name,
             demo_table[_i].name);
    program p = program_run_line(line);
    ASSERT_EXIT(p, 0);
    ck_assert_str_eq(p.err, "");
    for (char *at = strtok(p.out, "\n"); at != NULL; at = strtok(NULL, "\n")) {
        ck_assert_msg(strlen(at) <= COLUMNS, "more than %d columns: %s", COLUMNS, at);
        for (const char *c = at; *c != '\0'; c++)
            ck_assert_msg(*c >= ' ' && *c <= '~', "not plain: %s", at);
        if (at[strspn(at, "-")] == '\0') {
            ck_assert_str_ne(before, heading);
            heading = before;
        }
        before = at;
    }
    ck_assert_str_ne(heading, "");
    program_close(&p);
}
END_TEST

/* The pages that these have left. */
START_TEST(each_page_fits_its_window)
{
    const char *pages[32];
    char names[32][64];
    for (int i = 0; i < demo_table_count; i++)
        pages[i] = strcat(strcpy(names[i], demo_table[i].name), ".html");
    browser_check_looks(pages, demo_table_count);
}
END_TEST

START_TEST(the_list_names_all)
{
    program p = program_run_line("demo");
    ASSERT_EXIT(p, 0);
    for (int i = 0; i < demo_table_count; i++)
        ASSERT_SAYS(p.out, demo_table[i].name);
    for (char *at = strtok(p.out, "\n"); at != NULL; at = strtok(NULL, "\n"))
        ck_assert_msg(strlen(at) <= COLUMNS, "more than %d columns: %s", COLUMNS, at);
    program_close(&p);
}
END_TEST

START_TEST(mistakes_are_named)
{
    static const struct {
        const char *line, *fact;
        int exit_code;
    } cases[] = {
        {"demo rnig", "did you mean 'ring'", 64},
        {"demo nothing-like-it", "there are linear, ring", 64},
        {"demo sampler --samples=1000", "at most 40", 64},
        {"demo sampler --samples=2 --drop-last", "use fewer ranks", 64},
        {"demo one-batch-four-ways --batch-size=1", "--batch-size", 64},
        {"demo dp --replicas=1", "--replicas=1", 64},
        {"demo dp --nproc-per-node=2", "--replicas", 64},
        {"demo ring --backend=local", "threads", 64},
        {"demo failure --inject=kill:rank=9,step=5", "rank 9 of 3", 64},
        {"demo failure --data-dir=no-such", "no-such", 65},
        {"demo ps --data-dir=no-such", "no-such", 65},
        {"demo precision --data-dir=no-such", "no-such", 65},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        program p = program_run_line(cases[i].line);
        ASSERT_EXIT(p, cases[i].exit_code);
        ASSERT_FACTS(p.err, cases[i].fact);
        ck_assert_int_eq(facts_count(p.err, "\n"), 1);
        program_close(&p);
    }
}
END_TEST

/* What a demo says holds for the flags that it was given too. */
START_TEST(it_says_what_is_so)
{
    static const struct {
        const char *line, *said, *not_said;
        int frame;
    } cases[] = {
        {"sampler --samples=1", "dealt again", "dealt twice", 0},
        {"buckets --bucket-cap-mb=0.1", "full at 0.1 MiB", "25 MiB", 0},
        {"linear", "divides its gradients by 2", "divides them", 3},
        {"linear --nproc-per-node=1", "nothing to average", "different models", 2},
        {"rendezvous", "ranks 0, 2", "with rank 0", 2},
        {"failure --inject=uneven:rank=0", "uneven:rank=0", "Rank 1 has", 1},
        {"failure --inject=port-busy", "mnist_ddp train", "/proc/self/exe", 2},
    };
    json_t *document = demo_run(cases[_i].line);
    char *text = demo_run_text(document, cases[_i].frame);
    ASSERT_SAYS(text, cases[_i].said);
    ASSERT_SILENT(text, cases[_i].not_said);
    free(text);
    json_decref(document);
}
END_TEST

/* Before a rank is started: one line. */
START_TEST(too_few_and_too_many_ranks_are_refused)
{
    const demo_entry *entry = &demo_table[_i];
    const int wrong[] = {entry->least_ranks - 1, entry->most_ranks + 1};
    for (int i = 0; i < 2; i++) {
        char line[LINE_BYTES], right[32];
        if (wrong[i] == 0)
            continue;
        snprintf(line, sizeof line, "demo %s --nproc-per-node=%d", entry->name, wrong[i]);
        snprintf(right, sizeof right, i == 0 ? "--nproc-per-node=%d" : "at most %d",
                 i == 0 ? entry->least_ranks : entry->most_ranks);
        program p = program_run_line(line);
        ASSERT_EXIT(p, 64);
        ASSERT_FACTS(p.err, entry->name, right);
        ck_assert_int_eq(facts_count(p.err, "\n"), 1);
        program_close(&p);
    }
}
END_TEST

START_TEST(a_page_needs_no_network)
{
    program p = program_run_line("demo ring --fast --nproc-per-node=2 --html=ring.html");
    ASSERT_EXIT(p, 0);
    ASSERT_SAYS(p.out, "page: ring.html");
    char *page = test_folder_read("ring.html");
    json_t *data = browser_data(page);
    ck_assert_uint_eq(json_array_size(json_object_get(json_object_get(data, "demo"), "frames")), 4);
    json_decref(data);
    ASSERT_SILENT(page, "@import");
    free(page);
    page = browser_shows("ring.html", 1200);
    if (page != NULL) {
        ASSERT_SAYS(page, "<section>");
        ASSERT_SAYS(page, "data-from=\"1\" data-to=\"0\"");
        ASSERT_SAYS(page, "<svg class=\"ranks\"");
        ck_assert_int_eq(facts_count(page, "class=\"chunk\""), 4); /* two of each rank */
    }
    free(page);
    program_close(&p);
}
END_TEST

/* A chunk goes from rank to rank, and its sum is there when it has come; a bucket fills while
 * backward goes on, and leaves then. */
static const char PROBE[] =
    "const ring = document.createElement('div'), box = document.createElement('div');"
    "document.body.append(ring, box);"
    "const places = (parent, what) => [...parent.querySelectorAll(what)].map(element => "
    "element.getAttribute('transform')).join();"
    "const go = drawRanks(ring, page.demo.frames[1], page.demo.frames[0], 2);"
    "const seen = [0, 0.5, 1].map(part => { go(part); return places(ring, '.chunk'); });"
    "const hasSum = () => [...ring.querySelectorAll('.chunk text')].some(text => "
    "text.textContent === '11');"
    "go(0); const before = hasSum(); go(1);"
    "const fill = drawBuckets(box, {}, [{name: 'fc1 backward', from: 1, to: 4}, "
    "{name: 'bucket 0', from: 4, to: 8}], [{tensors: 'fc1.weight, fc1.bias'}]);"
    "const filled = [0, 0.5, 1].map(part => { fill(part); return places(box, 'g') + "
    "[...box.querySelectorAll('g rect + rect')].map(one => one.getAttribute('opacity')); });"
    "document.body.setAttribute('data-seen', `moves:${new Set(seen).size} "
    "sums:${before} ${hasSum()} buckets:${filled.join(' ')}`);";

START_TEST(what_is_sent_moves)
{
    program p = program_run_line("demo ring --fast --nproc-per-node=2 --html=ring.html");
    ASSERT_EXIT(p, 0);
    program_close(&p);
    browser_probe("ring.html", PROBE, "probed.html");
    char *page = browser_shows("probed.html", 1200);
    if (page == NULL)
        return;
    const char *seen = strstr(page, "data-seen=");
    ck_assert_msg(seen != NULL, "the probe did not run: %.500s", page);
    ck_assert_msg(strstr(seen, "\"moves:3 sums:false true buckets:") != NULL, "%.200s", seen);
    ck_assert_msg(strstr(seen, "translate(90 0)0.15 translate(90 0)1 translate(390 0)1\"") != NULL,
                  "%.200s", seen);
    free(page);
}
END_TEST

/* Before it plays; and what is there stays. */
START_TEST(a_page_that_cannot_be_written_is_refused)
{
    static const char *const wrong[] = {"no/such/folder.html", "data", "/dev/null"};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        char line[LINE_BYTES];
        snprintf(line, sizeof line, "demo ring --fast --html=%s", wrong[i]);
        program p = program_run_line(line);
        ASSERT_EXIT(p, 74);
        ASSERT_FACTS(p.err, "error", "--html", wrong[i]);
        ck_assert_int_eq(facts_count(p.err, "\n"), 1);
        ck_assert_str_eq(p.out, "");
        program_close(&p);
    }
    program p = program_run_with(
        WORDS("env", "RANK=0", "WORLD_SIZE=1", "MASTER_ADDR=127.0.0.1", "MASTER_PORT=29500"),
        WORDS("demo", "linear", "--fast", "--html=data"));
    ASSERT_EXIT(p, 74);
    ck_assert_str_eq(p.out, "");
    program_close(&p);
}
END_TEST

/* A ring of n ranks: 2 (n - 1) steps, each rank sends 2 (n - 1) chunks, and all have all sums. */
START_TEST(a_ring_adds_up)
{
    int n = _i;
    char line[LINE_BYTES], sum[16] = "";
    snprintf(line, sizeof line, "ring --nproc-per-node=%d", n);
    json_t *document = demo_run(line);
    ck_assert_int_eq((int)json_array_size(json_object_get(document, "frames")), 2 * (n - 1) + 2);
    ck_assert_double_eq(demo_run_fact(document, "bytes_sent"), 2.0 * (n - 1) * 8);
    ck_assert_double_eq_tol(demo_run_fact(document, "bytes_formula"), 2.0 * (n - 1) / n * n * 8,
                            1e-9);
    for (int i = 0; i < n; i++)
        strcat(sum, "1");
    for (int rank = 0; rank < n; rank++)
        for (int chunk = 0; chunk < n; chunk++)
            ck_assert_int_eq(
                strncmp(json_string_value(demo_run_cell(document, -2, rank, chunk + 1)), sum,
                        (size_t)n),
                0);
    json_decref(document);
}
END_TEST

/* A tree of n ranks: log2 n steps up and as many down, all ranks have the sum, and all together
 * send a number per edge and way. */
START_TEST(a_tree_adds_up)
{
    int n = _i, levels = 0, edges = 0;
    char line[LINE_BYTES], sum[16] = "";
    while (1 << levels < n)
        levels++;
    snprintf(line, sizeof line, "tree --nproc-per-node=%d", n);
    json_t *document = demo_run(line);
    ck_assert_double_eq(demo_run_fact(document, "steps"), 2 * levels);
    ck_assert_int_eq((int)json_array_size(json_object_get(document, "frames")), 2 * levels + 3);
    for (int i = 0; i < n; i++)
        strcat(sum, "1");
    for (int rank = 0; rank < n; rank++) {
        int last_down = 2 * levels;
        ck_assert_int_eq(
            strncmp(json_string_value(demo_run_cell(document, last_down, rank, 1)), sum, (size_t)n),
            0);
        edges += (int)json_integer_value(demo_run_cell(document, -2, rank, 1)) / 8;
        ck_assert_str_eq(json_string_value(demo_run_cell(document, -2, rank, 3)), "yes");
    }
    ck_assert_int_eq(edges, 2 * (n - 1));
    ck_assert_double_eq(demo_run_fact(document, "bytes_sent"), 8 * levels);
    json_decref(document);
}
END_TEST

/* One parameter a rank, 99..9 at first, from which rank r's gradients 1, 2, ... times 10^r go. */
START_TEST(slices_of_the_state_make_the_step)
{
    int n = _i;
    char line[LINE_BYTES], want[64] = "", state[64] = "", text[16];
    int ones = 0, floats = (1199882 + n - 1) / n, all = n * floats;
    for (int i = 0; i < n; i++)
        ones = 10 * ones + 1;
    snprintf(line, sizeof line, "zero --nproc-per-node=%d", n);
    json_t *document = demo_run(line);
    for (int i = 0; i < n; i++) {
        snprintf(text, sizeof text, "%s%d", i > 0 ? " " : "", (9 - i - 1) * ones);
        strcat(want, text);
        snprintf(text, sizeof text, i + 1 < n ? "- " : "%d", n * ones);
        strcat(state, text);
    }
    for (int rank = 0; rank < n; rank++)
        ck_assert_str_eq(json_string_value(demo_run_cell(document, 3, rank, 1)), want);
    ck_assert_str_eq(json_string_value(demo_run_cell(document, 3, n - 1, 3)), state);
    static const int slices[3][3] = {{0, 0, 0}, {0, 0, 1}, {1, 1, 1}}; /* ddp, zero1, fsdp */
    for (int row = 0; row < 3; row++) {
        for (int i = 0; i < 3; i++)
            ck_assert_int_eq((int)json_integer_value(demo_run_cell(document, -1, row, 1 + i)),
                             slices[row][i] ? floats : all);
        ck_assert_int_eq((int)json_integer_value(demo_run_cell(document, -1, row, 4)),
                         (row < 2 ? 2 : 3) * (n - 1) * floats * 4);
    }
    json_decref(document);
}
END_TEST

/* "F0 F1 . B0" of one rank. */
static void check_slots(const json_t *document, int frame, int rank, const char *want)
{
    char got[128] = "";
    const json_t *shown = json_array_get(json_object_get(document, "frames"), (size_t)frame), *cell;
    const json_t *row = json_array_get(json_object_get(shown, "rows"), (size_t)rank);
    size_t i;
    json_array_foreach(row, i, cell) if (i > 0)
    {
        strcat(got, i > 1 ? " " : "");
        strcat(got, json_string_value(cell));
    }
    ck_assert_str_eq(got, want);
}

/* The pictures of GPipe and of Megatron's paper, for three stages and six micro-batches. */
START_TEST(a_pipeline_is_a_picture)
{
    static const char *const pictures[2][3] = {{"F0 F1 F2 F3 F4 F5 . . . . B0 B1 B2 B3 B4 B5",
                                                ". F0 F1 F2 F3 F4 F5 . . B0 B1 B2 B3 B4 B5 .",
                                                ". . F0 F1 F2 F3 F4 F5 B0 B1 B2 B3 B4 B5 . ."},
                                               {"F0 F1 F2 . . B0 F3 B1 F4 B2 F5 B3 . B4 . B5",
                                                ". F0 F1 . B0 F2 B1 F3 B2 F4 B3 F5 B4 . B5 .",
                                                ". . F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 F5 B5 . ."}};
    json_t *document = demo_run(_i == 0 ? "pipeline --nproc-per-node=3"
                                        : "pipeline --nproc-per-node=3 --backend=gloo");
    for (int schedule = 0; schedule < 2; schedule++)
        for (int rank = 0; rank < 3; rank++)
            check_slots(document, schedule, rank, pictures[schedule][rank]);
    json_decref(document);
}
END_TEST

/* A stage is idle for (S - 1) / (M + S - 1), keeps M or S - s micro-batches, and the gradient of
 * its weight is the product of the others times 1 + 2 + ... + M. */
START_TEST(a_pipeline_has_a_bubble)
{
    int n = _i, m = 6, gradient = m * (m + 1) / 2;
    char line[LINE_BYTES];
    snprintf(line, sizeof line, "pipeline --nproc-per-node=%d", n);
    json_t *document = demo_run(line);
    for (int rank = 1; rank < n; rank++)
        gradient *= 10;
    ck_assert_double_eq(demo_run_fact(document, "slots"), 2 * (m + n - 1));
    ck_assert_double_eq_tol(demo_run_fact(document, "bubble"), (n - 1.0) / (m + n - 1), 1e-9);
    ck_assert_double_eq(demo_run_fact(document, "gradient"), gradient);
    for (int rank = 0; rank < n; rank++) {
        const int want[] = {2 * (n - 1), 2 * (n - 1), m, n - rank, gradient};
        for (int i = 0; i < 5; i++)
            ck_assert_double_eq(json_number_value(demo_run_cell(document, -1, rank, 1 + i)),
                                want[i]);
    }
    json_decref(document);
}
END_TEST

static void read_pair(const json_t *document, int frame, int row, int column, double out[2])
{
    const char *text = json_string_value(demo_run_cell(document, frame, row, column));
    char *rest;
    out[0] = strtod(text, &rest);
    out[1] = strtod(rest, NULL);
}

/* y = relu(x W1) W2 and the gradient of x, from the weights that the ranks show. */
START_TEST(parts_of_two_layers_add_up)
{
    int n = _i;
    const double x[] = {1, 2}, dy[] = {1, -1};
    double y[2] = {0}, dx[2] = {0}, got[2];
    char line[LINE_BYTES];
    snprintf(line, sizeof line, "tensor-parallel --nproc-per-node=%d", n);
    json_t *document = demo_run(line);
    for (int k = 0; k < 2 * n; k++) {
        double w1[2], w2[2];
        read_pair(document, 0, k / 2, 1 + k % 2, w1);
        read_pair(document, 0, k / 2, 3 + k % 2, w2);
        double h = x[0] * w1[0] + x[1] * w1[1], dh = dy[0] * w2[0] + dy[1] * w2[1];
        for (int i = 0; i < 2 && h > 0; i++) {
            y[i] += h * w2[i];
            dx[i] += dh * w1[i];
        }
    }
    for (int rank = 0; rank < n; rank++)
        for (int i = 0; i < 2; i++) {
            read_pair(document, 1, rank, 3, got);
            ck_assert_double_eq(got[i], y[i]);
            read_pair(document, 2, rank, 3, got);
            ck_assert_double_eq(got[i], dx[i]);
            ck_assert_str_eq(json_string_value(demo_run_cell(document, -1, rank, 3)), "yes");
        }
    json_decref(document);
}
END_TEST

/* torch.nn.Linear's gradients of the mean squared error, by finite differences of the loss. */
START_TEST(the_linear_layers_gradients_are_those_of_its_loss)
{
    enum { IN = 10, OUT = 10, BATCH = 20, COUNT = IN * OUT + OUT };
    int n = 3;
    double w[COUNT], x[3][BATCH][IN], y[3][BATCH][OUT];
    json_t *document = demo_run("linear --nproc-per-node=3");
    for (int i = 0; i < COUNT; i++)
        w[i] = ((i * 7 + 13) % 23 - 11) / 16.0 / 4;
    for (int r = 0; r < n; r++)
        for (int s = 0; s < BATCH; s++)
            for (int i = 0; i < IN; i++) {
                x[r][s][i] = (((s * IN + i) * 7 + (2 + r) * 13) % 23 - 11) / 16.0;
                y[r][s][i] = (((s * OUT + i * 3) * 7 + (5 + r) * 13) % 23 - 11) / 16.0;
            }
    const json_t *gradients = json_object_get(json_object_get(document, "facts"), "gradients");
    for (int g = 0; g < COUNT; g++) {
        double loss[2];
        for (int side = 0; side < 2; side++) {
            double kept = w[g];
            w[g] += side == 0 ? -1e-4 : 1e-4;
            loss[side] = 0;
            for (int r = 0; r < n; r++)
                for (int s = 0; s < BATCH; s++)
                    for (int o = 0; o < OUT; o++) {
                        double e = w[IN * OUT + o] - y[r][s][o];
                        for (int i = 0; i < IN; i++)
                            e += w[o * IN + i] * x[r][s][i];
                        loss[side] += e * e / (n * BATCH * OUT);
                    }
            w[g] = kept;
        }
        double want = (loss[1] - loss[0]) / 2e-4;
        ck_assert_double_eq_tol(json_real_value(json_array_get(gradients, (size_t)g)), want, 1e-7);
    }
    json_decref(document);
}
END_TEST

/* Ten samples for three ranks, without a shuffle: 0 3 6 9, 1 4 7 0*, 2 5 8 1*. */
START_TEST(the_sampler_deals_and_pads)
{
    json_t *document = demo_run("sampler");
    ck_assert_double_eq(demo_run_fact(document, "per_rank"), 4);
    ck_assert_double_eq(demo_run_fact(document, "padded"), 2);
    ck_assert_str_eq(json_string_value(demo_run_cell(document, 0, 1, 1)), "  1   4   7   0*");
    /* torch's DistributedSampler(range(10), 3, rank, seed=1): epochs 0 and 1 */
    ck_assert_str_eq(json_string_value(demo_run_cell(document, 1, 0, 1)), "  5   2   9   4 ");
    ck_assert_str_eq(json_string_value(demo_run_cell(document, 2, 2, 1)), "  1   9   2   7*");
    ck_assert_int_eq(json_equal(demo_run_cell(document, 1, 0, 1), demo_run_cell(document, 3, 0, 1)),
                     1);
    json_decref(document);
    document = demo_run("sampler --drop-last");
    ck_assert_double_eq(demo_run_fact(document, "dropped"), 1);
    json_decref(document);
}
END_TEST

int main(void)
{
    program_clean_environment();
    test_folder_open();
    Suite *suite = suite_create("demo");
    TCase *core = suite_case(suite, "core", 2.0 * RUN_S);
    tcase_add_checked_fixture(core, test_folder_clean, NULL);
    TCase *looks = suite_case(suite, "looks", 2.0 * RUN_S);
    tcase_add_loop_test(looks, each_fits_a_plain_terminal, 0, demo_table_count);
    suite_add(looks, each_page_fits_its_window, 0, browser_find() ? NULL : "Chromium is missing");
    tcase_add_test(core, the_list_names_all);
    tcase_add_test(core, mistakes_are_named);
    tcase_add_loop_test(core, it_says_what_is_so, 0, 7);
    tcase_add_loop_test(core, too_few_and_too_many_ranks_are_refused, 0, demo_table_count);
    tcase_add_test(core, a_page_needs_no_network);
    tcase_add_test(core, what_is_sent_moves);
    tcase_add_test(core, a_page_that_cannot_be_written_is_refused);
    tcase_add_loop_test(core, a_ring_adds_up, 2, 8);
    tcase_add_loop_test(core, a_tree_adds_up, 2, 8);
    tcase_add_loop_test(core, slices_of_the_state_make_the_step, 2, 5);
    tcase_add_loop_test(core, a_pipeline_is_a_picture, 0, 2);
    tcase_add_loop_test(core, a_pipeline_has_a_bubble, 2, 5);
    tcase_add_loop_test(core, parts_of_two_layers_add_up, 2, 5);
    tcase_add_test(core, the_linear_layers_gradients_are_those_of_its_loss);
    tcase_add_test(core, the_sampler_deals_and_pads);
    return test_folder_close(suite_run(suite));
}
