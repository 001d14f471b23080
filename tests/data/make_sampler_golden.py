"""Prints the tables of tests/data/test_sampler.c, from torch's own DistributedSampler."""

from torch.utils.data.distributed import DistributedSampler

SAMPLES = (1, 2, 3, 7, 64, 101, 1000)
WORLD_SIZES = (1, 2, 3, 5, 16)
SEEDS = ((0, 0), (0, 3), (12345, 1), (2**32 - 1, 2), (2**32 + 5, 0))  # with epochs
LARGE = (  # samples, world size, seed, epoch, drop_last
    (60000, 1, 0, 0, False),
    (60000, 7, 1, 13, False),
    (60000, 7, 1, 13, True),
    (60000, 16, 42, 5, False),
    (10000, 3, 0, 0, False),
    (10000, 7, 7, 1, True),
)


class Numbers:
    def __init__(self, n):
        self.n = n

    def __len__(self):
        return self.n


def fnv1a(value, indices):
    for index in indices:
        for byte in index.to_bytes(4, "little"):
            value = (value ^ byte) * 0x100000001B3 % 2**64
    return value


def all_ranks(value, samples, world_size, seed, epoch, shuffle, drop_last):
    for rank in range(world_size):
        sampler = DistributedSampler(Numbers(samples), world_size, rank, shuffle, seed, drop_last)
        sampler.set_epoch(epoch)
        value = fnv1a(value, list(sampler))
    return value


BASIS = 0xCBF29CE484222325
for samples in SAMPLES:
    row = []
    for world_size in WORLD_SIZES:
        value = BASIS
        for drop_last in (False, True):
            if drop_last and samples < world_size:
                continue
            value = all_ranks(value, samples, world_size, 0, 0, False, drop_last)
            for seed, epoch in SEEDS:
                value = all_ranks(value, samples, world_size, seed, epoch, True, drop_last)
        row.append(f"0x{value:016x}")
    print("{" + ", ".join(row) + "},")
for samples, world_size, seed, epoch, drop_last in LARGE:
    value = all_ranks(BASIS, samples, world_size, seed, epoch, True, drop_last)
    flag = str(drop_last).lower()
    print(f"{{{samples}, {world_size}, {seed}, {epoch}, {flag}, 0x{value:016x}}},")
