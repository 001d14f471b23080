/* The ranks of an elastic run, with an agent that the test is: rounds end, others go on, with the
 * undisturbed run's result. With a learning rate of 0 an epoch's mean loss tells its images. */
#include "app/common/exit_codes.h"
#include "base/clock.h"
#include "tests/app/support/elastic_agent.h"
#include "tests/app/support/model_file.h"
#include "tests/app/support/training.h"
#include "tests/support/cuda.h"
#include "tests/support/facts.h"
#include "tests/support/process.h"

#include <jansson.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* 96 images: of two ranks six steps an epoch. */
#define RUN \
    TRAINING_96, "--model=mlp", "--batch-size=8", "--schedule=none", "--epochs=2", "--timeout=600"

static const int RANKS[ELASTIC_AGENT_RANKS] = {0, 1, 2, 3, 4, 5};

/* A run that begins in an empty folder. */
static void open_agent(const char *const *flags, elastic_agent *out)
{
    test_folder_remove("part");
    elastic_agent_open(flags, out);
}

/* All steps of the run's folder, each once and in order. */
static void assert_metrics_whole(const char *run, int last)
{
    char command[256];
    snprintf(
        command, sizeof command,
        "grep '\"event\":\"step\"' '%s'/metrics.jsonl | sed 's/.*\"step\":\\([0-9]*\\),.*/\\1/'"
        " > steps; seq 1 %d | cmp - steps",
        run, last);
    ck_assert_int_eq(system(command), 0);
}

START_TEST(pauses_leave_the_bits)
{
    elastic_agent agent;
    program whole = program_run_with(NULL, WORDS(RUN, "--backend", training_backend, "--run-dir",
                                                 "whole", "--nproc-per-node", "2"));
    ASSERT_EXIT(whole, 0);
    open_agent(
        WORDS(RUN, "--backend", training_backend, "--run-dir", "part", "--log-interval", "1"),
        &agent);
    for (int64_t step = 1; step <= 7; step++) {
        elastic_agent_pause(&agent, RANKS, 2);
        ck_assert_int_eq(agent.ranks[0].step, step);
        ck_assert_int_eq(agent.ranks[1].step, step);
    }
    elastic_agent_end_well(&agent, RANKS, 2);
    model_file_assert_same_bits("whole", "part");
    assert_metrics_whole("part", 12);
    program_close(&whole);
    elastic_agent_close(&agent);
}
END_TEST

/* What one rank says of its epochs. */
static program alone;

static void train_alone(void)
{
    alone = program_run_with(NULL, WORDS(RUN, "--lr", "0", "--no-quiet", "--run-dir", "alone"));
    ASSERT_EXIT(alone, 0);
}

/* "train loss 2.3200" of an epoch's line. */
static void loss_of(const program *p, const char *epoch, char out[32])
{
    const char *line = strstr(p->err, epoch);
    ck_assert_msg(line != NULL, "no %s in: %s", epoch, p->err);
    const char *loss = strstr(line, "train loss");
    ck_assert_ptr_nonnull(loss);
    snprintf(out, 32, "%.17s", loss);
}

static void assert_epochs(const elastic_agent *agent, int first)
{
    static const char *const epochs[] = {"epoch 1/2:", "epoch 2/2:"};
    char want[32], got[32];
    for (int i = 0; i < 2; i++) {
        loss_of(&alone, epochs[i], want);
        loss_of(&agent->ranks[first].p, epochs[i], got);
        ck_assert_str_eq(got, want);
    }
}

#define UNMOVED \
    RUN, "--lr", "0", "--device", "cpu", "--no-quiet", "--run-dir", "part", "--log-interval", "1"

/* The ranks of the rounds, one letter each: every image is used once, whoever comes and goes. */
static const struct {
    const char *rounds[4];
    const char *facts[4];
} CHANGES[] = {
    {{"ab", "abcd"}, {"world size 2 -> 4", "80 images of epoch 1"}},
    {{"ab", "a"}, {"world size 2 -> 1", "80 images of epoch 1"}},
    {{"abc", "ab", "abde"}, {"world size 2 -> 4", "56 images of epoch 1"}},
    {{"ab", "cab", "ab"}, {"world size 3 -> 2", "56 images of epoch 1"}},
};
enum { N_CHANGES = sizeof CHANGES / sizeof CHANGES[0] };

