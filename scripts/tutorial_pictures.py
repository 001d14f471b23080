#!/usr/bin/env python3
"""Draws the pictures of docs/tutorial/, docs/images/tutorial/*.svg, from what the program prints,
or from the figures that a page has of a run.

    scripts/tutorial_pictures.py [--build BUILD] [--check] [NAME ...]

NAME: only these. --check draws nothing: it fails if a picture is another one than it was.
"""
import argparse
import html
import json
import math
import os
import re
import subprocess
import sys
from pathlib import Path

SOURCE = Path(__file__).resolve().parent.parent
IMAGES = SOURCE / "docs" / "images" / "tutorial"
PAGES = SOURCE / "docs" / "tutorial"

INK, GREY, PAPER = "#24292f", "#6e7781", "#ffffff"
RANKS = ("#54aeff", "#ffb77c", "#6fdd8b", "#e0a3ff")  # a rank's colour
RED = "#cf222e"
SUMS = ("#f6f8fa", "#ddf4ff", "#a5d8ff", "#54aeff", "#2da44e")  # of 0, 1, ... ranks


class Picture:
    """Elements of an SVG, with a white ground so that it can be read on a dark page."""

    def __init__(self, width, height, title):
        self.width, self.height, self.title = width, height, title
        self.elements = []

    def box(self, x, y, width, height, fill=PAPER, stroke=GREY, dashed=False, radius=4):
        dash = ' stroke-dasharray="5 4"' if dashed else ""
        self.elements.append(f'<rect x="{x}" y="{y}" width="{width}" height="{height}" '
                             f'rx="{radius}" fill="{fill}" stroke="{stroke}"{dash}/>')

    def text(self, x, y, text, size=13, anchor="middle", fill=INK, bold=False):
        weight = ' font-weight="bold"' if bold else ""
        self.elements.append(f'<text x="{x}" y="{y}" font-size="{size}" text-anchor="{anchor}" '
                             f'fill="{fill}"{weight}>{html.escape(str(text))}</text>')

    def arrow(self, x1, y1, x2, y2, colour=GREY, bend=0):
        """From one point to another; bend: how far its middle lies to the left of the way."""
        length = math.hypot(x2 - x1, y2 - y1)
        cx = (x1 + x2) / 2 + bend * (y2 - y1) / length
        cy = (y1 + y2) / 2 - bend * (x2 - x1) / length
        way = f"M{x1:g} {y1:g}Q{cx:g} {cy:g} {x2:g} {y2:g}"
        angle = math.atan2(y2 - cy, x2 - cx)
        head = "".join(f"L{x2 - 8 * math.cos(angle + turn):.1f} "
                       f"{y2 - 8 * math.sin(angle + turn):.1f}" for turn in (0.45, -0.45))
        self.elements.append(f'<path d="{way}" fill="none" stroke="{colour}" stroke-width="1.5"/>'
                             f'<path d="M{x2:g} {y2:g}{head}Z" fill="{colour}"/>')

    def line(self, points, colour=GREY, width=1.5, dashed=False):
        dash = ' stroke-dasharray="5 4"' if dashed else ""
        way = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        self.elements.append(f'<polyline points="{way}" fill="none" stroke="{colour}" '
                             f'stroke-width="{width}"{dash}/>')

    def svg(self):
        return "\n".join([
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{self.width}" height="{self.height}" '
            f'viewBox="0 0 {self.width} {self.height}" font-family="sans-serif">',
            f"<title>{html.escape(self.title)}</title>",
            f'<rect width="{self.width}" height="{self.height}" rx="8" fill="{PAPER}"/>',
            *self.elements, "</svg>\n"])


