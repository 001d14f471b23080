#!/usr/bin/env python3
"""JAX's side of `make bench`: the MLP of torch_ddp_mnist.py on MNIST, on the CPU, as one process.

    jax_mnist.py --data DIR --epochs 2 --limit 6400

Prints one JSON line with the words of torch_ddp_mnist.py. A step is one compiled function, which
gets its weights' memory back (donate_argnums). With --scan an epoch is one. The first epoch
compiles; the fastest counts.
"""
import argparse
import functools
import gzip
import json
import os
import resource
import time

parser = argparse.ArgumentParser()
parser.add_argument("--data", required=True)
parser.add_argument("--model", choices=["mlp"], default="mlp")
parser.add_argument("--optimizer", choices=["sgd"], default="sgd")
parser.add_argument("--lr", type=float, default=0.1)
parser.add_argument("--momentum", type=float, default=0.9)
parser.add_argument("--epochs", type=int, default=2)
parser.add_argument("--limit", type=int, default=60000)
parser.add_argument("--batch-size", type=int, default=64)
parser.add_argument("--threads", type=int, default=1)
parser.add_argument("--scan", action="store_true")
args = parser.parse_args()
BEGUN = time.perf_counter()
# XLA makes as many threads as it sees cores.
os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:args.threads])
os.environ["JAX_PLATFORMS"] = "cpu"

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402


def idx(name, header):
    """An IDX file's bytes behind its header; the file may be plain or gzipped."""
    path = f"{args.data}/{name}"
    with gzip.open(path + ".gz") if os.path.exists(path + ".gz") else open(path, "rb") as file:
        return np.frombuffer(file.read(), np.uint8, offset=header)


def load(split):
    x = idx(f"{split}-images-idx3-ubyte", 16).reshape(-1, 784).astype(np.float32)
    return (x / 255 - 0.1307) / 0.3081, idx(f"{split}-labels-idx1-ubyte", 8).astype(np.int32)


def first_weights(key):
    """As torch.nn.Linear's: uniform within 1 / sqrt(inputs)."""
    made = []
    for inputs, outputs in ((784, 512), (512, 512), (512, 10)):
        key, w, b = jax.random.split(key, 3)
        bound = inputs ** -0.5
        made.append((jax.random.uniform(w, (inputs, outputs), minval=-bound, maxval=bound),
                     jax.random.uniform(b, (outputs,), minval=-bound, maxval=bound)))
    return made


def logits_of(weights, x):
    for w, b in weights[:-1]:
        x = jax.nn.relu(x @ w + b)
    return x @ weights[-1][0] + weights[-1][1]


def loss_of(weights, x, y):
    by_class = jax.nn.log_softmax(logits_of(weights, x))
    return -jnp.take_along_axis(by_class, y[:, None], axis=1).mean()


def update(state, batch):
    weights, momenta = state
    loss, gradients = jax.value_and_grad(loss_of)(weights, *batch)
    momenta = jax.tree.map(lambda m, g: args.momentum * m + g, momenta, gradients)
    return (jax.tree.map(lambda w, m: w - args.lr * m, weights, momenta), momenta), loss


step = jax.jit(update, donate_argnums=0)


@functools.partial(jax.jit, donate_argnums=0)
def scan_epoch(state, x, y, order):
    state, losses = jax.lax.scan(lambda s, at: update(s, (x[at], y[at])), state, order)
    return state, losses[-1]


def main():
    x, y = load("train")
    x, y = x[:args.limit], y[:args.limit]
    x_scan, y_scan = (jnp.asarray(x), jnp.asarray(y)) if args.scan else (None, None)
    weights = first_weights(jax.random.PRNGKey(1))
    state = weights, jax.tree.map(jnp.zeros_like, weights)
    random = np.random.RandomState(1)
    seen = len(x) // args.batch_size * args.batch_size
    setup_s, epochs = time.perf_counter() - BEGUN, []
    for _ in range(args.epochs):
        begun = time.perf_counter()
        order = random.permutation(len(x))[:seen].reshape(-1, args.batch_size)
        if args.scan:
            state, loss = scan_epoch(state, x_scan, y_scan, order)
        else:
            for at in order:
                state, loss = step(state, (x[at], y[at]))
        loss.block_until_ready()
        epochs.append(time.perf_counter() - begun)
    x, y = load("t10k")
    right = int((np.argmax(logits_of(state[0], x), 1) == y).sum())
    print(json.dumps({
        "system": f"jax {jax.__version__}", "model": args.model, "threads": args.threads,
        "batch": args.batch_size, "scan": args.scan, "images_per_epoch": seen,
        "train_s": [round(s, 3) for s in epochs], "images_per_s": round(seen / min(epochs)),
        "setup_s": round(setup_s, 3), "test_acc": right / len(y),
        "last_loss": round(float(loss), 4),
        "rss_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024}))


main()