static int read_round(const char *letters, int who[ELASTIC_AGENT_RANKS])
{
    int n = (int)strlen(letters);
    for (int i = 0; i < n; i++)
        who[i] = letters[i] - 'a';
    return n;
}

START_TEST(each_image_is_used_once)
{
    elastic_agent agent;
    int who[ELASTIC_AGENT_RANKS], n = 0;
    open_agent(WORDS(UNMOVED), &agent);
    for (int i = 0; i < 4 && CHANGES[_i].rounds[i] != NULL; i++) {
        bool last = i == 3 || CHANGES[_i].rounds[i + 1] == NULL;
        n = read_round(CHANGES[_i].rounds[i], who);
        if (!last)
            elastic_agent_pause(&agent, who, n);
    }
    elastic_agent_end_well(&agent, who, n);
    assert_epochs(&agent, who[0]);
    ASSERT_FACTS_LISTED(agent.ranks[who[0]].p.err, CHANGES[_i].facts);
    ck_assert_double_eq_tol(elastic_agent_timed_images(&agent, who[0]), 96, 8);
    elastic_agent_close(&agent);
}
END_TEST

/* Three ranks cannot share 16 images. One is new; or all are, with a schedule of other steps. */
START_TEST(the_global_batch_stays_as_near_as_it_can)
{
    static const int news[] = {2, 3, 4};
    const int *who = _i == 0 ? RANKS : news;
    elastic_agent agent;
    open_agent(WORDS(TRAINING_96, "--model", "mlp", "--epochs", "2", "--lr", "0", "--device", "cpu",
                     "--no-quiet", "--run-dir", "part", "--save-every", "1steps",
                     "--global-batch-size", "16", "--elastic-batch", "global", "--schedule",
                     _i == 0 ? "none" : "cosine"),
               &agent);
    for (int step = 0; step < 3; step++) /* 48 images are left, for any number of ranks */
        elastic_agent_pause(&agent, RANKS, 2);
    for (int i = 0; i < 2 && _i == 1; i++) {
        kill(agent.ranks[i].p.pid, SIGKILL);
        elastic_agent_await_end(&agent, i);
    }
    elastic_agent_end_well(&agent, who, 3);
    assert_epochs(&agent, who[0]);
    ASSERT_FACTS(agent.ranks[who[0]].p.err, "world size 2 -> 3", "8 -> 5 of each", "16 -> 15",
                 "--elastic-batch=global");
    ASSERT_FACTS(agent.ranks[who[0]].p.err, "3 ranks cannot share --global-batch-size=16");
    ASSERT_FACTS(agent.ranks[who[0]].p.err, "the run began", "2 x cpu", "3 x cpu", "bits");
    ck_assert_int_eq(system("grep -q '\"elastic_batch\":\"global\"' part/config.json &&"
                            " grep -q '\"world_size_before\":2' part/result.json"),
                     0);
    elastic_agent_close(&agent);
}
END_TEST

/* The ranks of a round begin with the same parameters and the same optimizer, in every bit: those
 * that went on, those that are new and those that come back. */
