/* What a rank remembers of its collectives, the page on which others see it, and what is said of
 * the ranks that did not come. */
#include "base/clock.h"
#include "base/file.h"
#include "base/text.h"
#include "dist/ddp.h"
#include "dist/health/hang_report.h"
#include "dist/health/rank_status.h"
#include "tests/support/facts.h"
#include "tests/support/ranks.h"
#include "tests/support/suite.h"

#include <jansson.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static char folder[64];

/* The lines of a ring, parsed; the caller frees the array. */
static json_t *lines_of(process_group *group)
{
    char *text = NULL, *next = NULL;
    text_stream written;
    ck_assert(text_stream_open(&written) == STATUS_OK);
    process_group_write_flight_record(group, written.file);
    ck_assert(text_stream_close(&written, &text, NULL) == STATUS_OK);
    json_t *lines = json_array();
    for (char *line = strtok_r(text, "\n", &next); line != NULL; line = strtok_r(NULL, "\n", &next))
        json_array_append_new(lines, json_loads(line, 0, NULL));
    free(text);
    return lines;
}

static int64_t number_at(const json_t *lines, size_t i, const char *key)
{
    return json_integer_value(json_object_get(json_array_get(lines, i), key));
}

static const char *text_at(const json_t *lines, size_t i, const char *key)
{
    const char *text = json_string_value(json_object_get(json_array_get(lines, i), key));
    return text != NULL ? text : "";
}

static process_group *alone(void)
{
    process_group_options options = {.backend = "shm", .world_size = 1, .timeout_ms = 1000};
    process_group *group = NULL;
    ck_assert_int_eq(process_group_create(&options, &group), STATUS_OK);
    return group;
}

START_TEST(the_last_thousand_are_kept)
{
    process_group *group = alone();
    float data[3] = {1, 2, 3};
    for (int i = 0; i < 2 * FLIGHT_RECORDER_LENGTH + 1; i++)
        ck_assert_int_eq(process_group_all_reduce(group, data, 3, DTYPE_F32, REDUCE_MAX, NULL),
                         STATUS_OK);
    ck_assert_int_eq(process_group_barrier(group), STATUS_OK);
    json_t *lines = lines_of(group);
    ck_assert_uint_eq(json_array_size(lines), FLIGHT_RECORDER_LENGTH);
    for (size_t i = 0; i < FLIGHT_RECORDER_LENGTH; i++)
        ck_assert_int_eq(number_at(lines, i, "seq"), (int64_t)(FLIGHT_RECORDER_LENGTH + 3 + i));
    size_t last = FLIGHT_RECORDER_LENGTH - 1;
    ck_assert_str_eq(text_at(lines, last, "kind"), "barrier");
    ck_assert_str_eq(text_at(lines, last - 1, "kind"), "all_reduce");
    ck_assert_str_eq(text_at(lines, last - 1, "op"), "max");
    ck_assert_str_eq(text_at(lines, last - 1, "dtype"), "f32");
    ck_assert_int_eq(number_at(lines, last - 1, "bytes"), 12);
    json_decref(lines);
    process_group_destroy(group);
}
END_TEST

START_TEST(an_empty_ring_has_no_lines)
{
    process_group *group = alone();
    json_t *lines = lines_of(group);
    ck_assert_uint_eq(json_array_size(lines), 0);
    json_decref(lines);
    process_group_destroy(group);
}
END_TEST

