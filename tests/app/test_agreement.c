/* Ranks say their settings in an open store: what is there under a rank's name need not be its. */
#include "app/options/options.h"
#include "app/train/agreement.h"
#include "app/train/rank_context.h"
#include "base/clock.h"
#include "dist/membership/membership.h"
#include "kernels/device_kind.h"
#include "tests/model/trainee.h"
#include "tests/support/facts.h"
#include "tests/support/ranks.h"
#include "tests/support/suite.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>

enum { TIMEOUT_MS = 5000 };

static store_server *server;
static store *shared;

static void open_store(void)
{
    ck_assert_int_eq(store_server_create("127.0.0.1", 0, &server), STATUS_OK);
    store_options how = {.host = "127.0.0.1",
                         .port = store_server_port(server),
                         .prefix = "test/",
                         .timeout_ms = TIMEOUT_MS,
                         .connect_timeout_ms = TIMEOUT_MS,
                         .describe = ""};
    ck_assert_msg(store_create(&how, &shared) == STATUS_OK, "%s", status_text());
}

static void close_store(void)
{
    store_destroy(shared);
    store_server_destroy(server);
}

/* The other one of two ranks comes first. */
static void post(int rank, const char *record)
{
    const membership ranks = {
        .store = shared, .prefix = "settings/", .member = rank, .n = 2, .noun = "rank"};
    const meeting how = {.record = record, .deadline_ns = clock_deadline_ns(TIMEOUT_MS)};
    ck_assert_msg(membership_arrive(&ranks, &how) == STATUS_OK, "%s", status_text());
}

START_TEST(a_record_has_a_size)
{
    static const char *const records[] = {"", "0123456789abcdef"};
    char name[16];
    cores_peers peers = {0};
    int liar = _i % 2;
    snprintf(name, sizeof name, "rank %d", liar);
    post(liar, records[_i / 2]);
    status st = agreement_check("seed 1\n", shared, 1 - liar, 2, TIMEOUT_MS, &peers);
    ck_assert_int_eq(st, STATUS_PEER);
    ASSERT_FACTS(status_text(), "settings", name, "make no sense");
}
END_TEST

START_TEST(equal_settings_agree)
{
    cores_peers peers = {.count = 7};
    post(1, "0000000000000001\nseed 1\n");
    status st = agreement_check("seed 1\n", shared, 0, 2, TIMEOUT_MS, &peers);
    ck_assert_msg(st == STATUS_OK, "%s", status_text());
    ck_assert(peers.count == 1 || peers.count == 7); /* 7: the system does not tell its cores */
}
END_TEST

static void node_text(const char *flag, char text[AGREEMENT_BYTES])
{
    options opts;
    char *words[] = {strdup("mnist_ddp"), strdup("train"), strdup(flag), NULL};
    ck_assert_msg(options_read(3, words, &opts) == STATUS_OK, "%s", status_text());
    ck_assert_msg(rank_context_agreement_of_node(&opts, true, text) == STATUS_OK, "%s",
                  status_text());
    options_free(&opts);
    for (int i = 0; i < 3; i++)
        free(words[i]);
}

/* What nodes of an elastic job compare before a newcomer is let in; what changes no bit is free. */
START_TEST(a_node_says_all_that_must_be_alike)
{
    static const struct {
        const char *flag, *fact; /* NULL: free */
    } all[] = {
        {"--tf32", "--tf32=true"},
        {"--dense", "--dense=true"},
        {"--no-cuda-graph", "--cuda-graph=false"},
        {"--bucket-cap-mb=3", "--bucket-cap-mb=3"},
        {"--powersgd-rank=2", "--powersgd-rank=2"},
        {"--powersgd-start-iter=9", "--powersgd-start-iter=9"},
        {"--nccl-nvls", "--nccl-nvls=true"},
        {"--no-overlap", "--overlap=false"},
        {"--elastic-batch=local", "--elastic-batch=local"},
        {"--limit=300", "--limit=300"},
        {"--device=reference", "device reference"},
        {"--isa=auto", NULL},
        {"--threads=2", NULL},
        {"--device=cpu", NULL},
        {"--isa=generic", "device sse2 kernels"}, /* not AVX's bits */
        {"--isa=avx2", "device avx2 kernels"},    /* nor AVX-512's order in memory */
    };
    bool has_avx = strncmp(device_libraries(), "avx", 3) == 0;
    bool has_avx512 = strncmp(device_libraries(), "avx512", 6) == 0;
    char usual[AGREEMENT_BYTES], text[AGREEMENT_BYTES];
    node_text("--seed=1", usual);
    ASSERT_FACTS(usual, "generated digits");
    for (size_t i = 0; i < sizeof all / sizeof all[0] - !has_avx - !has_avx512; i++) {
        node_text(all[i].flag, text);
        ck_assert_msg((strcmp(usual, text) == 0) == (all[i].fact == NULL), "%s", all[i].flag);
        if (all[i].fact != NULL)
            ASSERT_FACTS(text, all[i].fact);
    }
}
END_TEST