START_TEST(all_begin_a_round_with_one_state)
{
    static const char *const rounds[] = {"ab", "bac", "cd", "dac", "acb"};
    enum { ROUNDS = sizeof rounds / sizeof rounds[0] };
    char states[ROUNDS + 1][17] = {""}, line[1024];
    int who[ELASTIC_AGENT_RANKS], counts[ROUNDS + 1] = {0};
    elastic_agent agent;
    remove("events");
    open_agent(
        WORDS(RUN, "--run-dir", "part", "--event-log", "events", "--backend", training_backend),
        &agent);
    for (int i = 0; i < ROUNDS; i++)
        elastic_agent_pause(&agent, who, read_round(rounds[i], who));
    elastic_agent_close(&agent);
    FILE *file = fopen("events", "r");
    ck_assert_ptr_nonnull(file);
    while (fgets(line, sizeof line, file) != NULL) {
        json_t *event = json_loads(line, 0, NULL);
        ck_assert_ptr_nonnull(event);
        int64_t round = json_integer_value(json_object_get(event, "round"));
        if (strcmp(json_string_value(json_object_get(event, "event")), "opens") == 0) {
            const char *state = json_string_value(json_object_get(event, "state"));
            ck_assert_int_eq(json_integer_value(json_object_get(event, "step")), round - 1);
            if (counts[round]++ == 0)
                snprintf(states[round], sizeof states[round], "%s", state);
            ck_assert_str_eq(states[round], state);
        }
        json_decref(event);
    }
    fclose(file);
    for (int i = 1; i <= ROUNDS; i++) {
        ck_assert_int_eq(counts[i], (int)strlen(rounds[i - 1]));
        ck_assert_str_ne(states[i], states[i - 1]);
    }
}
END_TEST

/* A rank is killed in the third step: the others are after the second, and go on without it, or
 * with another in its place. Rank 0 may be the one. */
static const struct {
    const char *killed, *next;
    int survivor;
} DEATHS[] = {
    {"kill:rank=1,step=3", "a", 0},
    {"kill:rank=1,step=3", "ac", 0},
    {"kill:rank=0,step=3", "b", 1},
    {"kill:rank=0,step=3", "bc", 1},
};
enum { N_DEATHS = sizeof DEATHS / sizeof DEATHS[0] };

/* `first`: the least that is done then. A GPU may not have begun the steps that are enqueued. */
static void survive(int i, int first, const char *const *flags)
{
    elastic_agent agent;
    int who[ELASTIC_AGENT_RANKS], survivor = DEATHS[i].survivor;
    open_agent(flags, &agent);
    elastic_agent_begin(&agent, RANKS, 2);
    elastic_agent_await_left(&agent, survivor);
    int done = (int)agent.ranks[survivor].step;
    ck_assert_int_ge(done, first);
    ck_assert_int_le(done, 2);
    elastic_agent_await_end(&agent, 1 - survivor);
    int n = read_round(DEATHS[i].next, who);
    elastic_agent_end_well(&agent, who, n);
    assert_epochs(&agent, who[0]);
    if (first == 2 || survivor == 0 || done < 2) /* else a line may have been on its way */
        assert_metrics_whole("part", n == 2 ? 12 : done + 2 * (6 - done) + 12);
    elastic_agent_close(&agent);
}

START_TEST(the_other_ranks_survive_a_killed_rank)
{
    survive(_i, 2, WORDS(UNMOVED, "--backend", training_backend, "--inject", DEATHS[_i].killed));
}
END_TEST

/* Where gradients leave only when they are waited for. */
START_TEST(late_gradients_survive_a_killed_rank)
{
    if (_i == 0)
        survive(0, 2, WORDS(UNMOVED, "--no-overlap", "--inject", DEATHS[0].killed));
    else
        survive(0, 2,
                WORDS(UNMOVED, "--comm-hook", "powersgd", "--powersgd-start-iter", "2", "--inject",
                      DEATHS[0].killed));
}
END_TEST

/* The backend of several hosts; here all are on one. */
START_TEST(hierarchical_ranks_survive_a_killed_rank)
{
    survive(_i, 2, WORDS(UNMOVED, "--backend", "hierarchical", "--inject", DEATHS[_i].killed));
}
END_TEST

/* Two ranks with a GPU each: what they have is in its memory, and collectives are at work there. */
START_TEST(nccl_ranks_survive_a_killed_rank)
{
    survive(_i, 1,
            WORDS(UNMOVED, "--device", "cuda", "--backend", "nccl", "--inject", DEATHS[_i].killed));
}
END_TEST

