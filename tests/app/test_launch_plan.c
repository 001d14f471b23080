/* What the launcher makes of flags and torchrun's variables, and what it refuses. */
#include "app/launch/agent_store.h"
#include "base/clock.h"
#include "tests/support/facts.h"
#include "tests/support/suite.h"

#include <stdio.h>
#include <string.h>

enum { MAX_ARGS = 16, LINE_BYTES = 512, CPUS = 6 };

/* Sets the variables "A=1 B=2" and reads the flags. */
static status try_options(const char *variables, const char *flags, options *out)
{
    static char copies[2][LINE_BYTES];
    char *argv[MAX_ARGS] = {"mnist_ddp"};
    int argc = 1;
    snprintf(copies[0], LINE_BYTES, "%s", variables);
    snprintf(copies[1], LINE_BYTES, "%s", flags);
    for (char *word = strtok(copies[0], " "); word != NULL; word = strtok(NULL, " "))
        ck_assert_int_eq(putenv(word), 0);
    for (char *word = strtok(copies[1], " "); word != NULL; word = strtok(NULL, " "))
        argv[argc++] = word;
    return options_parse(argc, argv, out);
}

static options read_options(const char *variables, const char *flags)
{
    options opts;
    ck_assert_msg(try_options(variables, flags, &opts) == STATUS_OK, "%s: %s", flags,
                  status_text());
    return opts;
}

