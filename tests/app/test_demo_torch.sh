#!/bin/bash
# What demo linear and demo sampler show is what PyTorch computes from the same numbers.
set -eu
# shellcheck source=../support/scratch.sh
. "$SOURCE_DIR/tests/support/scratch.sh"
[ -x "${TORCH_PYTHON:-/nowhere/python}" ] ||
    skip "TORCH_PYTHON='${TORCH_PYTHON:-}' names no Python with torch"

for ranks in 1 2 5; do
    "$program" demo linear --json --nproc-per-node=$ranks >linear.$ranks.json
done
for seed in 0 1 7; do
    "$program" demo sampler --json --nproc-per-node=3 --samples=17 --seed=$seed >sampler.$seed.json
done

"$TORCH_PYTHON" - <<'P' || fail "PyTorch computes something else"
import json
import sys

import torch
from torch.utils.data.distributed import DistributedSampler


def number(seed, i):
    return ((i * 7 + seed * 13) % 23 - 11) / 16


def rows(seed, n, columns, stride):
    return torch.tensor([[number(seed, s * columns + i * stride) for i in range(columns)] for s in range(n)])


def check(what, ours, theirs, tolerance):
    far = max(abs(a - b) for a, b in zip(ours, theirs, strict=True))
    print(f"{what}: {far:.1e} apart")
    if far > tolerance:
        sys.exit(f"{what}: {far} apart")


for ranks in (1, 2, 5):
    facts = json.load(open(f"linear.{ranks}.json"))["facts"]
    net = torch.nn.Linear(10, 10)
    start = torch.tensor([number(1, i) / 4 for i in range(110)])
    with torch.no_grad():
        net.weight.copy_(start[:100].view(10, 10))
        net.bias.copy_(start[100:])
    optimizer = torch.optim.SGD(net.parameters(), lr=0.001)
    for rank in range(ranks):  # the mean over ranks, as DistributedDataParallel leaves it
        loss = torch.nn.MSELoss()(net(rows(2 + rank, 20, 10, 1)), rows(5 + rank, 20, 10, 3))
        (loss / ranks).backward()
    gradients = torch.cat([net.weight.grad.flatten(), net.bias.grad]).tolist()
    optimizer.step()
    parameters = torch.cat([net.weight.flatten(), net.bias]).tolist()
    check(f"linear, {ranks} ranks, gradients", facts["gradients"], gradients, 1e-7)
    check(f"linear, {ranks} ranks, parameters", facts["parameters"], parameters, 1e-7)

for seed in (0, 1, 7):
    frames = json.load(open(f"sampler.{seed}.json"))["frames"]
    for frame, epoch in ((1, 0), (2, 1)):
        for rank in range(3):
            sampler = DistributedSampler(range(17), 3, rank, seed=seed)
            sampler.set_epoch(epoch)
            ours = [int(word.rstrip("*")) for word in frames[frame]["rows"][rank][1].split()]
            if ours != list(sampler):
                sys.exit(f"sampler, seed {seed}, epoch {epoch}, rank {rank}: {ours}, not {list(sampler)}")
P