/* A schedule with an end comes to it, whatever the number of ranks, and does not go back. */
START_TEST(the_schedule_goes_on)
{
    int who[ELASTIC_AGENT_RANKS];
    elastic_agent agent;
    open_agent(WORDS(UNMOVED, "--lr", "0.5", "--schedule", "cosine"), &agent);
    elastic_agent_pause(&agent, RANKS, 2);
    elastic_agent_pause(&agent, who, read_round("abcd", who));
    elastic_agent_end_well(&agent, RANKS, 1);
    ck_assert_int_eq(system("grep '\"event\":\"step\"' part/metrics.jsonl |"
                            " sed 's/.*\"lr\":\\([^,]*\\),.*/\\1/' > rates;"
                            " sort -r -g rates | cmp - rates && head -n 1 rates | grep -qx 0.5 &&"
                            " tail -n 1 rates | awk '{ exit !($1 < 0.01) }'"),
                     0);
    elastic_agent_close(&agent);
}
END_TEST

START_TEST(the_agents_leave_message_ends_a_collective)
{
    elastic_agent agent;
    open_agent(WORDS(UNMOVED, "--backend", training_backend, "--inject", "stop:rank=1,step=3"),
               &agent);
    elastic_agent_begin(&agent, RANKS, 2);
    program_await(&agent.ranks[0].p, "step 2/");
    program_await(&agent.ranks[1].p, "SIGSTOP");
    clock_sleep_ms(100);
    elastic_agent_say(&agent, 0, ELASTIC_LEAVE);
    elastic_agent_await_left(&agent, 0); /* its wait has ten minutes */
    ck_assert_int_eq(agent.ranks[0].step, 2);
    kill(agent.ranks[1].p.pid, SIGKILL);
    elastic_agent_await_end(&agent, 1);
    elastic_agent_end_well(&agent, RANKS, 1);
    assert_epochs(&agent, 0);
    elastic_agent_close(&agent);
}
END_TEST

/* Rank 0 is stopped while it says what the run has come to: no other begins another round. */
START_TEST(a_run_that_is_done_has_no_other_round)
{
    elastic_agent agent;
    const elastic_message leave = {.word = ELASTIC_LEAVE, .round = 1};
    open_agent(WORDS(UNMOVED), &agent);
    elastic_agent_begin(&agent, RANKS, 2);
    test_folder_await("part/result.json");
    kill(agent.ranks[0].p.pid, SIGSTOP);
    (void)elastic_link_send(agent.ranks[1].fd, &leave);
    clock_sleep_ms(100);
    kill(agent.ranks[0].p.pid, SIGCONT);
    elastic_agent_await_good_ends(&agent, RANKS, 2);
    elastic_agent_close(&agent);
}
END_TEST

/* Also while the ranks of a round still look for each other. */
START_TEST(the_agents_leave_message_ends_a_rendezvous)
{
    elastic_agent agent;
    open_agent(WORDS(UNMOVED), &agent);
    elastic_agent_pause(&agent, RANKS, 2);
    kill(agent.ranks[1].p.pid, SIGKILL);
    elastic_agent_await_end(&agent, 1);
    agent.n = 3; /* the third is never started */
    agent.ranks[2].fd = -1;
    elastic_message join = {.word = ELASTIC_JOIN, .round = ++agent.round};
    join.place = (elastic_place){.round = agent.round,
                                 .world_size = 2,
                                 .local_world_size = 1,
                                 .nnodes = 2,
                                 .master_port = store_server_port(agent.server)};
    strcpy(join.place.master_addr, "127.0.0.1");
    ck_assert_int_eq(elastic_link_send(agent.ranks[0].fd, &join), STATUS_OK);
    clock_sleep_ms(300);
    elastic_agent_say(&agent, 0, ELASTIC_LEAVE);
    elastic_agent_await_left(&agent, 0);
    ck_assert_int_eq(agent.ranks[0].step, 1);
    elastic_agent_end_well(&agent, RANKS, 1);
    assert_epochs(&agent, 0);
    agent.n = 2;
    elastic_agent_close(&agent);
}
END_TEST