static const struct {
    const char *variables, *flags;
    int gpus, nproc, nnodes, node_rank;
    const char *addr;
    int port;
    bool loopback;
} PLANS[] = {
    {"", "", 0, 1, 1, 0, "127.0.0.1", 0, true},
    {"", "", 4, 1, 1, 0, "127.0.0.1", 0, true},
    /* python -m torch.distributed.launch, torchrun */
    {"", "--nproc_per_node=2 --nnode=1 --node_rank=0", 0, 2, 1, 0, "127.0.0.1", 0, true},
    {"", "--nproc_per_node 8", 0, 8, 1, 0, "127.0.0.1", 0, true},
    {"",
     "--nproc_per_node=8 --nnodes=2 --node_rank=0 --master_addr=192.168.0.1 "
     "--master_port=12355",
     0, 8, 2, 0, "192.168.0.1", 12355, false},
    {"",
     "--nproc_per_node=8 --nnodes=2 --node_rank=1 --master_addr=192.168.0.1 "
     "--master_port=12355",
     0, 8, 2, 1, "192.168.0.1", 12355, false},
    {"",
     "--nproc_per_node=8 --nnodes=1 --node_rank=0 --master_addr=192.168.0.1 "
     "--master_port=12355",
     0, 8, 1, 0, "127.0.0.1", 12355, true},
    {"",
     "--nproc-per-node=2 --nnodes=2 --node-rank=0 --master-addr=192.168.1.1 "
     "--master-port=1234",
     0, 2, 2, 0, "192.168.1.1", 1234, false},
    {"", "--nnodes=1 --node_rank=0 --nproc_per_node 2 --master_addr=127.0.0.1 --master_port=29500",
     0, 2, 1, 0, "127.0.0.1", 29500, true},
    {"", "--standalone --nnodes=1 --nproc_per_node=2", 0, 2, 1, 0, "127.0.0.1", 0, true},
    {"", "--standalone --nnodes=1:1 --nproc_per_node=2 --master_port 7", 0, 2, 1, 0, "127.0.0.1", 0,
     true},
    {"", "--nnodes=2 --nproc_per_node=3", 0, 3, 2, 0, "127.0.0.1", 29500, false},
    {"", "--nnodes=2 --nproc_per_node=3 --master_addr=localhost", 0, 3, 2, 0, "localhost", 29500,
     true},
    {"", "--nnodes=3 --nproc_per_node=8 --node_rank=2 --master_addr=h", 0, 8, 3, 2, "h", 29500,
     false},
    /* the program's own form: world size and node rank */
    {"", "--world_size=16 --node_rank=0", 0, 16, 1, 0, "127.0.0.1", 0, true},
    {"", "--world_size=16", 0, 16, 1, 0, "127.0.0.1", 0, true},
    {"", "--world_size=16 --node_rank=0 --master_addr=localhost --master_port=22335", 0, 16, 1, 0,
     "127.0.0.1", 22335, true},
    {"PET_NPROC_PER_NODE=8",
     "--world_size=16 --node_rank=1 --master_addr=192.168.0.1 --master_port=22335", 0, 8, 2, 1,
     "192.168.0.1", 22335, false},
    {"", "--world_size=16 --node_rank=1 --master_addr=192.168.0.1 --master_port=22335", 8, 8, 2, 1,
     "192.168.0.1", 22335, false},
    {"", "--world_size=16 --nnodes=4 --node_rank=3 --master_addr=a", 8, 4, 4, 3, "a", 29500, false},
    {"", "--nproc_per_node=2 --local_world_size=2", 0, 2, 1, 0, "127.0.0.1", 0, true},
    {"", "--world_size=8", 8, 8, 1, 0, "127.0.0.1", 0, true},
    {"", "--world_size=6", 4, 6, 1, 0, "127.0.0.1", 0, true},
    {"", "--world_size=4 --nproc_per_node=4 --nnodes=1", 0, 4, 1, 0, "127.0.0.1", 0, true},
    {"PET_NPROC_PER_NODE=8", "--world_size=16 --nproc-per-node=16", 0, 16, 1, 0, "127.0.0.1", 0,
     true},
    /* words and variables */
    {"", "--nproc-per-node=auto", 0, CPUS, 1, 0, "127.0.0.1", 0, true},
    {"", "--nproc-per-node=auto", 3, 3, 1, 0, "127.0.0.1", 0, true},
    {"", "--nproc-per-node=cpu", 3, CPUS, 1, 0, "127.0.0.1", 0, true},
    {"", "--nproc-per-node=gpu", 3, 3, 1, 0, "127.0.0.1", 0, true},
    {"PET_NPROC_PER_NODE=2 PET_NNODES=2 PET_NODE_RANK=1 PET_MASTER_ADDR=h PET_MASTER_PORT=77", "",
     0, 2, 2, 1, "h", 77, false},
    {"PET_NPROC_PER_NODE=2 PET_NNODES=2 PET_NODE_RANK=1 PET_MASTER_ADDR=h PET_MASTER_PORT=77",
     "--nproc-per-node 3 --nnodes 4 --node-rank 3 --master-addr g --master-port 78", 0, 3, 4, 3,
     "g", 78, false},
    {"PET_NNODES= PET_NPROC_PER_NODE=", "", 0, 1, 1, 0, "127.0.0.1", 0, true},
    {"MNIST_DDP_NPROC_PER_NODE=2 PET_NPROC_PER_NODE=3", "", 0, 2, 1, 0, "127.0.0.1", 0, true},
    {"", "--nproc-per-node=2 --master-port=0", 0, 2, 1, 0, "127.0.0.1", 0, true},
    /* rendezvous: static by its endpoint, and c10d, where nobody has a number yet */
    {"", "--nnodes=2 --node-rank=1 --rdzv-endpoint=h:77", 0, 1, 2, 1, "h", 77, false},
    {"", "--nnodes=2 --rdzv-endpoint=[::1]:77", 0, 1, 2, 0, "::1", 77, true},
    {"", "--nnodes=2 --rdzv-endpoint=fe80::1", 0, 1, 2, 0, "fe80::1", 29500, false},
    {"", "--nnodes=2 --rdzv-endpoint=h --master-addr=g", 0, 1, 2, 0, "h", 29500, false},
    {"", "--nnodes=2 --rdzv_backend=c10d --rdzv_endpoint=192.0.2.77 --node-rank=1", 0, 1, 2, -1,
     "192.0.2.77", 29400, false},
    {"", "--nnodes=2 --rdzv_backend=c10d --rdzv_endpoint=192.0.2.77:1 --rdzv-conf=is_host=1", 0, 1,
     2, -1, "192.0.2.77", 1, false},
    {"", "--nnodes=1:4 --rdzv_backend=c10d --rdzv_endpoint=[::1]:5", 0, 1, 4, -1, "::1", 5, true},
    {"", "--nnodes=1:4 --rdzv_backend=etcd --rdzv_id=1 --rdzv_endpoint=h", 0, 1, 4, -1, "h", 2379,
     false},
    {"", "--nnodes=2 --rdzv_backend=etcd --rdzv_id=1 --rdzv_endpoint=https://h,http://g:7", 0, 1, 2,
     -1, "h", 2379, false},
    {"", "--nnodes=1 --rdzv_backend=etcd --rdzv_endpoint=h", 0, 1, 1, -1, "h", 2379, false},
    {"", "--nnodes=1 --rdzv_backend=c10d --rdzv_endpoint=192.0.2.77:5", 0, 1, 1, -1, "192.0.2.77",
     5, false},
    {"", "--nnodes=1 --rdzv_backend=c10d --rdzv_endpoint=localhost:0", 0, 1, 1, 0, "127.0.0.1", 0,
     true},
    {"", "--nnodes=1:2 --rdzv_backend=c10d --rdzv_endpoint=localhost:0", 0, 1, 2, -1, "localhost",
     0, true},
    {"", "--rdzv_backend=c10d --nproc_per_node=3", 0, 3, 1, 0, "127.0.0.1", 0, true},
    {"PET_RDZV_BACKEND=c10d PET_RDZV_ENDPOINT=a.b:9 PET_NNODES=2:2", "", 0, 1, 2, -1, "a.b", 9,
     false},
};

