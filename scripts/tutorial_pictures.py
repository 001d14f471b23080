#!/usr/bin/env python3
"""Draws the pictures of docs/tutorial/, docs/images/tutorial/*.svg, from what the program prints.

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

INK, GREY, PAPER = "#24292f", "#6e7781", "#ffffff"
RANKS = ("#54aeff", "#ffb77c", "#6fdd8b", "#e0a3ff")  # a rank's colour
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

    def svg(self):
        return "\n".join([
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{self.width}" height="{self.height}" '
            f'viewBox="0 0 {self.width} {self.height}" font-family="sans-serif">',
            f"<title>{html.escape(self.title)}</title>",
            f'<rect width="{self.width}" height="{self.height}" rx="8" fill="{PAPER}"/>',
            *self.elements, "</svg>\n"])


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


PICTURES = {"ddp": draw_ddp, "sampler": draw_sampler, "ranks": draw_ranks,
            "machines": draw_machines, "ring": draw_ring}


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