/* Nobody tells it: the agent may be stopped, too. */
START_TEST(no_step_is_made_after_the_lease)
{
    elastic_agent agent;
    open_agent(WORDS(UNMOVED), &agent);
    elastic_agent_pause(&agent, RANKS, 2);
    round_fence_set(agent.fence, clock_now_ns());
    elastic_agent_begin(&agent, RANKS, 2);
    for (int i = 0; i < 2; i++) {
        elastic_agent_await_left(&agent, i);
        ck_assert_int_eq(agent.ranks[i].step, 1);
    }
    round_fence_set(agent.fence, INT64_MAX);
    elastic_agent_end_well(&agent, RANKS, 2);
    assert_epochs(&agent, 0);
    elastic_agent_close(&agent);
}
END_TEST

/* A rank 0 that was stopped makes a step alone, and would write a checkpoint: its lease has ended,
 * or a later round has taken the folder. What it was to write at the end is written in the next. */
START_TEST(a_rank_0_that_was_stopped_writes_nothing)
{
    static const int other[] = {1};
    bool taken = _i == 1;
    elastic_agent agent;
    open_agent(WORDS(UNMOVED, "--save-every", "1steps", "--inject",
                     taken ? "stop:rank=0,step=3" : "stop:rank=0,step=24"),
               &agent);
    elastic_agent_begin(&agent, RANKS, 1);
    program_await(&agent.ranks[0].p, "SIGSTOP");
    if (taken) {
        elastic_agent_end_well(&agent, other, 1);
        ASSERT_FACTS(agent.ranks[1].p.err, "taken from rank 0 of round 1", "part");
        assert_metrics_whole("part", 24);
    } else {
        round_fence_set(agent.fence, clock_now_ns());
    }
    process_await_stopped(agent.ranks[0].p.pid);
    kill(agent.ranks[0].p.pid, SIGCONT);
    program_await(&agent.ranks[0].p, "checkpoint not written",
                  taken ? "round 2 has taken" : "lease has ended");
    ck_assert_int_eq(
        access(taken ? "part/checkpoints/00000003" : "part/checkpoints/00000024", F_OK), -1);
    ck_assert_int_eq(access("part/result.json", F_OK), taken ? 0 : -1);
    if (!taken) {
        elastic_agent_await_left(&agent, 0);
        round_fence_set(agent.fence, INT64_MAX);
        elastic_agent_end_well(&agent, RANKS, 1);
        ck_assert_int_eq(access("part/checkpoints/00000024", F_OK), 0);
    }
    elastic_agent_close(&agent);
}
END_TEST

/* Nobody lives who has the state in memory. */
START_TEST(new_processes_go_on_from_the_newest_checkpoint)
{
    static const int others[] = {2, 3};
    elastic_agent agent;
    open_agent(WORDS(UNMOVED, "--save-every", "1steps"), &agent);
    elastic_agent_pause(&agent, RANKS, 2);
    elastic_agent_pause(&agent, RANKS, 2);
    for (int i = 0; i < 2; i++) {
        kill(agent.ranks[i].p.pid, SIGKILL);
        elastic_agent_await_end(&agent, i);
    }
    elastic_agent_end_well(&agent, others, 2);
    assert_epochs(&agent, 2);
    assert_metrics_whole("part", 12);
    elastic_agent_close(&agent);
}
END_TEST

/* Else it waits as long as its agent does. */
START_TEST(a_rank_without_an_agent_ends)
{
    elastic_agent agent;
    open_agent(WORDS(UNMOVED, "--join-timeout", "1"), &agent);
    elastic_agent_pause(&agent, RANKS, 2);
    clock_sleep_ms(1500);
    elastic_agent_begin(&agent, RANKS, 2);
    for (int i = 0; i < 2; i++) {
        elastic_agent_say(&agent, i, ELASTIC_LEAVE);
        elastic_agent_await_left(&agent, i);
        shutdown(agent.ranks[i].fd, SHUT_RDWR);
        elastic_agent_await_end(&agent, i);
        ASSERT_EXIT(agent.ranks[i].p, EXIT_CODE_RENDEZVOUS);
        ASSERT_FACTS(agent.ranks[i].p.err, "agent");
    }
    elastic_agent_close(&agent);
}
END_TEST