START_TEST(plans)
{
    options opts = read_options(PLANS[_i].variables, PLANS[_i].flags);
    worker_spec plan;
    ck_assert_msg(worker_spec_read(&opts, CPUS, PLANS[_i].gpus, &plan) == STATUS_OK, "%s: %s",
                  PLANS[_i].flags, status_text());
    ck_assert_int_eq(plan.nproc, PLANS[_i].nproc);
    ck_assert_int_eq(plan.nnodes, PLANS[_i].nnodes);
    ck_assert_int_eq(plan.node_rank, PLANS[_i].node_rank);
    ck_assert_int_eq(plan.world_size, PLANS[_i].nproc * PLANS[_i].nnodes);
    ck_assert_str_eq(plan.master_addr, PLANS[_i].addr);
    ck_assert_int_eq(plan.master_port, PLANS[_i].port);
    ck_assert_int_eq(plan.store_on_loopback, PLANS[_i].loopback);
    options_free(&opts);
}
END_TEST

/* Two lines of the notes, where no GPUs say how many ranks a machine has: those that come do. */
START_TEST(nodes_count_themselves)
{
    for (int node = 0; node < 2; node++) {
        char flags[128];
        snprintf(flags, sizeof flags,
                 "--world_size=16 --node_rank=%d --master_addr=192.168.0.1 --master_port=22335",
                 node);
        options opts = read_options("", flags);
        worker_spec plan;
        ck_assert_int_eq(worker_spec_read(&opts, CPUS, 0, &plan), STATUS_OK);
        ck_assert(plan.counts_nodes && plan.world_size == 16 && plan.node_rank == node);
        ck_assert_int_eq(plan.server, node == 0 ? RDZV_HOST_HERE : RDZV_HOST_ELSEWHERE);
        bool there[16] = {true, false, true};
        node_count count = {.nodes = 0};
        ck_assert(!node_count_look(&count, &plan, there, true)); /* node 1 has not come */
        there[1] = true;
        ck_assert(!node_count_look(&count, &plan, there, false) && count.is_news);
        ck_assert(node_count_look(&count, &plan, there, true) && count.nodes == 3);
        ck_assert_int_eq(node_count_publish(&count, &plan, NULL, ""), STATUS_INVALID);
        ASSERT_FACTS(status_text(), "--world-size=16", "3 nodes", "4 nodes", "--world-size=18");
        there[2] = false;
        count.since_ns = clock_now_ns() - NODE_COUNT_QUIET_MS * 1000000ll;
        ck_assert(!node_count_look(&count, &plan, there, false)); /* one has gone again */
        count.since_ns -= NODE_COUNT_QUIET_MS * 1000000ll;
        ck_assert(node_count_look(&count, &plan, there, false) && count.nodes == 2);
        node_count_apply(&plan, 2);
        ck_assert(plan.nproc == 8 && plan.nnodes == 2 && !plan.counts_nodes);
        options_free(&opts);
    }
}
END_TEST

