#!/usr/bin/env python3
"""Fits a cost model to what `mnist_ddp bench scaling` measured (scaling.json), and projects it to a
cluster. docs/internals/performance.md ("What scaling costs") explains the terms. Needs python3-scipy."""
import argparse
import functools
import json
import math
import statistics
import sys

try:
    from scipy.optimize import nnls
except ImportError:
    sys.exit("scaling.py: no scipy here: apt-get install python3-scipy")

ROUNDS = {"ddp": 1, "ps": 1, "dp": 3}  # how often the ranks of a step wait for one another
NEAR = 8  # a row beyond so many times the measured ranks needs an error
IMAGE_BYTES, LOGIT_BYTES = 4 * 784, 4 * 10


def slowest(sigma, ranks):
    """How much longer than one rank on average the slowest of them computes."""
    return 1 + sigma * math.sqrt(2 * math.log(ranks))


def ring(link, ranks, size):
    latency, per_byte = link
    return 2 * (ranks - 1) * (latency + size / ranks * per_byte)


def tree(link, depth, latency, size):
    """Up and down in chunks, in the best number of them; `latency`: of all stages together."""
    if depth == 0:
        return 0
    once, stages = size * link[1], 2 * depth - 2
    chunks = max(1, math.sqrt(stages * once / link[0])) if link[0] else math.inf
    pace = (chunks - 1) * link[0] if link[0] else 0
    return latency + 2 * once + stages * once / chunks + pace


class Fit:
    """The terms of one machine, in seconds, fitted to cases."""

    def __init__(self, settings, sigma, cases):
        self.cores, self.sigma, self.terms = settings["cores"], sigma, {}
        self.parameters = {c["model"]: c["bytes"] for c in cases if c["what"] == "ddp"}
        for steps in (False, True):  # the steps' transfers cost what the all-reduces say
            self.terms |= self.solve([c for c in cases if (c["what"] in ROUNDS) == steps])

    def counts(self, case):
        """How often each term counts in a case; those of transfers, and the others."""
        ranks, what = case["ranks"], case["what"]
        per_core = max(1, ranks / self.cores)
        sums = {"latency": 2 * (ranks - 1) * per_core,
                "bandwidth": 2 * (ranks - 1) / ranks * case["bytes"] * per_core}
        if what not in ROUNDS:
            return {}, sums | {"switching": per_core - 1}
        if what != "ddp":  # a star, around rank 0
            sums = {"latency": 2 * (ranks - 1), "bandwidth": (ranks - 1) * case["bytes"]}
        work = per_core * slowest(self.sigma, ranks)
        return sums, {case["model"]: case["images_per_rank"] * work,
                      "optimizer": self.parameters[case["model"]] * work,
                      "sharing": ROUNDS[what] * (per_core - 1)}

    def price(self, counts):
        return sum(n * self.terms.get(term, 0) for term, n in counts.items())

    def predict(self, case):
        return sum(map(self.price, self.counts(case)))

    def solve(self, cases):
        """Least squares of relative errors; no cost is negative."""
        rows = [(*self.counts(case), case["median_s"]) for case in cases]
        names = sorted({name for _, counts, _ in rows for name in counts})
        most = {name: max(row[1].get(name, 0) / row[2] for row in rows) or 1 for name in names}
        if not names:
            return {}
        scaled, _ = nnls([[counts.get(name, 0) / s / most[name] for name in names]
                          for _, counts, s in rows],
                         [1 - self.price(known) / s for known, _, s in rows])
        return {name: value / most[name] for name, value in zip(names, scaled)}