static status compare_states(process_group *group, int rank, int world_size, void *arg)
{
    uint64_t hash = 0;
    trainee t = {0};
    rank_context context = {.place = {.rank = rank, .world_size = world_size}, .group = group};
    uint64_t seed = rank == *(const int *)arg ? 2 : 1;
    status st = trainee_open(&t, "reference", MODEL_MLP, OPTIMIZER_SGD, seed);
    context.dev = t.dev;
    context.net = t.net;
    if (st == STATUS_OK)
        st = agreement_on_state(&context, t.opt, &hash);
    bool differs = st == STATUS_DEVICE && facts_in_a_line(status_text(), "rank 2", "rank 0", NULL);
    trainee_close(&t);
    return differs == (seed == 2) ? STATUS_OK : FAIL(STATUS_IO, "status %s", status_name(st));
}

/* Broadcasts that went wrong: rank 2 of 3 has other weights, or nobody. */
START_TEST(ranks_begin_with_the_same_weights)
{
    int other = _i == 0 ? 2 : -1;
    status st = run_ranks(3, compare_states, &other);
    ck_assert_msg(st == STATUS_OK, "%s", status_text());
}
END_TEST

static size_t peak_kib(void)
{
    struct rusage used;
    ck_assert_int_eq(getrusage(RUSAGE_SELF, &used), 0);
    return (size_t)used.ru_maxrss;
}

static status compare_alone(process_group *group, int rank, int world_size, void *arg)
{
    uint64_t hash = 0;
    trainee t = {0};
    rank_context context = {.place = {.rank = rank, .world_size = world_size}, .group = group};
    TRY(trainee_open(&t, "reference", MODEL_MLP, OPTIMIZER_SGD, 1));
    context.dev = t.dev;
    context.net = t.net;
    size_t before = peak_kib();
    status st = agreement_on_state(&context, t.opt, &hash);
    *(size_t *)arg = peak_kib() - before;
    trainee_close(&t);
    return st;
}

/* Many ranks of one host would take and clear pages for it. */
START_TEST(weights_in_memory_are_not_copied_to_be_compared)
{
    size_t more_kib = 0;
    status st = run_ranks(1, compare_alone, &more_kib);
    ck_assert_msg(st == STATUS_OK, "%s", status_text());
    ck_assert_uint_lt(more_kib, sizeof(float) * model_kind_count(MODEL_MLP) / 1024 / 2);
}
END_TEST

int main(void)
{
    unsetenv("MNIST_DDP_DATA");
    unsetenv("XDG_CACHE_HOME"); /* no data set is here */
    unsetenv("HOME");
    Suite *suite = suite_create("agreement");
    TCase *core = suite_case(suite, "core", 20);
    tcase_add_checked_fixture(core, open_store, close_store);
    tcase_add_loop_test(core, a_record_has_a_size, 0, 4);
    tcase_add_test(core, equal_settings_agree);
    tcase_add_test(core, a_node_says_all_that_must_be_alike);
    tcase_add_loop_test(core, ranks_begin_with_the_same_weights, 0, 2);
    tcase_add_test(core, weights_in_memory_are_not_copied_to_be_compared);
    return suite_run(suite);
}