/* launched <= waited <= ended, and how far each got. */
static status stages(process_group *group, int rank, int world_size, void *arg)
{
    (void)rank, (void)world_size, (void)arg;
    float data[4] = {0};
    work *works[2];
    for (int i = 0; i < 2; i++)
        TRY(process_group_launch(
            group,
            &(collective){
                .kind = COLLECTIVE_ALL_REDUCE, .in = data + 2 * i, .out = data + 2 * i, .count = 2},
            NULL, &works[i]));
    TRY(process_group_wait(group, works[0], NULL));
    json_t *lines = lines_of(group);
    bool good = json_array_size(lines) == 2 && strcmp(text_at(lines, 0, "state"), "done") == 0 &&
                strcmp(text_at(lines, 1, "state"), "launched") == 0 &&
                number_at(lines, 0, "launched_ns") > 0 &&
                number_at(lines, 0, "waited_ns") >= number_at(lines, 0, "launched_ns") &&
                number_at(lines, 0, "ended_ns") >= number_at(lines, 0, "launched_ns") &&
                number_at(lines, 1, "waited_ns") == 0 && number_at(lines, 1, "ended_ns") == 0;
    char *text = json_dumps(lines, 0);
    json_decref(lines);
    status st = process_group_wait(group, works[1], NULL);
    if (st == STATUS_OK && !good)
        st = FAIL(STATUS_INVALID, "the ring tells it otherwise: %s", text);
    free(text);
    return st;
}

START_TEST(stages_and_times_are_noted)
{
    ck_assert_int_eq(run_ranks(2, stages, NULL), STATUS_OK);
}
END_TEST

/* A bucket is called by its parameters. */
START_TEST(buckets_have_names)
{
    static const size_t offsets[] = {0, 2, 4, 7};
    static const char *const names[] = {"a.weight", "a.bias", "b.weight", "b.bias"};
    const ddp_options cut = {.first_bucket_bytes = 4, .bucket_cap_bytes = 16, .overlap = true};
    process_group *group = alone();
    float gradients[9] = {0};
    ddp *reducer = NULL;
    ck_assert_int_eq(ddp_create(group, gradients, &(ddp_parameters){8, offsets, 4}, &cut, &reducer),
                     STATUS_OK);
    ck_assert_int_eq(ddp_name_parameters(reducer, names), STATUS_OK);
    ddp_carry(reducer, 1);
    gradients[8] = 1;
    ck_assert_int_eq(ddp_on_grad_ready(reducer, 0, 8, NULL), STATUS_OK);
    ck_assert_int_eq(ddp_wait(reducer), STATUS_OK);
    ddp_destroy(reducer);
    json_t *lines = lines_of(group);
    ck_assert_uint_eq(json_array_size(lines), 3);
    ck_assert_str_eq(text_at(lines, 0, "carries"), "bucket 0: b.bias");
    ck_assert_str_eq(text_at(lines, 1, "carries"), "bucket 1: a.bias, b.weight");
    ck_assert_str_eq(text_at(lines, 2, "carries"), "bucket 2: a.weight");
    ck_assert_int_eq(number_at(lines, 0, "count"), 2); /* with the float after the gradients */
    ck_assert_int_eq(number_at(lines, 1, "count"), 5);
    ck_assert(gradients[8] == 1);
    json_decref(lines);
    process_group_destroy(group);
}
END_TEST

/* What travels with the gradients is summed over ranks like them. */
static status carry(process_group *group, int rank, int world_size, void *arg)
{
    (void)arg;
    static const size_t offsets[] = {0, 2};
    const ddp_options options = {.first_bucket_bytes = 4, .bucket_cap_bytes = 4, .overlap = true};
    float gradients[5] = {1, 2, 3, 4, rank == world_size - 1 ? 1.0f : 0.0f};
    ddp *reducer = NULL;
    TRY(ddp_create(group, gradients, &(ddp_parameters){4, offsets, 2}, &options, &reducer));
    ddp_carry(reducer, 1);
    status st = ddp_on_grad_ready(reducer, 0, 4, NULL);
    if (st == STATUS_OK)
        st = ddp_wait(reducer);
    ddp_destroy(reducer);
    TRY(st);
    float want = 1.0f / (float)world_size;
    if (gradients[4] < want || gradients[4] > want || gradients[0] < 0.999f)
        return FAIL(STATUS_INVALID, "carried %g, want %g", (double)gradients[4], (double)want);
    return STATUS_OK;
}

START_TEST(a_flag_travels_with_the_gradients)
{
    ck_assert_int_eq(run_ranks(1 + _i, carry, NULL), STATUS_OK);
}
END_TEST