static const struct {
    const char *variables, *flags, *facts[7]; /* the last is NULL */
} REFUSED[] = {
    {"", "--nproc_per_node=8 --nnodes=3 --node_rank=5", {"--node-rank=5", "3", "--nnodes=6"}},
    {"", "--node_rank=1", {"--node-rank=1", "1", "--nnodes=2"}},
    {"", "--world_size=16 --master_addr=192.168.0.1", {"--world-size=16", "--nnodes=N"}},
    {"", "--world_size=16 --node_rank=1", {"--world-size=16", "--nnodes=N"}},
    {"", "--nproc_per_node=4 --local_world_size=2", {"--local-world-size=2", "--nproc-per-node=4"}},
    {"", "--world_size=7 --nnodes=2", {"--world-size=7", "--nnodes=2", "--world-size=8"}},
    {"", "--world_size=7 --nproc_per_node=2", {"--world-size=7", "--nproc-per-node=2"}},
    {"", "--world_size=8 --nproc_per_node=2 --nnodes=2", {"--world-size=8", "2", "4"}},
    {"", "--nnodes=2 --node_rank=1", {"--node-rank=1", "--master-addr=ADDRESS"}},
    {"", "--nnodes=1:4", {"--nnodes=1:4", "elastic", "--nnodes=4"}},
    {"", "--nnodes=4:1", {"--nnodes", "4:1", "65536"}},
    {"", "--nnodes=0", {"--nnodes", "0", "65536"}},
    {"", "--nnodes=2:", {"--nnodes", "2:", "65536"}},
    {"", "--nnodes=-2", {"--nnodes", "-2", "65536"}},
    {"", "--nnodes=99999999999999999999", {"--nnodes", "99999999999999999999", "65536"}},
    {"PET_NNODES=x", "", {"PET_NNODES", "x", "65536"}},
    {"PET_NODE_RANK=-1", "", {"PET_NODE_RANK", "-1", "65535"}},
    {"PET_MASTER_PORT=99999", "", {"PET_MASTER_PORT", "99999", "65535"}},
    {"PET_NPROC_PER_NODE=two", "", {"PET_NPROC_PER_NODE", "two", "1024", "auto", "cpu", "gpu"}},
    {"", "--nproc-per-node=0", {"--nproc-per-node", "0", "1024"}},
    {"", "--nproc-per-node=2000", {"--nproc-per-node", "2000", "1024"}},
    {"", "--nproc-per-node=gpu", {"--nproc-per-node=gpu", "GPU", "cpu"}},
    {"", "--world_size=2000", {"2000", "1024"}},
    {"", "--nnodes=65536 --nproc-per-node=1024", {"65536 ranks", "1024"}},
    {"", "--nnodes=2 --master-port=0", {"--master-port=0", "29500"}},
    {"", "--standalone --nnodes=2", {"--standalone", "--nnodes"}},
    {"", "--standalone --node-rank=1", {"--standalone", "--node-rank"}},
    {"",
     "--nnodes=2 --rdzv-backend=etcd --rdzv-endpoint=h",
     {"--rdzv-backend=etcd", "--rdzv-id=ID"}},
    {"", "--rdzv-backend=etcd-v2", {"--rdzv-backend=etcd-v2", "etcd", "--rdzv-backend=c10d"}},
    {"", "--rdzv-backend=c10", {"--rdzv-backend", "c10", "static", "c10d"}},
    {"", "--rdzv-backend=c10d --nnodes=2", {"--rdzv-endpoint=HOST:PORT"}},
    {"", "--rdzv-backend=c10d --nnodes=2 --rdzv-endpoint=h:0", {"--rdzv-endpoint=h:0", "29400"}},
    {"", "--rdzv-backend=etcd", {"--rdzv-backend=etcd", "--rdzv-endpoint=HOST:PORT"}},
    {"", "--rdzv-conf=protocol=ftp", {"--rdzv-conf", "protocol=ftp", "https"}},
    {"", "--nnodes=2 --rdzv-endpoint=[::1", {"--rdzv-endpoint", "[::1", "]"}},
    {"", "--nnodes=2 --rdzv-endpoint=:5", {"--rdzv-endpoint", ":5", "HOST:PORT"}},
    {"", "--nnodes=2 --rdzv-endpoint=h:x", {"--rdzv-endpoint", "h:x", "65535"}},
    {"", "--rdzv-conf=is_host=maybe", {"--rdzv-conf", "is_host=maybe", "true", "false"}},
    {"",
     "--nnodes=2 --rdzv-backend=c10d --rdzv-endpoint=192.0.2.77,192.0.2.78",
     {"--rdzv-endpoint", "192.0.2.77", "one store", "replicate", "--rdzv-backend=etcd"}},
    {"", "--rdzv-conf=keep_alive_interval=0", {"--rdzv-conf", "keep_alive_interval=0", "seconds"}},
    {"",
     "--rdzv-conf=keep_alive_max_attempt=0.5",
     {"--rdzv-conf", "keep_alive_max_attempt=0.5", "1000"}},
    {"",
     "--rdzv-conf=keep_alive_max_attempt=0x10",
     {"--rdzv-conf", "keep_alive_max_attempt=0x10", "number"}},
    {"",
     "--rdzv-conf=keep_alive_interval=+5",
     {"--rdzv-conf", "keep_alive_interval=+5", "seconds"}},
};