class Plot:
    """A frame with two logarithmic axes, of powers of ten, in a picture."""

    def __init__(self, picture, frame, x_powers, y_powers):
        self.picture = picture
        self.left, self.top, self.width, self.height = frame
        self.x_powers, self.y_powers = x_powers, y_powers
        picture.box(*frame, radius=0)

    def place(self, x, y):
        (x0, x1), (y0, y1) = self.x_powers, self.y_powers
        return (self.left + self.width * (math.log10(x) - x0) / (x1 - x0),
                self.top + self.height * (y1 - math.log10(y)) / (y1 - y0))

    def ticks(self, xs, ys):
        """Ticks and their names: {value: name}."""
        for x, name in xs.items():
            at, _ = self.place(x, 10 ** self.y_powers[0])
            self.picture.line([(at, self.top), (at, self.top + self.height)], "#d8dee4", 1)
            self.picture.text(f"{at:.1f}", self.top + self.height + 17, name, 12)
        for y, name in ys.items():
            _, at = self.place(10 ** self.x_powers[0], y)
            self.picture.line([(self.left, at), (self.left + self.width, at)], "#d8dee4", 1)
            self.picture.text(self.left - 6, f"{at + 4:.1f}", name, 12, "end")

    def curve(self, points, colour):
        self.picture.line([self.place(x, y) for x, y in points], colour, 2.5)


class Program:
    """The program as the pages call it."""

    def __init__(self, build):
        self.path = build / "mnist_ddp"

    def run(self, *arguments):
        environment = {k: v for k, v in os.environ.items() if not k.startswith("MNIST_DDP_")}
        return subprocess.run([self.path, *arguments], env=environment, check=True, timeout=60,
                              stdout=subprocess.PIPE, text=True).stdout

    def demo(self, name, *arguments):
        return json.loads(self.run("demo", name, "--fast", "--json", *arguments))


def draw_ddp(program):
    """One process, DataParallel, DDP: processes, models, batches, and bytes of a real step."""
    facts = program.demo("dp")["facts"]
    rows = facts["rows"]
    picture = Picture(760, 330, "one process, DataParallel, DistributedDataParallel")

    def model(x, y, colour, images, optimizer):
        picture.box(x, y, 92, 74, colour)
        picture.text(x + 46, y + 20, "model", bold=True)
        picture.text(x + 46, y + 39, f"{images} images", 12)
        picture.text(x + 46, y + 57, "optimizer" if optimizer else "", 12)

    picture.text(84, 28, "one process", 14, bold=True)
    picture.box(14, 44, 140, 226, "#f6f8fa", GREY, True)
    model(38, 66, RANKS[0], sum(rows), True)
    picture.text(84, 294, "sends nothing", 12, fill=GREY)

    picture.text(306, 28, "DataParallel", 14, bold=True)
    picture.box(174, 44, 264, 226, "#f6f8fa", GREY, True)
    model(260, 66, RANKS[0], rows[0], True)
    for x, bend in ((190, -1), (330, 1)):
        model(x, 186, "#cfe6ff", rows[1], False)
        picture.arrow(306 + 20 * bend, 142, x + 46, 184, bend=-6)
        picture.arrow(x + 46 - 14 * bend, 184, 306 + 6 * bend, 142, "#bf3989", bend=-6)
    picture.text(182, 160, "weights,", 11, "start", GREY)
    picture.text(182, 174, "images", 11, "start", GREY)
    picture.text(306, 182, "gradients", 11, fill="#bf3989")
    picture.text(306, 294, f"the master sends {facts['sent'] / 1e6:.2f} MB a step", 12, fill=GREY)
    picture.text(306, 312, "one process, a thread for each device", 12, fill=GREY)

    picture.text(606, 28, "DistributedDataParallel", 14, bold=True)
    for rank, (x, y) in enumerate(((544, 44), (458, 164), (630, 164))):
        picture.box(x, y, 116, 106, "#f6f8fa", GREY, True)
        model(x + 12, y + 8, RANKS[rank], rows[rank], True)
        picture.text(x + 58, y + 98, f"rank {rank}", 11, fill=GREY)
    picture.arrow(542, 100, 506, 162, "#bf3989")
    picture.arrow(576, 217, 628, 217, "#bf3989")
    picture.arrow(698, 162, 662, 100, "#bf3989")
    picture.text(602, 208, "gradients", 11, fill="#bf3989")
    picture.text(606, 294, f"each rank sends {facts['ddp_sent'] / 1e6:.2f} MB a step", 12,
                 fill=GREY)
    picture.text(606, 312, "a process for each device", 12, fill=GREY)
    return picture