static rank_status *page_of(int rank, int world_size)
{
    rank_status_options options = {
        .folder = folder, .rank = rank, .world_size = world_size, .attempt = 3};
    rank_status *page = NULL;
    ck_assert_int_eq(rank_status_create(&options, &page), STATUS_OK);
    return page;
}

START_TEST(a_page_tells_where_a_rank_is)
{
    rank_status *page = page_of(1, 2);
    rank_snapshot snapshot;
    rank_status_step(page, 4, 77);
    rank_status_enter(page, MOMENT_BACKWARD);
    ck_assert_msg(rank_status_read(folder, 1, &snapshot) == STATUS_OK, "%s", status_text());
    ck_assert_int_eq(snapshot.pid, (int)getpid());
    ck_assert_int_eq(snapshot.attempt, 3);
    ck_assert_int_eq(snapshot.state, RANK_WORKS);
    ck_assert_int_eq(snapshot.step, 77);
    ASSERT_FACTS(snapshot.doing, "backward", "step 77", "epoch 5", "0.0 s");
    collective c = {.kind = COLLECTIVE_ALL_REDUCE, .count = 5, .seq = 9, .label = "bucket 0: w"};
    rank_status_launch(page, &c);
    rank_status_wait(page, &c, clock_now_ns());
    ck_assert_int_eq(rank_status_read(folder, 1, &snapshot), STATUS_OK);
    ck_assert_int_eq(snapshot.state, RANK_WAITS);
    ck_assert_uint_eq(snapshot.entered, 9);
    ASSERT_FACTS(snapshot.waits_text, "all_reduce #9", "bucket 0: w");
    ASSERT_FACTS(snapshot.doing, "all_reduce #9", "bucket 0: w", "step 77", "epoch 5");
    rank_status_end_wait(page);
    rank_status_fail(page);
    ck_assert_int_eq(rank_status_read(folder, 1, &snapshot), STATUS_OK);
    ck_assert_int_eq(snapshot.state, RANK_FAILED);
    rank_status_destroy(page);
    rank_status_destroy(NULL);
    ck_assert_int_eq(rank_status_read(folder, 2, &snapshot), STATUS_IO);
}
END_TEST

START_TEST(a_page_outlives_its_rank)
{
    rank_snapshot snapshot;
    int code = 0;
    pid_t child = fork();
    if (child == 0) {
        rank_status_enter(page_of(5, 6), MOMENT_LOAD);
        raise(SIGSTOP);
        raise(SIGKILL);
    }
    ck_assert_int_eq(waitpid(child, &code, WUNTRACED), child);
    ck_assert(WIFSTOPPED(code));
    ck_assert_int_eq(rank_status_read(folder, 5, &snapshot), STATUS_OK);
    ck_assert_int_eq(snapshot.state, RANK_STOPPED);
    ck_assert_int_eq(snapshot.pid, child);
    kill(child, SIGCONT);
    ck_assert_int_eq(waitpid(child, &code, 0), child);
    ck_assert_int_eq(rank_status_read(folder, 5, &snapshot), STATUS_OK);
    ck_assert_int_eq(snapshot.state, RANK_GONE);
    ASSERT_FACTS(snapshot.doing, "loader");
}
END_TEST

/* Not a page, cut short, or another rank's: refused, and nothing is read beyond its end. */
START_TEST(what_is_no_page_is_refused)
{
    char path[FILE_PATH_BYTES], other[FILE_PATH_BYTES], *data = NULL;
    size_t size_bytes = 0;
    rank_snapshot snapshot;
    rank_status_destroy(page_of(7, 9));
    snprintf(path, sizeof path, "%s/rank7.page", folder);
    snprintf(other, sizeof other, "%s/rank8.page", folder);
    ck_assert_int_eq(file_read(path, 1 << 20, &data, &size_bytes), STATUS_OK);
    ck_assert_int_eq(file_write(other, &(file_part){data, size_bytes}, 1), STATUS_OK);
    ck_assert_int_eq(rank_status_read(folder, 8, &snapshot), STATUS_PEER);
    ck_assert_int_eq(file_write(path, &(file_part){data, size_bytes - 1}, 1), STATUS_OK);
    ck_assert_int_eq(rank_status_read(folder, 7, &snapshot), STATUS_PEER);
    memset(data, 0xff, size_bytes);
    ck_assert_int_eq(file_write(path, &(file_part){data, size_bytes}, 1), STATUS_OK);
    ck_assert_int_eq(rank_status_read(folder, 7, &snapshot), STATUS_PEER);
    free(data);
}
END_TEST

