#!/usr/bin/env python3
"""Records how 42 launches end, in expected/launches: exit codes, what failure reports say, and the
files that are left. On one node, on several, on nodes that come and go, under mpirun, and by
torchrun's command lines. A fact is kept if it was the same in each of the runs of --write.

    BUILD_DIR=build tests/recording/launches.py -j 2        exit 1 if one differs
    BUILD_DIR=build tests/recording/launches.py --write     record what the program does now
"""
import argparse
import concurrent.futures
import os
import re
import sys
import tempfile

import record
import recorded

NAME = "launches"
MAX_LINES = 12
# Exit codes, what is left of processes and of a run, what a failure report says of the first
# failure, and what errors name that does not depend on who saw it first.
KEPT = re.compile(
    r".*\.code|.*\.same|the script( says)?|processes left|.*\.safetensors|.*\.err names (--.*|SIG.*)"
    r"|.*error\.json:\.(first|kind|exit_code|signal|rank|attempt|result|cause).*|.*\.env RANK.*|"
    r".*\.env (LOCAL_|WORLD_|GROUP_|ROLE_|TORCHELASTIC_(RESTART|MAX)).*|.*\.txt \| .*")

PRELUDE = r"""
w='env >$RANK.env; exit 0'
one="--nproc-per-node 2 --log-dir logs"
static="--nnodes 2 --master-addr 127.0.0.1 --master-port $PORT"
c10d="--rdzv-backend c10d --rdzv-endpoint 127.0.0.1:$PORT --rdzv-conf last_call_timeout=20,join_timeout=60"
tiny="train --model mlp --optimizer sgd --lr 0.05 --limit 48 --batch-size 8 --threads 1 --eval-every 0 --quiet"
long="$tiny --epochs 100000 --save-every 1000epochs"
clean() { ls -- *.env >where.txt 2>&1 && sed -i -E '/^(RANK|LOCAL_RANK|LOCAL_WORLD_SIZE|WORLD_SIZE|GROUP_RANK|GROUP_WORLD_SIZE|ROLE_NAME|TORCHELASTIC_RESTART_COUNT|TORCHELASTIC_MAX_RESTARTS)=/!d' *.env; rm where.txt; }
steps() { # FILE: returns once a rank of the event log has made steps
    await "$1" '"step"'
}
hosted() { # returns once node 0 has the store
    until "$MNIST" store num_keys --host 127.0.0.1:$PORT --timeout 30 >keys.out 2>keys.err; do sleep 0.05; done
    rm keys.*
}
background() { # NAME FLAGS...: as m, beside; $! is the program
    local name=$1
    shift
    "$MNIST" "$@" >"$name.out" 2>"$name.err" &
}
ended() { # NAME PID
    wait "$2"
    echo $? >"$1.code"
}
"""

