/* A team does each piece once, and is done when team_run returns. */
#include "base/thread.h"

#include "tests/support/suite.h"

#include <stdatomic.h>
#include <string.h>

enum { MAX_PIECES = 1000, MAX_THREADS = 8 };

typedef struct job {
    int threads;
    atomic_int done[MAX_PIECES];
    int plain[MAX_PIECES]; /* without atomics: visible to the caller afterwards all the same */
    atomic_int bad_members;
    atomic_int by_member[MAX_THREADS];
} job;

static void count_piece(void *arg, int piece)
{
    job *j = arg;
    atomic_fetch_add(&j->done[piece], 1);
    j->plain[piece] = piece + 1;
    int member = team_member();
    if (member < 0 || member >= j->threads)
        atomic_fetch_add(&j->bad_members, 1);
    else
        atomic_fetch_add(&j->by_member[member], 1);
}

static team *create(int threads)
{
    team *t = NULL;
    ck_assert_msg(team_create(threads, &t) == STATUS_OK, "%s", status_text());
    ck_assert_int_eq(team_threads(t), threads);
    return t;
}

static const int PIECES[] = {0, 1, 2, 3, 7, 8, 64, MAX_PIECES};

START_TEST(each_piece_is_done_once)
{
    static job j;
    int threads = _i;
    team *t = create(threads);
    for (int round = 0; round < 200; round++) {
        int pieces = PIECES[round % (int)(sizeof PIECES / sizeof PIECES[0])];
        memset(&j, 0, sizeof j);
        j.threads = threads;
        team_run(t, count_piece, &j, pieces);
        int right = 0, by_members = 0;
        for (int i = 0; i < MAX_PIECES; i++) {
            int times = i < pieces ? 1 : 0;
            right += atomic_load(&j.done[i]) == times && j.plain[i] == times * (i + 1);
        }
        for (int i = 0; i < threads; i++)
            by_members += atomic_load(&j.by_member[i]);
        ck_assert_int_eq(right, MAX_PIECES);
        ck_assert_int_eq(by_members, pieces);
        ck_assert_int_eq(atomic_load(&j.bad_members), 0);
    }
    team_destroy(t);
}
END_TEST

/* Two pieces that wait for each other: only two threads at once can end this. */
static void meet(void *arg, int piece)
{
    (void)piece;
    atomic_int *arrived = arg;
    atomic_fetch_add(arrived, 1);
    while (atomic_load(arrived) < 2)
        ;
}

START_TEST(members_work_at_the_same_time)
{
    atomic_int arrived = 0;
    team *t = create(2);
    team_run(t, meet, &arrived, 2);
    ck_assert_int_eq(atomic_load(&arrived), 2);
    team_destroy(t);
    team_destroy(NULL);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("team");
    TCase *core = suite_case(suite, "core", 10);
    tcase_add_loop_test(core, each_piece_is_done_once, 1, 5);
    tcase_add_loop_test(core, each_piece_is_done_once, MAX_THREADS, MAX_THREADS + 1);
    tcase_add_test(core, members_work_at_the_same_time);
    return suite_run(suite);
}