/* The page of a rank that has written over its own memory still reads as a page. */
START_TEST(a_scribbled_page_is_read_with_care)
{
    static const int64_t scribbles[] = {INT64_MAX, INT64_MIN, -1};
    char path[FILE_PATH_BYTES], *data = NULL;
    size_t size_bytes = 0;
    rank_status *page = page_of(10, 11);
    rank_status_step(page, 1, 1);
    rank_status_destroy(page);
    snprintf(path, sizeof path, "%s/rank10.page", folder);
    ck_assert_int_eq(file_read(path, 1 << 20, &data, &size_bytes), STATUS_OK);
    for (size_t at = 0; at + 8 <= size_bytes; at += 8) {
        char saved[8];
        rank_snapshot snapshot = {0};
        memcpy(saved, data + at, 8);
        memcpy(data + at, &scribbles[_i], 8);
        ck_assert_int_eq(file_write(path, &(file_part){data, size_bytes}, 1), STATUS_OK);
        status st = rank_status_read(folder, 10, &snapshot);
        ck_assert(st == STATUS_OK || st == STATUS_PEER);
        ck_assert_msg(strchr(snapshot.doing, '-') == NULL, "word %zu: %s", at, snapshot.doing);
        memcpy(data + at, saved, 8);
    }
    free(data);
}
END_TEST

START_TEST(a_folder_that_cannot_be_made_is_no_failure)
{
    rank_status_options options = {.folder = "/proc/none", .world_size = 1};
    rank_status *page = NULL;
    rank_snapshot snapshot;
    ck_assert_int_eq(rank_status_create(&options, &page), STATUS_OK);
    rank_status_enter(page, MOMENT_OPTIMIZER);
    rank_status_look(page, &snapshot);
    ASSERT_FACTS(snapshot.doing, "optimizer");
    rank_status_destroy(page);
}
END_TEST

/* Ranks as their pages and the store show them, without collectives: rank 0 failed in #17. */
static const collective SEVENTEEN = {.kind = COLLECTIVE_ALL_REDUCE,
                                     .count = 8,
                                     .seq = 17,
                                     .label = "bucket 1: fc1.weight, fc1.bias"};

static rank_status *scene_page(const char *in, int rank, const collective *entered, bool waits)
{
    rank_status_options options = {.folder = in, .rank = rank, .world_size = 3};
    rank_status *page = NULL;
    ck_assert_int_eq(rank_status_create(&options, &page), STATUS_OK);
    rank_status_step(page, 0, 6);
    rank_status_enter(page, waits ? MOMENT_DDP_WAIT : MOMENT_LOAD);
    rank_status_launch(page, entered);
    if (waits)
        rank_status_wait(page, entered, clock_now_ns());
    return page;
}

static void explain(store *keys, const char *in, int rank, const rank_status *page, char *out)
{
    hang_report_options options = {.store = keys,
                                   .folder = in,
                                   .page = page,
                                   .rank = rank,
                                   .world_size = 3,
                                   .wait_ms = 300,
                                   .why = STATUS_TIMEOUT};
    hang_report_explain(&options, out);
}

static store *connect_to(store_server *server)
{
    store_options where = {.host = "127.0.0.1",
                           .port = store_server_port(server),
                           .prefix = "test/",
                           .timeout_ms = 5000,
                           .connect_timeout_ms = 5000,
                           .describe = ""};
    store *keys = NULL;
    ck_assert_int_eq(store_create(&where, &keys), STATUS_OK);
    return keys;
}