/* What its last round had open is closed once. */
START_TEST(a_rank_that_waits_for_a_round_ends_without_its_agent)
{
    elastic_agent agent;
    open_agent(WORDS(UNMOVED), &agent);
    elastic_agent_pause(&agent, RANKS, 2);
    for (int i = 0; i < 2; i++) {
        shutdown(agent.ranks[i].fd, SHUT_RDWR);
        elastic_agent_await_end(&agent, i);
        ASSERT_EXIT(agent.ranks[i].p, EXIT_CODE_RENDEZVOUS);
        ASSERT_FACTS(agent.ranks[i].p.err, "agent", "is gone");
    }
    elastic_agent_close(&agent);
}
END_TEST

/* Its state is not whole on every rank: the process ends, and is to be started again; if the agent
 * asks for a pause, with a checkpoint. */
START_TEST(a_parameter_server_does_not_go_on)
{
    elastic_agent agent;
    open_agent(WORDS(UNMOVED, "--mode", "ps", "--inject", "kill:rank=1,step=3"), &agent);
    elastic_agent_begin(&agent, RANKS, 2);
    for (int i = 0; i < 2 && _i == 1; i++)
        elastic_agent_say(&agent, i, ELASTIC_PAUSE);
    elastic_agent_await_end(&agent, 0);
    ASSERT_EXIT(agent.ranks[0].p, _i == 0 ? EXIT_CODE_PEER : EXIT_CODE_PREEMPTED);
    if (_i == 0)
        ASSERT_FACTS(agent.ranks[0].p.err, "--mode=ps", "newest checkpoint");
    if (_i == 1)
        ck_assert_int_eq(access("part/model.safetensors", R_OK), 0);
    elastic_agent_close(&agent);
}
END_TEST

int main(int argc, char **argv)
{
    program_clean_environment();
    if (!training_choose_backend(argc, argv))
        return TEST_SKIPPED;
    const char *gpus = training_is_on_gloo() || !cuda_choose() || cuda_gpus() < 2
                           ? "it takes two GPUs, and is done once"
                           : NULL;
    test_folder_open();
    Suite *suite = suite_create("elastic");
    TCase *runs = suite_case(suite, "runs", 2 * RUN_S);
    tcase_add_unchecked_fixture(runs, train_alone, NULL);
    tcase_add_test(runs, pauses_leave_the_bits);
    tcase_add_loop_test(runs, each_image_is_used_once, 0, N_CHANGES);
    tcase_add_loop_test(runs, the_global_batch_stays_as_near_as_it_can, 0, 2);
    tcase_add_test(runs, all_begin_a_round_with_one_state);
    tcase_add_loop_test(runs, the_other_ranks_survive_a_killed_rank, 0, N_DEATHS);
    tcase_add_loop_test(runs, late_gradients_survive_a_killed_rank, 0, 2);
    suite_add_all(runs, hierarchical_ranks_survive_a_killed_rank, N_DEATHS,
                  training_is_on_gloo() || !training_has_gloo() ? "only once, with gloo" : NULL);
    suite_add_all(runs, nccl_ranks_survive_a_killed_rank, N_DEATHS, gpus);
    tcase_add_test(runs, the_schedule_goes_on);
    tcase_add_test(runs, the_agents_leave_message_ends_a_collective);
    tcase_add_test(runs, a_run_that_is_done_has_no_other_round);
    tcase_add_test(runs, the_agents_leave_message_ends_a_rendezvous);
    tcase_add_test(runs, no_step_is_made_after_the_lease);
    tcase_add_loop_test(runs, a_rank_0_that_was_stopped_writes_nothing, 0, 2);
    tcase_add_test(runs, new_processes_go_on_from_the_newest_checkpoint);
    TCase *ends = suite_case(suite, "ends", RUN_S);
    tcase_add_test(ends, a_rank_without_an_agent_ends);
    tcase_add_test(ends, a_rank_that_waits_for_a_round_ends_without_its_agent);
    tcase_add_loop_test(ends, a_parameter_server_does_not_go_on, 0, 2);
    return test_folder_close(suite_run(suite));
}