START_TEST(nonsense_is_refused_with_advice)
{
    options opts = {.command = COMMAND_TRAIN};
    worker_spec plan = {.nproc = -5};
    status st = try_options(REFUSED[_i].variables, REFUSED[_i].flags, &opts);
    if (st == STATUS_OK)
        st = worker_spec_read(&opts, CPUS, 0, &plan);
    ck_assert_msg(st == STATUS_INVALID, "%s was accepted", REFUSED[_i].flags);
    ck_assert_int_eq(plan.nproc, -5);
    ASSERT_FACTS_LISTED(status_text(), REFUSED[_i].facts);
    options_free(&opts);
}
END_TEST

/* A user and a password of etcd come apart, and stand in no endpoint. */
START_TEST(etcds_access_is_read)
{
    options opts = read_options("", "--nnodes=2 --rdzv-backend=etcd --rdzv-id=1 "
                                    "--rdzv-conf=protocol=https,cacert=/ca,cert=/c,key=/k "
                                    "--rdzv-endpoint=ro%2Fot:s3%3acret%40@h,http://g:7");
    worker_spec plan;
    ck_assert_msg(worker_spec_read(&opts, CPUS, 0, &plan) == STATUS_OK, "%s", status_text());
    ck_assert_str_eq(plan.endpoints, "https://h:2379,http://g:7");
    ck_assert_str_eq(plan.access.user, "ro/ot");
    ck_assert_str_eq(plan.access.password, "s3:cret@");
    ck_assert_str_eq(plan.access.cacert, "/ca");
    ck_assert_str_eq(plan.access.cert, "/c");
    ck_assert_str_eq(plan.access.key, "/k");
    options_free(&opts);
}
END_TEST

/* Whatever is wrong with it. */
START_TEST(a_password_is_never_said)
{
    static const char *const endpoints[] = {"http://root:s3cret@h:x",  "root:s3cret@h:99999",
                                            "tcp://root:s3cret@h:1",   "http://ro,ot:s3cret@h:1",
                                            "http://r:a@s3cret@h:1",   "http://root:s3cret%4@h:1",
                                            "http://root:s3cret%@h:1", "s3cret@h:1",
                                            "http://:s3cret@h:1",      "http://root:s3cret%00@h:1"};
    static const char *const backends[] = {"etcd", "c10d", "static"};
    for (size_t i = 0; i < 3 * sizeof endpoints / sizeof endpoints[0]; i++) {
        char flags[200];
        worker_spec plan;
        snprintf(flags, sizeof flags, "--nnodes=2 --rdzv-id=1 --rdzv-backend=%s --rdzv-endpoint=%s",
                 backends[i % 3], endpoints[i / 3]);
        options opts = read_options("", flags);
        ck_assert_msg(worker_spec_read(&opts, CPUS, 0, &plan) == STATUS_INVALID, "%s", flags);
        ASSERT_FACTS(status_text(), "--rdzv-endpoint", "USER:PASSWORD@");
        ck_assert_ptr_null(strstr(status_text(), "s3cret"));
        options_free(&opts);
    }
}
END_TEST

START_TEST(a_long_address_is_refused)
{
    char flags[400] = "--nnodes=2 --master-addr=";
    size_t used = strlen(flags);
    memset(flags + used, 'a', 300);
    flags[used + 300] = '\0';
    options opts = read_options("", flags);
    worker_spec plan;
    ck_assert(worker_spec_read(&opts, CPUS, 0, &plan) == STATUS_INVALID);
    options_free(&opts);
}
END_TEST