LAUNCHES = {
    # --- one node -------------------------------------------------------------------------------
    "one-ok": 'm a run $one -- sh -c "$w"; clean',
    "one-alone": 'm a run -- sh -c "$w"; clean',
    "one-code": "m a run $one -- sh -c '[ $RANK = 0 ] && exec sleep 60; exit 9'",
    "one-code-torchrun": "m a run $one --exit-code torchrun -- sh -c '[ $RANK = 0 ] && exec sleep 60; exit 9'",
    "one-signal": "m a run $one -- sh -c '[ $RANK = 0 ] && exec sleep 60; kill -SEGV $$'",
    "one-restarts": "m a run $one --max-restarts 2 -- sh -c '[ $TORCHELASTIC_RESTART_COUNT = 1 ] && exit 0; [ $RANK = 0 ] && exec sleep 60; exit 5'",
    "one-restarts-out": "m a run $one --max-restarts 1 -- sh -c '[ $RANK = 0 ] && exec sleep 60; exit 6'",
    "one-term": 'background a run $one -- sh -c \'trap "exit 3" TERM; touch ready.$RANK; while :; do sleep 0.05; done\'; for r in 0 1; do until [ -e ready.$r ]; do sleep 0.05; done; done; kill -TERM $!; ended a $!; rm ready.*',
    "one-stubborn": "m a run $one --shutdown-timeout 1 -- sh -c 'trap \"\" TERM; [ $RANK = 1 ] && exit 3; for i in 1 2 3 4 5 6 7 8 9; do sleep 1; done'",
    "one-train": "m a $tiny --epochs 1 --nproc-per-node 2 --run-dir run",
    "one-train-kill": "m a $tiny --epochs 2 $one --run-dir run --timeout 20 --inject kill:rank=1,step=3",
    "one-train-heals": "m a $tiny --epochs 2 $one --run-dir run --max-restarts 1 --save-every 1steps --inject kill:rank=1,step=3; m b $tiny --epochs 2 --nproc-per-node 2 --run-dir other; same bits run other",
    "one-train-preempt": 'background a $long --nproc-per-node 2 --run-dir run --event-log e.jsonl --event-log-steps; steps e.jsonl; kill -TERM $!; ended a $!; rm -rf run e.jsonl',
    "one-no-program": "m a run $one --no-python ./nowhere",
    # --- two nodes ------------------------------------------------------------------------------
    "two-ok": 'node() { m node$1 run $static --node-rank $1 --nproc-per-node 2 -- sh -c "$w"; }; node 0 & node 1; wait; clean',
    "two-uneven": 'node() { m node$1 run $static --node-rank $1 --nproc-per-node $((1 + $1)) -- sh -c "$w"; }; node 0 & node 1; wait; clean',
    "two-fail": "node() { m node$1 run $static --node-rank $1 --log-dir logs$1 -- sh -c '[ $RANK = 1 ] || exec sleep 60; exit 9'; }; node 0 & node 1; wait",
    "two-fail-zero": "node() { m node$1 run $static --node-rank $1 --log-dir logs$1 -- sh -c '[ $RANK = 0 ] || exec sleep 60; exit 9'; }; node 0 & node 1; wait",
    "two-restart": "node() { m node$1 run $static --node-rank $1 --max-restarts 1 -- sh -c '[ $TORCHELASTIC_RESTART_COUNT = 1 ] && exit 0; [ $RANK = 1 ] || exec sleep 60; exit 9'; }; node 0 & node 1; wait",
    "two-missing": "m zero run $static --node-rank 0 --join-timeout 1 -- true",
    "two-differ": "node() { m node$1 run $static --node-rank $1 --join-timeout 30 --max-restarts $1 -- true; }; node 0 & node 1; wait",
    "two-same-number": "node() { m node$1 run $static --node-rank 1 --join-timeout 3 -- true; }; node 0 & node 1; wait",
    "two-train": "node() { m node$1 $tiny --epochs 1 $static --node-rank $1 --run-dir run; }; node 0 & node 1; wait; m b $tiny --epochs 1 --nproc-per-node 2 --backend gloo --run-dir other; same bits run other",
    "two-train-kill": "node() { m node$1 $tiny --epochs 2 $static --node-rank $1 --run-dir run$1 --log-dir logs$1 --timeout 20 --inject kill:rank=1,step=3; }; node 0 & node 1; wait",
    "two-train-preempt": 'background node0 $long $static --node-rank 0 --run-dir run --event-log e.jsonl --event-log-steps; p=$!; background node1 $long $static --node-rank 1 --run-dir run; q=$!; steps e.jsonl; kill -TERM $p; ended node0 $p; ended node1 $q; rm -rf run e.jsonl',
    "two-world-size": 'node() { m node$1 run --world-size 4 --master-addr 127.0.0.1 --master-port $PORT --node-rank $1 --nproc-per-node 2 -- sh -c "$w"; }; node 0 & node 1; wait; clean',
    # --- nodes that come and go -----------------------------------------------------------------
    "elastic-two": 'node() { m node$1 run --nnodes 2:2 $c10d -- sh -c "$w"; }; node 0 & node 1; wait',
    "elastic-one": 'm node0 run --nnodes 1:1 $c10d --nproc-per-node 2 -- sh -c "$w"; clean',
    "elastic-train": "node() { m node$1 $tiny --epochs 1 --nnodes 2:2 $c10d --run-dir run; }; node 0 & node 1; wait",
    "elastic-few": "m node0 run --nnodes 2:3 --rdzv-backend c10d --rdzv-endpoint 127.0.0.1:$PORT --rdzv-conf last_call_timeout=1,join_timeout=2 -- true",
    "elastic-restarts-out": "m node0 run --nnodes 1:1 $c10d --nproc-per-node 2 --max-restarts 0 --log-dir logs -- sh -c '[ $RANK = 0 ] && exec sleep 60; exit 6'",
    "elastic-kill": 'background node0 $tiny --epochs 40 --nnodes 1:2 $c10d --run-dir run --event-log e.jsonl --event-log-steps --inject-delay-ms 20; p=$!; hosted; background node1 $tiny --epochs 40 --nnodes 1:2 $c10d --run-dir run --inject-delay-ms 20; q=$!; steps e.jsonl; kill -KILL $q; ended node0 $p; ended node1 $q; rm -rf run e.jsonl',
    "elastic-stop": 'background node0 $tiny --epochs 40 --nnodes 1:2 $c10d --run-dir run --event-log e.jsonl --event-log-steps --inject-delay-ms 20; p=$!; hosted; background node1 $tiny --epochs 40 --nnodes 1:2 $c10d --run-dir run --inject-delay-ms 20; q=$!; steps e.jsonl; kill -TERM $q; ended node1 $q; ended node0 $p; rm -rf run e.jsonl',
    "elastic-preempt": 'background node0 $long --nnodes 1:1 $c10d --run-dir run --event-log e.jsonl --event-log-steps; p=$!; steps e.jsonl; kill -TERM $p; ended node0 $p; rm -rf run e.jsonl',
    "elastic-differ": "background node0 $tiny --epochs 1 --nnodes 1:2 --rdzv-backend c10d --rdzv-endpoint 127.0.0.1:$PORT --rdzv-conf last_call_timeout=60 --run-dir run; p=$!; hosted; m node1 $tiny --epochs 2 --nnodes 1:2 $c10d --run-dir run; kill -TERM $p; ended node0 $p",
    # --- mpirun ---------------------------------------------------------------------------------
    "mpirun-train": "mpi 2 a $tiny --epochs 1 --run-dir run; m b $tiny --epochs 1 --nproc-per-node 2 --run-dir other; same bits run other",
    "mpirun-kill": "mpi 2 a $tiny --epochs 2 --run-dir run --timeout 5 --inject kill:rank=1,step=3; [ \"$(cat a.code)\" != 0 ]; echo $? >a.code",
    "mpirun-refuses": "mpi 2 a $tiny --epochs 1 --run-dir run --nproc-per-node 2",
    # --- torchrun's command lines ---------------------------------------------------------------
    "torchrun-line": 'm a run --standalone --nnodes=1 --nproc_per_node=2 --max_restarts=3 --no_python sh -c "$w"; clean',
    "torchrun-node": 'node() { m node$1 run --nproc_per_node=1 --nnodes=2 --node_rank=$1 --master_addr=127.0.0.1 --master_port=$PORT --no_python sh -c "$w"; }; node 0 & node 1; wait; clean',
    "torchrun-rank": 'rank() { RANK=$1 WORLD_SIZE=2 LOCAL_RANK=$1 LOCAL_WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=$PORT TORCHELASTIC_RUN_ID=t m rank$1 $tiny --epochs 1 --run-dir run; }; rank 0 & rank 1; wait',
    "torchrun-environment": 'PET_NPROC_PER_NODE=2 PET_MAX_RESTARTS=1 m a run --no-python sh -c "$w"; clean',
}
MPI = r"""
mpi() { # RANKS NAME FLAGS...
    command -v mpirun >where.out || exit 77
    rm where.out
    local ranks=$1 name=$2
    shift 2
    OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_btl=self,vader \
        timeout -s KILL 60 mpirun --oversubscribe -n "$ranks" "$MNIST" "$@" >"$name.out" 2>"$name.err"
    echo $? >"$name.code"
}
"""