def draw_sampler(program):
    """Cards in the order of each epoch, dealt to ranks; those dealt twice have a dashed edge."""
    frames = program.demo("sampler")["frames"]
    picture = Picture(620, 290, "10 samples dealt to 3 ranks, in two epochs")
    for n, frame in enumerate(frames[1:3]):
        left = 20 + 300 * n
        rows = [re.findall(r"(\d+)(\*?)", row[1]) for row in frame["rows"]]
        order = [(rows[i % 3][i // 3], i % 3) for i in range(3 * len(rows[0]))]
        picture.text(left, 26, f"epoch {n}: the order of all ranks", anchor="start", bold=True)
        for i, ((sample, star), rank) in enumerate(order):
            picture.box(left + 23 * i, 40, 20, 28, RANKS[rank], INK if star else GREY, star)
            picture.text(left + 23 * i + 10, 59, sample)
        picture.arrow(left + 130, 74, left + 130, 100)
        for rank, row in enumerate(rows):
            y = 110 + 56 * rank
            picture.text(left, y + 25, f"rank {rank}", anchor="start")
            for i, (sample, star) in enumerate(row):
                x = left + 62 + 42 * i
                picture.box(x, y, 34, 40, RANKS[rank], INK if star else GREY, star)
                picture.text(x + 17, y + 26, sample, 16)
    picture.text(20, 280, "A dashed edge: dealt a second time, so that all have equally many.", 12,
                 "start", GREY)
    return picture


def draw_ranks(program):
    """What a dry run of 3 nodes with 8 ranks each would start."""
    plan = program.run("run", "--dry-run", "--nnodes=3", "--nproc-per-node=8", "true")
    places = re.findall(r"\bRANK=(\d+) LOCAL_RANK=(\d+) .*?NODE_RANK=(\d+)", plan)
    picture = Picture(620, 262, "24 ranks on three machines")
    for node in range(3):
        y = 14 + 78 * node
        picture.box(14, y, 592, 66, "#f6f8fa", GREY, True)
        picture.text(26, y + 28, f"machine {node}", anchor="start", bold=True)
        picture.text(26, y + 48, f"NODE_RANK={node}", 11, "start", GREY)
    for rank, local_rank, node in places:
        x, y = 130 + 58 * int(local_rank), 21 + 78 * int(node)
        picture.box(x, y, 50, 52, RANKS[int(node)])
        picture.text(x + 25, y + 24, rank, 18, bold=True)
        picture.text(x + 25, y + 43, f"GPU {local_rank}", 11)
    picture.text(26, 254, "Large: RANK, another one in each process. Below: LOCAL_RANK, which is "
                 "also the GPU.", 12, "start", GREY)
    return picture


def draw_machines(_program):
    """Two launchers, the store at node 0's address, two workers each."""
    picture = Picture(620, 300, "two machines meet at a store")
    for node in range(2):
        x = 14 + 306 * node
        picture.box(x, 14, 286, 238, "#f6f8fa", GREY, True)
        picture.text(x + 12, 36, f"machine {node}", anchor="start", bold=True)
        picture.text(x + 274, 36, f"--node-rank={node}", 11, "end", GREY)
        picture.box(x + 20, 118, 116, 40)
        picture.text(x + 78, 143, "launcher")
        for local_rank in range(2):
            rank = 2 * node + local_rank
            picture.box(x + 20 + 130 * local_rank, 196, 116, 40, RANKS[rank])
            picture.text(x + 78 + 130 * local_rank, 214, f"rank {rank}", bold=True)
            picture.text(x + 78 + 130 * local_rank, 230, f"local rank {local_rank}", 11)
            picture.arrow(x + 78, 158, x + 78 + 130 * local_rank, 194)
    picture.box(34, 54, 160, 34, "#fff8c5")
    picture.text(114, 69, "store", bold=True)
    picture.text(114, 83, "--master-addr:--master-port", 11)
    picture.arrow(92, 118, 92, 90)
    picture.arrow(360, 118, 196, 74)
    picture.text(300, 92, "meets here", 11, "start", GREY)
    picture.text(20, 276, "All give the same address: machine 0's. The launchers meet there first, "
                 "then the ranks do.", 12, "start", GREY)
    picture.text(20, 292, "Gradients then go from rank to rank, not through the store.", 12,
                 "start", GREY)
    return picture


def draw_ring(program):
    """The chunks of each rank after each step; the colour says of how many ranks a sum is."""
    frames = program.demo("ring")["frames"][:7]
    picture = Picture(760, 210, "an all-reduce around a ring of four ranks, step by step")
    for n, frame in enumerate(frames):
        left = 66 + 99 * n
        step = "start" if n == 0 else f"step {n}"
        picture.text(left + 44, 42, step, 12, bold=True)
        for rank, row in enumerate(frame["rows"]):
            if n == 0:
                picture.text(12, 72 + 26 * rank, f"rank {rank}", 12, "start")
            for chunk, cell in enumerate(row[1:]):
                number = re.sub(r"\D", "", cell)
                x, y = left + 22 * chunk, 54 + 26 * rank
                picture.box(x, y, 20, 24, SUMS[number.count("1")],
                            INK if "*" in cell else "#d0d7de", radius=2)
                picture.text(x + 10, y + 17, number.count("1"), 12)
    picture.text(66 + 99, 22, "reduce-scatter: sums grow", 12, "start", GREY)
    picture.text(66 + 99 * 4, 22, "all-gather: sums go round", 12, "start", GREY)
    picture.text(12, 180, "A square is a chunk of a rank's array. Its number: of how many ranks it "
                 "is the sum. A dark edge: it has changed.", 12, "start", GREY)
    picture.text(12, 198, "After three steps each rank has the whole sum of one chunk, after six "
                 "of all.", 12, "start", GREY)
    return picture


def draw_elastic(_program):
    """Launchers as bars along the time, cut into rounds."""
    picture = Picture(700, 250, "three rounds of an elastic job")
    ends = (110, 300, 470, 680)  # of the rounds, from left to right
    for n, (left, right) in enumerate(zip(ends, ends[1:])):
        picture.box(left, 14, right - left - 6, 186, "#f6f8fa", GREY, True)
        ranks = 2 if n == 1 else 4
        picture.text((left + right) / 2 - 3, 34, f"round {n + 1}: {ranks} ranks", bold=True)
    for y, name in ((56, "first"), (104, "second"), (152, "third")):
        picture.text(14, y + 22, name, anchor="start")
        picture.text(14, y + 37, "launcher", 11, "start", GREY)
    picture.box(118, 56, 548, 38, RANKS[0])
    picture.text(392, 80, "ranks 0 and 1 live through all rounds, with their state in memory")
    picture.box(118, 104, 172, 38, RANKS[1])
    picture.text(196, 128, "ranks 2 and 3")
    picture.text(304, 120, "\u2716 kill -9", 13, "start", RED, True)
    picture.text(304, 136, "its connection closes", 11, "start", GREY)
    picture.box(478, 152, 188, 38, RANKS[2])
    picture.text(572, 176, "ranks 2 and 3")
    picture.text(362, 170, "comes, is taken in", 11, "start", GREY)
    picture.arrow(500, 96, 500, 150)
    picture.text(508, 128, "rank 0's state", 11, "start", GREY)
    picture.text(14, 224, "A round ends when a launcher is lost, or when one comes. Time goes to "
                 "the right.", 12, "start", GREY)
    picture.text(14, 241, "After each round the images that are left of the epoch are dealt out "
                 "anew.", 12, "start", GREY)
    return picture


def draw_precision(program):
    """What each format can say, and where the gradients of page 7 lie."""
    rows = program.demo("precision")["frames"][0]["rows"]
    page = (PAGES / "7-mixed-precision.md").read_text()
    small, large = (float(re.search(rf"^    {name} +(\S+)", page, re.M)[1])
                    for name in ("smallest", "largest"))
    picture = Picture(700, 232, "the ranges of float32, fp16 and bf16")

    def x_of(value):
        return round(90 + 590 * (math.log10(value) + 46) / 86, 1)

    left, right = x_of(small), x_of(large)
    picture.box(left, 16, round(right - left, 1), 166, "#fff8c5", "#d4a72c", True)
    picture.text(round((left + right) / 2, 1), 34, "gradients", 12)
    for n, row in enumerate(rows):
        name, low, high = row[0], *(float(re.search(r"[\d.e+-]+$", str(cell))[0])
                                    for cell in row[3:5])
        y = 46 + 44 * n
        picture.text(14, y + 22, name, anchor="start", bold=True)
        picture.box(x_of(low), y, round(x_of(high) - x_of(low), 1), 34, RANKS[n])
        picture.text(x_of(1e14 if n == 1 else 1e-28), y + 22, f"{low:.0e} to {high:.0e}", 12)
    for power in range(-40, 41, 10):
        picture.text(x_of(10.0 ** power), 198, f"1e{power}" if power else "1", 11, fill=GREY)
    picture.text(14, 222, "What lies to the left of a bar becomes 0 in it: some gradients do in "
                 "fp16, and none in bf16.", 12, "start", GREY)
    return picture


def draw_hang(_program):
    """Lanes of three ranks: work, waits, and what comes of them."""
    picture = Picture(700, 232, "one rank stops, the others wait")
    for rank in range(3):
        y = 22 + 50 * rank
        picture.text(14, y + 22, f"rank {rank}", anchor="start", bold=True)
        for step in range(2):
            picture.box(76 + 104 * step, y, 70, 34, RANKS[rank])
            picture.text(111 + 104 * step, y + 22, f"step {step + 1}")
        if rank == 1:
            picture.text(290, y + 22, "\u2716 stopped before step 3", anchor="start", fill=RED,
                         bold=True)
            continue
        picture.box(284, y, 70, 34, RANKS[rank])
        picture.text(319, y + 22, "step 3")
        picture.box(360, y, 226, 34, "#f6f8fa", GREY, True)
        picture.text(473, y + 22, "waits in all_reduce #11")
        picture.text(598, y + 22, "110", anchor="start", fill=RED, bold=True)
    for x in (163, 267):
        picture.line([(x, 16), (x, 162)], "#8250df", 3)
    picture.line([(590, 16), (590, 162)], RED, 1.5, True)
    picture.text(215, 182, "all_reduce: all have come", 12, fill="#8250df")
    picture.text(590, 182, "--timeout", 12, fill=RED)
    picture.text(14, 206, "Ranks 0 and 2 report the timeout. Rank 1, the one to look at, says "
                 "nothing:", 12, "start", GREY)
    picture.text(14, 223, "its page of memory tells where it was. Time goes to the right.", 12,
                 "start", GREY)
    return picture


def draw_benchmark(_program):
    """The table of page 9: time by size."""
    page = (PAGES / "9-reading-the-benchmark.md").read_text()
    rows = re.findall(r"^ +(\d+) +\d+ +float +sum +-1 +[\d.]+ .* ([\d.]+) +[\d.]+ +[\d.]+ +0$",
                      page, re.M)
    points = [(int(size), float(us)) for size, us in rows]
    picture = Picture(640, 290, "time of an all-reduce by its size")
    plot = Plot(picture, (70, 20, 550, 210), (0.7, 7.5), (1, 4.3))
    plot.ticks({8: "8 B", 4096: "4 KiB", 262144: "256 KiB", 1 << 24: "16 MiB"},
               {10: "10 µs", 100: "100 µs", 1000: "1 ms", 10000: "10 ms"})
    latency, (most_bytes, most_us) = points[0][1], points[-1]
    per_us = most_bytes / (most_us - latency)
    picture.line([plot.place(x, latency) for x in (8, 1 << 24)], RANKS[1], 2, True)
    picture.line([plot.place(x, x / per_us) for x in (10 * per_us, most_bytes)], RANKS[2], 2, True)
    plot.curve(points, "#0969da")
    for x, y in points:
        at = plot.place(x, y)
        picture.box(round(at[0] - 3, 1), round(at[1] - 3, 1), 6, 6, "#0969da", "#0969da")
    x, y = plot.place(300, latency)
    picture.text(round(x), round(y) - 10, f"latency: {latency:.0f} µs", bold=True)
    x, y = plot.place(1 << 21, most_us / 4)
    picture.text(round(x) - 10, round(y) - 24, f"bandwidth: {per_us / 1000:.1f} GB/s", anchor="end",
                 bold=True)
    picture.text(14, 276, "Two ranks on one machine, over gloo. Both axes are logarithmic.", 12,
                 "start", GREY)
    return picture


def draw_scaling(_program):
    """The projection of page 10: images per second by ranks."""
    page = (PAGES / "10-where-it-stops-scaling.md").read_text()
    names = {"ring": "#0969da", "tree": "#1a7f37", "hierarchical": "#8250df", "server": "#bc4c00",
             "master": RED}
    rows = re.findall(r"^ *(\d+)((?: +[\d.]+[kMG]? +[\d.]+){5}) +\d+ %$", page, re.M)
    picture = Picture(700, 330, "images per second by ranks, as the model projects it")
    plot = Plot(picture, (70, 20, 450, 250), (0, 5), (4.5, 10))
    plot.ticks({10 ** n: f"{10 ** n:,}" for n in range(6)},
               {10 ** n: name for n, name in ((5, "100,000"), (6, "1 M"), (7, "10 M"), (8, "100 M"),
                                              (9, "1,000 M"))})
    picture.line([plot.place(n, 50000 * n) for n in (1, 1e5)], GREY, 1.5, True)
    lowest = []
    for name, colour in names.items():
        units = {"k": 1e3, "M": 1e6, "G": 1e9}
        cells = [cells.split()[2 * list(names).index(name)] for _, cells in rows]
        points = [(int(ranks), float(cell.rstrip("kMG")) * units.get(cell[-1], 1))
                  for (ranks, _), cell in zip(rows, cells)]
        plot.curve(points, colour)
        _, y = plot.place(*points[-1])
        while any(abs(y - other) < 16 for other in lowest):
            y += 4
        lowest.append(y)
        picture.text(530, round(y) + 4, name, anchor="start", fill=colour, bold=True)
    picture.text(530, 30, "nothing is lost", anchor="start", fill=GREY)
    picture.text(295, 306, "ranks", 12)
    picture.text(14, 322, "The MLP, 64 images a rank. A projection: no such cluster was measured.",
                 12, "start", GREY)
    return picture


def draw_sharding(program):
    """What each of four ranks has with ddp, zero1 and fsdp, in quarters."""
    frames = program.demo("zero")["frames"]
    names = frames[-1]["columns"][1:4]
    whole = frames[-1]["rows"][0][1]
    picture = Picture(790, 284, "who holds what: ddp, zero1, fsdp")
    for column, (mode, *floats, _sent) in enumerate(frames[-1]["rows"]):
        left = 66 + 242 * column
        picture.text(left + 108, 26, mode, 14, bold=True)
        for bar, (name, has) in enumerate(zip(names, floats)):
            x = left + 76 * bar
            picture.text(x + 32, 50, name, 11, fill=GREY)
            for rank, quarter in ((r, q) for r in range(4) for q in range(4)):
                there = has == whole or rank == quarter
                picture.box(x + 16 * quarter, 60 + 42 * rank, 16, 30,
                            RANKS[quarter] if there else PAPER, GREY if there else "#d0d7de",
                            not there, 2)
        picture.text(left + 108, 244, f"{4e-6 * sum(floats):.1f} MB on each rank", 12, fill=GREY)
    for rank in range(4):
        picture.text(12, 80 + 42 * rank, f"rank {rank}", anchor="start")
    picture.text(12, 272, "A filled part is one that the rank has. The CNN, and a momentum as the "
                 "optimizer's state; without activations.", 12, "start", GREY)
    return picture


def draw_pipeline(program):
    """Which micro-batch each stage has in each slot of time, with both schedules."""
    fills = {"F": RANKS[0], "B": RANKS[1], ".": PAPER}
    picture = Picture(740, 352, "gpipe and 1f1b: four stages, six micro-batches, over time")
    for top, name, frame in zip((14, 170), ("gpipe", "1f1b"), program.demo("pipeline")["frames"]):
        picture.text(12, top + 16, f"--pipeline-schedule={name}", 14, "start", bold=True)
        for rank, (_, *slots) in enumerate(frame["rows"]):
            y = top + 28 + 28 * rank
            picture.text(12, y + 18, f"rank {rank}", anchor="start")
            for slot, work in enumerate(slots):
                idle = work == "."
                picture.box(66 + 37 * slot, y, 35, 25, fills[work[0]],
                            "#d0d7de" if idle else GREY, idle, 2)
                if not idle:
                    picture.text(66 + 37 * slot + 17.5, y + 17, work, 12)
    picture.text(12, 326, "Time goes to the right. F0 is the forward of micro-batch 0, B0 its "
                 "backward. An empty square: the stage is idle.", 12, "start", GREY)
    picture.text(12, 343, "Both have the same number of empty squares. With 1f1b fewer "
                 "micro-batches are between their F and their B.", 12, "start", GREY)
    return picture


def draw_far_apart(_program):
    """The seconds to 97 % over a slow link, as bars on a logarithmic axis."""
    kept = json.loads((SOURCE / "bench/results/slow-link-epyc-2core.json").read_text())
    bottom = 30 + 28 * len(kept["rows"])
    picture = Picture(700, bottom + 66, "seconds to 97 % with two ranks over a slow link")

    def x_of(seconds):
        return round(150 + 460 * (math.log10(seconds) - 0.5) / 3, 1)

    for seconds in (10, 100, 1000):
        picture.line([(x_of(seconds), 16), (x_of(seconds), bottom)], "#d8dee4", 1)
        picture.text(x_of(seconds), bottom + 17, f"{seconds:,} s", 12)
    colours = {"ddp": RANKS[0], "local": RANKS[2], "DiLoCo": RANKS[1]}
    for n, row in enumerate(kept["rows"]):
        y, right = 24 + 28 * n, x_of(row["seconds"])
        picture.text(14, y + 15, row["row"], anchor="start", bold=True)
        picture.box(150, y, round(right - 150, 1), 20, colours[re.match(r"\w+", row["row"])[0]],
                    GREY, row["reckoned"])
        picture.text(round(right + 8, 1), y + 15, f"{row['seconds']:,.0f} s", 12, "start")
    picture.text(14, bottom + 40, "Two ranks, the MLP, 10 Mb/s and 50 ms each way, until 97 % of the "
                 "test images are right.", 12, "start", GREY)
    picture.text(14, bottom + 57, "The axis is logarithmic. A dashed edge: reckoned from 20 steps, "
                 "not a whole run.", 12, "start", GREY)
    return picture


PICTURES = {"ddp": draw_ddp, "sampler": draw_sampler, "ranks": draw_ranks,
            "machines": draw_machines, "ring": draw_ring, "elastic": draw_elastic,
            "precision": draw_precision, "hang": draw_hang, "benchmark": draw_benchmark,
            "scaling": draw_scaling, "sharding": draw_sharding, "pipeline": draw_pipeline,
            "far-apart": draw_far_apart}


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=Path, default=SOURCE / "build")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("names", nargs="*", metavar="NAME", choices=[[], *PICTURES])
    arguments = parser.parse_args()
    program = Program(arguments.build.resolve())
    IMAGES.mkdir(parents=True, exist_ok=True)
    for name in arguments.names or PICTURES:
        path = IMAGES / f"{name}.svg"
        drawn = PICTURES[name](program).svg()
        if not arguments.check:
            path.write_text(drawn)
        elif not path.exists() or path.read_text() != drawn:
            sys.exit(f"{path.relative_to(SOURCE)} is out of date: scripts/tutorial_pictures.py")


main()
