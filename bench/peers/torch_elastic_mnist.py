#!/usr/bin/env python3
"""PyTorch's side of bench/cpu/recovery.py: the MLP on MNIST with gloo, by one rank, until it is
killed. Every event is a line of JSON in its own file in --events:

    {"monotonic_ns": 5123456789, "event": "step", "rank": 3, "step": 812, "world_size": 8}

    ready   the process group is there        failed   an operation with the other ranks has failed
    step    a step is done

    --with torchrun   DistributedDataParallel; rank 0 leaves a snapshot every --save-every steps, from
                      which all go on, as in PyTorch's tutorial on fault tolerance
    --with torchft    a replica group of one rank; $TORCHFT_LIGHTHOUSE is its lighthouse
"""
import argparse
import json
import os
import pathlib
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.nn.functional as F

sys.dont_write_bytecode = True
from torch_ddp_mnist import MLP, load  # noqa: E402


class Events:
    def __init__(self, folder, rank):
        self.file = open(pathlib.Path(folder, f"{os.getpid()}.jsonl"), "w", buffering=1)
        self.rank = rank

    def say(self, event, step, world_size):
        self.file.write(json.dumps({"monotonic_ns": time.monotonic_ns(), "event": event,
                                    "rank": self.rank, "step": step, "world_size": world_size}) + "\n")


def batches(data, size, seed):
    """Random ones, without an end: what is measured here is not what is learned."""
    images, labels = data
    draw = torch.Generator().manual_seed(seed)
    while True:
        chosen = torch.randint(len(labels), (size,), generator=draw)
        yield images[chosen], labels[chosen]


def torchrun(args, data):
    rank = int(os.environ["RANK"])
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    events, world_size = Events(args.events, rank), dist.get_world_size()
    net = MLP()
    optimizer = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)
    step = 0
    if os.path.exists(args.snapshot):
        kept = torch.load(args.snapshot)
        net.load_state_dict(kept["net"])
        optimizer.load_state_dict(kept["optimizer"])
        step = kept["step"]
    ddp = torch.nn.parallel.DistributedDataParallel(net)
    events.say("ready", step, world_size)
    for x, y in batches(data, args.batch_size, rank):
        optimizer.zero_grad()
        try:
            F.cross_entropy(ddp(x), y).backward()
        except RuntimeError:
            events.say("failed", step, world_size)
            raise
        optimizer.step()
        step += 1
        events.say("step", step, world_size)
        if rank == 0 and step % args.save_every == 0:
            torch.save({"net": net.state_dict(), "optimizer": optimizer.state_dict(), "step": step},
                       args.snapshot + ".new")
            os.replace(args.snapshot + ".new", args.snapshot)
        time.sleep(args.pause_ms / 1000)


def torchft(args, data):
    from torchft import DistributedDataParallel, Manager, Optimizer, ProcessGroupGloo
    rank = int(os.environ["RANK"])
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    net = MLP()
    inner = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)

    def keep():
        return {"net": net.state_dict(), "optimizer": inner.state_dict()}

    def take(kept):
        net.load_state_dict(kept["net"])
        inner.load_state_dict(kept["optimizer"])

    seconds = timedelta(seconds=args.timeout)
    manager = Manager(pg=ProcessGroupGloo(timeout=seconds), load_state_dict=take, state_dict=keep,
                      min_replica_size=1, timeout=seconds, quorum_timeout=timedelta(seconds=60),
                      rank=0, world_size=1, store_addr="127.0.0.1", store_port=store.port,
                      replica_id=f"rank{rank}_", hostname="127.0.0.1")
    events = Events(args.events, rank)
    ddp, optimizer = DistributedDataParallel(manager, net), Optimizer(manager, inner)
    events.say("ready", 0, 0)
    for x, y in batches(data, args.batch_size, rank):
        before = manager.current_step()
        optimizer.zero_grad()
        F.cross_entropy(ddp(x), y).backward()
        optimizer.step()
        done = manager.current_step() > before
        events.say("step" if done else "failed", manager.current_step(),
                   manager.num_participants())
        time.sleep(args.pause_ms / 1000)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--with", dest="peer", choices=("torchrun", "torchft"), required=True)
    parser.add_argument("--data", required=True)
    parser.add_argument("--events", required=True, help="the folder of their files")
    parser.add_argument("--snapshot", default="")
    parser.add_argument("--save-every", type=int, default=100)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--pause-ms", type=float, default=0, help="after each step")
    parser.add_argument("--timeout", type=float, default=10, help="seconds of an operation of torchft")
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(1)
    images, labels = load(args.data, "t10k")
    {"torchrun": torchrun, "torchft": torchft}[args.peer](args, (images, labels))


if __name__ == "__main__":
    main()