/* What is said of one rank: up to the name of the other, in whatever order they come. */
static void cut_out(const char *said, const char *who, const char *other, char *out)
{
    const char *begin = strstr(said, who), *end = strstr(said, other);
    ck_assert_msg(begin != NULL && end != NULL, "%s", said);
    size_t length = end > begin ? (size_t)(end - begin) : strlen(begin);
    memcpy(out, begin, length);
    out[length] = '\0';
}

/* With pages of this host, or only through the store, in which rank 1 says the same of itself. */
START_TEST(who_did_not_come_is_named)
{
    const char *in = _i == 0 ? folder : NULL;
    char said[HANG_REPORT_BYTES], ignored[HANG_REPORT_BYTES];
    store_server *server = NULL;
    ck_assert_int_eq(store_server_create("127.0.0.1", 0, &server), STATUS_OK);
    store *keys = connect_to(server);
    collective before = SEVENTEEN, other = {.kind = COLLECTIVE_BARRIER, .seq = 17};
    before.seq = 16;
    rank_status *own = scene_page(in, 0, &SEVENTEEN, true);
    rank_status *late = scene_page(in, 1, &before, false);
    rank_status *strange = scene_page(in, 2, &other, true);
    if (in == NULL) {
        explain(keys, NULL, 1, late, ignored);
        explain(keys, NULL, 2, strange, ignored);
    }
    explain(keys, in, 0, own, said);
    char of_1[HANG_REPORT_BYTES], of_2[HANG_REPORT_BYTES];
    cut_out(said, "rank 1", "rank 2", of_1);
    cut_out(said, "rank 2", "rank 1", of_2);
    ASSERT_FACTS(of_1, "rank 1", "all_reduce #17", "bucket 1: fc1.weight, fc1.bias", "loader",
                 "step 6", "epoch 1");
    ASSERT_FACTS(of_2, "rank 2", "barrier #17", "rank 0", "all_reduce #17");
    rank_status_destroy(own);
    rank_status_destroy(late);
    rank_status_destroy(strange);
    store_destroy(keys);
    store_server_destroy(server);
}
END_TEST

/* Rank 0 waits in its receive #17 from rank 2, rank 1 in the collective #17, rank 2 for nobody:
 * numbers of receives are not those of collectives. */
START_TEST(a_receive_is_no_collective)
{
    char said[HANG_REPORT_BYTES], ignored[HANG_REPORT_BYTES];
    store_server *server = NULL;
    const char *in = _i == 0 ? folder : NULL;
    collective before = SEVENTEEN, receive = {.kind = COLLECTIVE_RECV, .seq = 17, .root = 2};
    before.seq = 16;
    ck_assert_int_eq(store_server_create("127.0.0.1", 0, &server), STATUS_OK);
    store *keys = connect_to(server);
    rank_status *own = scene_page(in, 0, &before, false);
    rank_status *waits = scene_page(in, 1, &SEVENTEEN, true);
    rank_status *peer = scene_page(in, 2, &SEVENTEEN, false);
    rank_status_wait(own, &receive, clock_now_ns());
    if (in == NULL) {
        explain(keys, NULL, 1, waits, ignored);
        explain(keys, NULL, 2, peer, ignored);
    }
    explain(keys, in, 0, own, said);
    ASSERT_FACTS(said, "rank 2", "its part", "recv #17", "from rank 2", "loader", "step 6");
    ASSERT_NO_FACTS(said, "rank 1");
    ASSERT_NO_FACTS(said, "issued");
    explain(keys, in, 1, waits, said);
    ASSERT_FACTS(said, "rank 0 never entered all_reduce #17", "waiting for recv #17", "rank 2");
    ASSERT_NO_FACTS(said, "issued");
    rank_status_destroy(own);
    rank_status_destroy(waits);
    rank_status_destroy(peer);
    store_destroy(keys);
    store_server_destroy(server);
}
END_TEST