static const struct {
    const char *flags;
    int64_t join_ms, keep_alive_ms;
    int misses;
    rdzv_host server;
} MEETINGS[] = {
    {"--nnodes=2", 600000, 5000, 3, RDZV_HOST_HERE},
    {"--nnodes=2 --node-rank=1 --master-addr=h", 600000, 5000, 3, RDZV_HOST_ELSEWHERE},
    {"--nnodes=2 --rdzv-conf=join_timeout=1.5,keep_alive_interval=0.2,keep_alive_max_attempt=7",
     1500, 200, 7, RDZV_HOST_HERE},
    {"--nnodes=2 --rdzv-conf=timeout=9,last_call_timeout=1,rank=0,read_timeout=7 --join-timeout 4",
     4000, 5000, 3, RDZV_HOST_HERE},
    {"--nnodes=2 --rdzv-backend=c10d --rdzv-endpoint=localhost", 600000, 5000, 3, RDZV_HOST_FIRST},
    {"--nnodes=2 --rdzv-backend=c10d --rdzv-endpoint=localhost --rdzv-conf=is_host=no", 600000,
     5000, 3, RDZV_HOST_ELSEWHERE},
    {"--nnodes=2 --rdzv-backend=c10d --rdzv-endpoint=192.0.2.77 --rdzv-conf=is_host=1", 600000,
     5000, 3, RDZV_HOST_HERE},
    {"--nnodes=2 --rdzv-backend=c10d --rdzv-endpoint=192.0.2.77 --local-addr=192.0.2.77", 600000,
     5000, 3, RDZV_HOST_FIRST},
    {"--nnodes=2 --rdzv-backend=c10d --rdzv-endpoint=192.0.2.77", 600000, 5000, 3,
     RDZV_HOST_ELSEWHERE},
};

START_TEST(nodes_meet_on_terms)
{
    options opts = read_options("", MEETINGS[_i].flags);
    worker_spec plan;
    ck_assert_msg(worker_spec_read(&opts, CPUS, 0, &plan) == STATUS_OK, "%s: %s",
                  MEETINGS[_i].flags, status_text());
    ck_assert_int_eq(plan.rdzv.join_ms, MEETINGS[_i].join_ms);
    ck_assert_int_eq(plan.rdzv.keep_alive_ms, MEETINGS[_i].keep_alive_ms);
    ck_assert_int_eq(plan.rdzv.keep_alive_misses, MEETINGS[_i].misses);
    ck_assert_int_eq(plan.server, MEETINGS[_i].server);
    options_free(&opts);
}
END_TEST

/* Two jobs of one machine each are never mistaken for each other. */
START_TEST(jobs_have_names)
{
    worker_spec a, b;
    options opts = read_options("", "--nproc-per-node=2");
    ck_assert(worker_spec_read(&opts, CPUS, 0, &a) == STATUS_OK);
    ck_assert(worker_spec_read(&opts, CPUS, 0, &b) == STATUS_OK);
    ck_assert_uint_eq(strlen(a.run_id), 36);
    ck_assert_str_ne(a.run_id, b.run_id);
    options_free(&opts);
    opts = read_options("", "--nproc-per-node=2 --rdzv-id=mine");
    ck_assert(worker_spec_read(&opts, CPUS, 0, &a) == STATUS_OK);
    ck_assert_str_eq(a.run_id, "mine");
    options_free(&opts);
    opts = read_options("", "--nnodes=2");
    ck_assert(worker_spec_read(&opts, CPUS, 0, &a) == STATUS_OK);
    ck_assert_str_eq(a.run_id, "none");
    options_free(&opts);
}
END_TEST

static void clear_variables(void)
{
    static const char *const names[] = {
        "PET_RDZV_BACKEND", "PET_RDZV_ENDPOINT", "PET_NPROC_PER_NODE", "PET_NNODES",
        "PET_NODE_RANK",    "PET_MASTER_ADDR",   "PET_MASTER_PORT"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        unsetenv(names[i]);
    unsetenv("MNIST_DDP_NPROC_PER_NODE");
}

int main(void)
{
    Suite *suite = suite_create("worker_spec");
    TCase *core = suite_case(suite, "core", 10);
    tcase_add_checked_fixture(core, clear_variables, clear_variables);
    tcase_add_test(core, nodes_count_themselves);
    tcase_add_loop_test(core, plans, 0, sizeof PLANS / sizeof PLANS[0]);
    tcase_add_loop_test(core, nonsense_is_refused_with_advice, 0,
                        sizeof REFUSED / sizeof REFUSED[0]);
    tcase_add_test(core, etcds_access_is_read);
    tcase_add_test(core, a_password_is_never_said);
    tcase_add_test(core, a_long_address_is_refused);
    tcase_add_loop_test(core, nodes_meet_on_terms, 0, sizeof MEETINGS / sizeof MEETINGS[0]);
    tcase_add_test(core, jobs_have_names);
    return suite_run(suite);
}