def run(bench, name):
    """The facts of one launch that are kept; None if it cannot run on this machine."""
    facts = bench.run(name)
    return facts and {fact: value for fact, value in facts.items() if KEPT.fullmatch(fact)}


def compare(bench, name, expected):
    """A launch that differs is run once more: what a loaded machine did once is no difference."""
    lines = []
    for _ in range(2):
        facts = run(bench, name)
        if facts is None:
            return [f"SKIP {name}"], False
        now = [f"{name} {fact}: was {want}, is {facts.get(fact)}"
               for fact, want in sorted(expected.items()) if facts.get(fact) != want]
        lines = [line for line in now if line in lines] or now
        if not now:
            return [], False
    return lines[:MAX_LINES], True


def write(bench, name, runs):
    seen = [run(bench, name) for _ in range(runs)]
    if None in seen:
        sys.exit(f"launches: {name} cannot run here")
    for facts in seen:
        if facts["the script"] != "exit 0":
            print(f"{name}: {facts['the script']}: {facts.get('the script says')}")
    return {fact: value for fact, value in record.merge(seen).items()
            if value != "sometimes" and not value.startswith("any ")}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--write", action="store_true", help="record what the program does now")
    parser.add_argument("--runs", type=int, default=3, help="runs of each launch for --write [3]")
    parser.add_argument("-k", metavar="NAME", default="", help="only launches with NAME in their name")
    parser.add_argument("-j", type=int, default=1, metavar="N", help="launches at a time [1]")
    args = parser.parse_args()
    build = os.environ.get("BUILD_DIR", "build")
    if not all(os.access(f"{build}/{file}", os.R_OK) for file in ("mnist_ddp", "mnist_ddp_gloo.so")):
        sys.exit(77)
    record.CASES.update({name: MPI + PRELUDE + script for name, script in LAUNCHES.items()})
    names = [name for name in LAUNCHES if args.k in name]
    path = os.path.join(recorded.EXPECTED, NAME)
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    expected = {}
    if os.path.exists(path):
        with open(path, encoding="utf-8") as file:
            for part in file.read().split("\nin ")[1:]:
                name, *lines = part.splitlines()
                expected[name] = recorded.facts_in(lines)
    with tempfile.TemporaryDirectory(prefix="mnist_ddp-lau-", dir=memory) as work:
        bench = record.Bench(build, work)
        with concurrent.futures.ThreadPoolExecutor(args.j) as pool:
            if args.write:
                expected |= zip(names, pool.map(lambda n: write(bench, n, args.runs), names))
                with open(path, "w", encoding="utf-8") as file:
                    file.write("How each launch ended (launches.py)\n")
                    for name in LAUNCHES:
                        lines = [f"in {name}", *recorded.lines_of(expected[name], " ")]
                        file.write("\n".join(lines) + "\n")
                return
            ends = list(pool.map(lambda n: compare(bench, n, expected.get(n, {})), names))
    for lines, _ in ends:
        print(*lines, sep="\n", end="\n" if lines else "")
    failed = sum(bad for _, bad in ends)
    print(f"{len(names)} launches, {failed} differ")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
