#!/usr/bin/env python3
"""An operation of torch.distributed on gloo, timed as `mnist_ddp bench OPERATION` times its own: one call after the other,
the median of single calls, the mean of that over ranks. Rank 0 prints one JSON line.

    torchrun --standalone --nproc_per_node=2 torch_collective.py OPERATION TYPE REDOP ROOT ITERATIONS WARMUP BYTES...
"""
import json
import statistics
import sys
import time

import torch
import torch.distributed as dist

TYPES = {"float": torch.float32, "double": torch.float64, "half": torch.float16, "bfloat16": torch.bfloat16,
         "int64": torch.int64, "uint8": torch.uint8}
OPS = {"sum": dist.ReduceOp.SUM, "prod": dist.ReduceOp.PRODUCT, "min": dist.ReduceOp.MIN, "max": dist.ReduceOp.MAX,
       "avg": dist.ReduceOp.AVG}


def call_of(name, dtype, op, root, size_bytes):
    """A function that does it once, on `size_bytes`: in place where torch's call is, and whether it is."""
    rank, world = dist.get_rank(), dist.get_world_size()
    count = max(size_bytes // dtype.itemsize, 1)
    row = max(count // world, 1)
    own, all_rows = torch.ones(row, dtype=dtype), torch.ones(row * world, dtype=dtype)
    data = torch.ones(count, dtype=dtype)
    rows = list(all_rows.chunk(world)) if rank == root else None
    if name == "all_reduce":
        return lambda: dist.all_reduce(data, op=op), True
    if name == "broadcast":
        return lambda: dist.broadcast(data, root), True
    if name == "reduce":
        return lambda: dist.reduce(data, root, op=op), True
    if name == "all_gather":
        return lambda: dist.all_gather_into_tensor(all_rows, own), False
    if name == "reduce_scatter":
        return lambda: dist.reduce_scatter_tensor(own, all_rows, op=op), False
    if name == "gather":
        return lambda: dist.gather(own, rows, root), False
    if name == "scatter":
        return lambda: dist.scatter(own, rows, root), False
    if name == "all_to_all":
        other = torch.empty_like(all_rows)
        return lambda: dist.all_to_all_single(other, all_rows), False
    if name == "barrier":
        return dist.barrier, False
    other = torch.empty_like(data)

    def pass_on():
        for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, data, (rank + 1) % world),
                                            dist.P2POp(dist.irecv, other, (rank - 1) % world)]):
            work.wait()
    return pass_on, False


def measure(once, iterations, warmup):
    """Mean over ranks of the mean and the median of single calls, in us."""
    for _ in range(warmup):
        once()
    dist.barrier()
    us = []
    for _ in range(iterations):
        begun = time.perf_counter()
        once()
        us.append((time.perf_counter() - begun) * 1e6)
    means = torch.tensor([statistics.mean(us), statistics.median(us)], dtype=torch.float64)
    dist.all_reduce(means)
    return (means / dist.get_world_size()).tolist()


def main():
    name, dtype, op, root, iterations, warmup, *sizes = sys.argv[1:]
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    rows = []
    for size_bytes in map(int, sizes):
        once, in_place = call_of(name, TYPES[dtype], OPS[op], int(root), size_bytes)
        mean_us, median_us = measure(once, int(iterations), int(warmup))
        time_of = {"time_us": round(mean_us, 3), "median_us": round(median_us, 3)}
        rows.append({"bytes": size_bytes, "in_place": time_of if in_place else None,
                     "out_of_place": None if in_place else time_of})
    if dist.get_rank() == 0:
        print(json.dumps({"system": f"torch {torch.__version__} gloo", "world": dist.get_world_size(), "rows": rows}),
              flush=True)
    dist.destroy_process_group()


main()
