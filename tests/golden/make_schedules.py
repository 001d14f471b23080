#!/usr/bin/env python3
"""Writes schedules.txt: the learning rates of PyTorch's schedulers, for test_schedule.c to compare.

Run it as README.md says. A line "case" has a schedule's options in the order of the C test's
scanf; the lines after it have a step, from 0, and the learning rate with which torch.optim takes
it, as a hexadecimal float: all of its bits.
"""
import pathlib
import warnings

import torch
from torch.optim import lr_scheduler

FILE = pathlib.Path(__file__).with_name("schedules.txt")
SHORT, LONG = (7, 5), (938, 3)  # steps of an epoch, epochs
EVERY = 101  # steps of a long run of which one is kept, and the last

# kind, lr, gamma, pct_start, warmup_steps, warmup_factor, (epoch_steps, epochs)
THIRD = 1 / 3
CASES = [
    ("step", 1.0, 0.7, 0.3, 0, THIRD, SHORT),
    ("step", 0.05, 0.9, 0.3, 10, THIRD, SHORT),
    ("step", 1.0, 0.7, 0.3, 938, 0.01, LONG),
    ("none", 0.001, 0.7, 0.3, 0, THIRD, SHORT),
    ("none", 0.1, 0.7, 0.3, 9, 0.01, SHORT),
    ("cosine", 0.1, 0.7, 0.3, 0, THIRD, SHORT),
    ("cosine", 0.1, 0.7, 0.3, 6, 0.1, SHORT),
    ("cosine", 0.3, 0.7, 0.3, 34, THIRD, SHORT),
    ("cosine", 0.3, 0.7, 0.3, 100, THIRD, LONG),
    ("onecycle", 0.1, 0.7, 0.3, 0, THIRD, SHORT),
    ("onecycle", 0.01, 0.7, 0.25, 0, THIRD, LONG),
    ("onecycle", 0.1, 0.7, 0.0, 0, THIRD, SHORT),
    ("onecycle", 0.1, 0.7, 1.0, 0, THIRD, SHORT),
    ("onecycle", 0.1, 0.7, 0.3, 0, THIRD, (1, 1)),
]


def schedulers(case, optimizer):
    """What is stepped after every optimizer step, and what after every epoch."""
    kind, lr, gamma, pct_start, warmup, factor, (epoch_steps, epochs) = case
    total = epoch_steps * epochs
    rise = []
    if warmup > 0:
        rise = [lr_scheduler.LinearLR(optimizer, start_factor=factor, total_iters=warmup)]
    if kind == "step":
        return rise, [lr_scheduler.StepLR(optimizer, step_size=1, gamma=gamma)]
    if kind == "none":
        return rise, []
    if kind == "onecycle":
        cycle = lr_scheduler.OneCycleLR(
            optimizer, max_lr=lr, total_steps=total, pct_start=pct_start, cycle_momentum=False
        )
        return [cycle], []
    cosine = lr_scheduler.CosineAnnealingLR(optimizer, T_max=total - warmup)
    if rise:
        cosine = lr_scheduler.SequentialLR(optimizer, [rise[0], cosine], milestones=[warmup])
    return [cosine], []


def lrs(case):
    epoch_steps, epochs = case[-1]
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], case[1])
    by_step, by_epoch = schedulers(case, optimizer)
    for step in range(epoch_steps * epochs):
        yield optimizer.param_groups[0]["lr"]
        optimizer.step()
        if step + 1 == epoch_steps * epochs:
            break
        for scheduler in by_step + (by_epoch if (step + 1) % epoch_steps == 0 else []):
            scheduler.step()


def main():
    warnings.simplefilter("error")
    lines = [f"torch {torch.__version__}"]
    for case in CASES:
        kind, *numbers, (epoch_steps, epochs) = case
        lines += [f"case {kind} {' '.join(map(repr, numbers))} {epoch_steps} {epochs}"]
        every, total = EVERY if case[-1] == LONG else 1, epoch_steps * epochs
        for step, lr in enumerate(lrs(case)):
            if step % every == 0 or step + 1 == total:
                lines.append(f"{step} {lr.hex()}")
    FILE.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