START_TEST(the_launcher_tells_receives_from_collectives)
{
    collective before = SEVENTEEN, receive = {.kind = COLLECTIVE_RECV, .seq = 17, .root = 2};
    rank_snapshot ranks[3];
    rank_status *pages[3] = {scene_page(NULL, 0, &SEVENTEEN, true), NULL, NULL};
    before.seq = 16;
    pages[1] = scene_page(NULL, 1, &before, false);
    pages[2] = scene_page(NULL, 2, &before, false);
    rank_status_wait(pages[1], &receive, clock_now_ns());
    for (int rank = 0; rank < 3; rank++)
        rank_status_look(pages[rank], &ranks[rank]);
    char *lines = hang_report_lines(ranks, 3);
    ck_assert_ptr_nonnull(lines);
    ASSERT_FACTS(lines, "rank 1 waited for rank 2", "recv #17");
    ASSERT_FACTS(lines, "rank 2 never entered all_reduce #17", "loader");
    ASSERT_NO_FACTS(lines, "rank 1 never");
    free(lines);
    for (int i = 0; i < 2; i++) { /* who receives is a victim; of two that are late the later one */
        char name[HANG_REPORT_WHO_BYTES];
        hang_report_name(ranks, 3, name);
        ck_assert_str_eq(name, "rank 2 hangs");
        ranks[1].peer = -1;
        ranks[2].entered = 15;
    }
    for (int rank = 0; rank < 3; rank++)
        rank_status_destroy(pages[rank]);
}
END_TEST

START_TEST(a_silent_rank_is_named_in_the_hang_report)
{
    char said[HANG_REPORT_BYTES];
    store_server *server = NULL;
    ck_assert_int_eq(store_server_create("127.0.0.1", 0, &server), STATUS_OK);
    store *keys = connect_to(server);
    rank_status *own = scene_page(NULL, 0, &SEVENTEEN, true);
    int64_t start_ns = clock_now_ns();
    explain(keys, NULL, 0, own, said);
    ASSERT_FACTS(said, "1", "2");
    ASSERT_NO_FACTS(said, "0");
    ck_assert_double_lt(clock_seconds(clock_now_ns() - start_ns), 2);
    ASSERT_NO_FACTS(said, "store");
    explain(NULL, NULL, 0, own, said); /* the store is lost, too: so is what living ranks say */
    ASSERT_FACTS(said, "1", "2", "store");
    ASSERT_NO_FACTS(said, "0", "stopped");
    rank_status_destroy(own);
    store_destroy(keys);
    store_server_destroy(server);
}
END_TEST

int main(void)
{
    snprintf(folder, sizeof folder, "/tmp/mnist_ddp-ring-%d", (int)getpid());
    Suite *suite = suite_create("ring");
    TCase *core = suite_case(suite, "core", 30);
    tcase_add_test(core, the_last_thousand_are_kept);
    tcase_add_test(core, an_empty_ring_has_no_lines);
    tcase_add_test(core, stages_and_times_are_noted);
    tcase_add_test(core, buckets_have_names);
    tcase_add_loop_test(core, a_flag_travels_with_the_gradients, 0, 3);
    TCase *pages = suite_case(suite, "pages", 30);
    tcase_add_test(pages, a_page_tells_where_a_rank_is);
    tcase_add_test(pages, a_page_outlives_its_rank);
    tcase_add_test(pages, what_is_no_page_is_refused);
    tcase_add_loop_test(pages, a_scribbled_page_is_read_with_care, 0, 3);
    tcase_add_test(pages, a_folder_that_cannot_be_made_is_no_failure);
    tcase_add_loop_test(pages, who_did_not_come_is_named, 0, 2);
    tcase_add_loop_test(pages, a_receive_is_no_collective, 0, 2);
    tcase_add_test(pages, the_launcher_tells_receives_from_collectives);
    tcase_add_test(pages, a_silent_rank_is_named_in_the_hang_report);
    int code = suite_run(suite);
    char command[128];
    snprintf(command, sizeof command, "rm -rf '%s'", folder);
    return system(command) != 0 ? EXIT_FAILURE : code;
}