class Cluster:
    """The ranks of a fit, one to a core, and the links of a cluster that is not here."""

    def __init__(self, flags, settings, fit, model, last_bytes):
        def link(latency_us, gbps):
            return (fit.terms.get("latency", 0) + latency_us * 1e-6,
                    max(fit.terms.get("bandwidth", 0), 8e-9 / gbps))

        self.inside = link(flags.node_latency_us, flags.node_bandwidth_gbps)
        self.between = link(flags.link_latency_us, flags.link_bandwidth_gbps)
        self.per_node, self.sigma = flags.ranks_per_node, fit.sigma
        self.size, self.last = fit.parameters[model], last_bytes
        self.image_s = fit.terms[model]
        self.step_s = fit.terms["optimizer"] * self.size
        if flags.images_per_s:
            self.image_s, self.step_s = 1 / flags.images_per_s, 0
        self.hidden = settings["backward_share"].get(model, 2 / 3) if settings["overlap"] else 0

    def all_reduce(self, way, ranks, size):
        near, nodes = min(ranks, self.per_node), math.ceil(ranks / self.per_node)
        inner, outer = (math.ceil(math.log2(n)) for n in (near, nodes))
        link = self.between if nodes > 1 else self.inside
        if way == "ring":
            return ring(link, ranks, size)
        if way == "tree":
            return tree(link, inner + outer,
                        2 * (inner * self.inside[0] + outer * self.between[0]), size)
        return ring(self.inside, near, size) + min(
            ring(self.between, nodes, size),
            tree(self.between, outer, 2 * outer * self.between[0], size))

    def fan(self, ranks, size):
        """Rank 0 sends `size` bytes to each other rank, or gets them, one after the other."""
        near = min(ranks, self.per_node)
        return sum(n * (link[0] + size * link[1])
                   for n, link in ((near - 1, self.inside), (ranks - near, self.between)))

    def images_per_s(self, way, ranks, images):
        step = (self.image_s * images + self.step_s) * slowest(self.sigma, ranks)
        if way in ("ring", "tree", "hierarchical"):
            free = self.hidden * self.image_s * images
            step += max(self.all_reduce(way, ranks, self.size) - free,
                        self.all_reduce(way, ranks, self.last))
        else:
            step += 2 * self.fan(ranks, self.size)
            if way == "master":
                step += self.fan(ranks, images * IMAGE_BYTES) + 2 * self.fan(
                    ranks, images * LOGIT_BYTES)
        return images * ranks / step


WAYS = ("ring", "tree", "hierarchical", "server", "master")


def sigma_of(cases):
    """Of one rank's steps, relative to their mean; None without a case of two runs."""
    known = [c["values_s"] for c in cases
             if c["what"] == "ddp" and c["ranks"] == 1 and len(c["values_s"]) > 1]
    weights = [len(values) - 1 for values in known]
    squares = [(statistics.stdev(v) / statistics.mean(v)) ** 2 * w for v, w in zip(known, weights)]
    return math.sqrt(sum(squares) / sum(weights)) if known else None


def amount(value):
    for unit in ("", "k", "M", "G"):
        if value < 999.5 or unit == "G":
            return f"{value:.3g}{unit}"
        value /= 1000


def tell_fit(document, fit, held, sigma):
    settings, terms = document["settings"], fit.terms
    print(f"{settings['backend']}, {fit.cores} cores: fitted to {len(document['cases'])} cases; "
          "the machine's terms")
    print(f"  latency {terms.get('latency', 0) * 1e6:.3g} us a message, bandwidth "
          f"{8e-9 / (terms.get('bandwidth') or math.nan):.3g} Gb/s, switching "
          f"{terms.get('switching', 0) * 1e6:.3g} us, sharing {terms['sharing'] * 1e6:.3g} us")
    for model, size in fit.parameters.items():
        print(f"  {model}: {terms[model] * 1e6:.3g} us an image, "
              f"{terms['optimizer'] * size * 1e6:.3g} us a step")
    print(f"  the slowest of W ranks: {100 * sigma:.3g} % x sqrt(2 ln W) later than the mean")
    for name, errors in held.items():
        print(f"  {name}, each world size held out in turn: " + (
            f"off by {100 * statistics.median(errors):.1f} % in the median of {len(errors)}, "
            f"{100 * max(errors):.1f} % at worst" if errors else "not enough of them"))


def project(flags, document, fits, held, model):
    """fits: of all cases, then without each world size. The error of a row is the worst of the
    steps that were held out, and by how much those fits part."""
    last = next(c["last_bucket_bytes"] for c in document["cases"]
                if c["what"] == "ddp" and c["model"] == model)
    clusters = [Cluster(flags, document["settings"], fit, model, last) for fit in fits]
    measured = max(c["ranks"] for c in document["cases"])
    wanted = flags.project_ranks or [2 ** i for i in range((NEAR * measured).bit_length())]
    for batch, weak in ((flags.project_batch, True), (flags.project_global_batch, False)):
        name, whose = ("weak", "per rank") if weak else ("strong", "of all ranks")
        print(f"\nPROJECTION, not measured: {model}, {name} scaling, {batch} images {whose}; "
              "images/s, efficiency")
        print("ranks".rjust(7) + "".join(way.rjust(14) for way in WAYS) + "  error")
        for ranks in wanted:
            if not held and ranks > NEAR * measured:
                print(f"{ranks:7} not told: beyond {NEAR} x {measured} ranks, and the error is not "
                      "known. Measure two world sizes above 1.")
                continue
            if not weak and ranks > batch:
                continue  # a rank has no image
            speed, *others = [[cluster.images_per_s(way, ranks, batch if weak else batch / ranks)
                               for way in WAYS] for cluster in clusters]
            one = clusters[0].images_per_s("ring", 1, batch)
            error = max(held, default=0) + max((abs(b / a - 1) for other in others
                                                for a, b in zip(speed, other)), default=0)
            print(f"{ranks:7}" + "".join(f"{amount(s):>9}{s / one / ranks:5.2f}" for s in speed) +
                  (f"{100 * error:5.0f} %" if held else "      -"))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="+", metavar="scaling.json", help="one for each backend")
    number = functools.partial(parser.add_argument, type=float, metavar="X")
    number("--link-latency-us", default=5, help="of a message between nodes, beside the backend's")
    number("--link-bandwidth-gbps", default=100, help="of a node's link to the others")
    number("--node-latency-us", default=2, help="of a message inside a node")
    number("--node-bandwidth-gbps", default=2400, help="between the ranks of a node")
    number("--images-per-s", help="that one rank computes [as fitted here]")
    number("--sigma", help="per cent by which a rank's steps scatter [as measured here]")
    number("--ranks-per-node", type=int, default=8, metavar="N")
    number("--project-batch", type=int, default=64, metavar="N", help="per rank (weak scaling)")
    number("--project-global-batch", type=int, default=65536, metavar="N", help="(strong scaling)")
    number("--project-ranks", metavar="LIST", help="[up to 8 times the measured ranks]",
           type=lambda text: [int(word) for word in text.split(",")])
    flags = parser.parse_args()
    for path in flags.files:
        with open(path, encoding="utf-8") as file:
            document = json.load(file)
        cases, settings = document.get("cases"), document.get("settings")
        if not settings or not any(c["what"] == "ddp" and c["ranks"] == 1 for c in cases):
            sys.exit(f"{path}: not what mnist_ddp bench scaling writes, or no step of one rank")
        sigma = flags.sigma / 100 if flags.sigma is not None else sigma_of(cases)
        if sigma is None:
            sys.exit(f"{path}: one run of each case does not tell how ranks scatter: measure with "
                     "--repeats=2 or more, or give --sigma")
        fit = Fit(settings, sigma, cases)
        sizes = sorted({c["ranks"] for c in cases if c["ranks"] > 1 and c["what"] in ROUNDS})
        without = {w: Fit(settings, sigma, [c for c in cases if c["ranks"] != w])
                   for w in sizes if len(sizes) > 1}
        held = {name: [abs(without[c["ranks"]].predict(c) / c["median_s"] - 1) for c in cases
                       if c["ranks"] in without and (c["what"] in ROUNDS) == steps]
                for name, steps in (("steps", True), ("all-reduces", False))}
        tell_fit(document, fit, held, sigma)
        for model in fit.parameters:
            project(flags, document, [fit, *without.values()], held["steps"], model)


if __name__ == "__main__":
    main()
