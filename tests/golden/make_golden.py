#!/usr/bin/env python3
"""Writes mlp, cnn and speedrun.safetensors: what PyTorch computes, for test_golden.c to compare.

Run it as README.md says. The input is made of MT19937's numbers, so that the C test can make it
again: no MNIST file is needed. A float64 number is stored as two float32 whose sum it is.
"""
import json
import pathlib

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

FOLDER = pathlib.Path(__file__).parent
INPUT_SEED = 100  # this one and the gradient seeds keep off the kinks, see MARGIN
BATCH = 16
RUN_BATCH = {"mlp": 16, "cnn": 4, "speedrun": 4}  # fewer windows: ten steps without coming near a kink
STEPS = 10
INIT_SEEDS = (0, 1, 7, 12345)
GRADIENT_SEEDS = (1, 4)
MARGIN = 5e-6  # no value nearer to a kink than this, relative to its layer's rms
RUN_MARGIN = 4e-6  # in the ten steps of a net with pools
TRAIN_SEEDS = {"mlp": 1, "cnn": 22, "speedrun": 1}
MASK_SEED = 1000  # of the dropout masks of training step 0; step s has MASK_SEED + s
SIGN_SEED = 4242
SAMPLE = 512


class MLP(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.fc2, self.fc3 = nn.Linear(784, 512), nn.Linear(512, 512), nn.Linear(512, 10)

    def forward(self, x):
        x = F.relu(self.fc1(x.flatten(1)))
        return self.fc3(F.relu(self.fc2(x)))


class CNN(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 32, 3), nn.Conv2d(32, 64, 3)
        self.dropout1, self.dropout2 = nn.Dropout(0.25), nn.Dropout(0.5)
        self.fc1, self.fc2 = nn.Linear(9216, 128), nn.Linear(128, 10)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.conv2(F.relu(self.conv1(x)))), 2)
        x = F.relu(self.fc1(torch.flatten(self.dropout1(x), 1)))
        return self.fc2(self.dropout2(x))


class Speedrun(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 16, 5), nn.Conv2d(16, 32, 3)
        self.fc1, self.fc2 = nn.Linear(800, 128), nn.Linear(128, 10)

    def forward(self, x):
        x = F.relu(F.max_pool2d(self.conv1(x), 2))
        x = F.relu(F.max_pool2d(self.conv2(x), 2))
        return self.fc2(F.relu(self.fc1(torch.flatten(x, 1))))


MODELS = {"mlp": MLP, "cnn": CNN, "speedrun": Speedrun}
POOLED = {"mlp": [], "cnn": ["conv2"], "speedrun": ["conv1", "conv2"]}  # a pool follows
RUNS = {
    "mlp": {
        "sgd": lambda p: torch.optim.SGD(p, 0.05, momentum=0.9),
        "nesterov": lambda p: torch.optim.SGD(
            p, 0.05, momentum=0.9, nesterov=True, weight_decay=0.01
        ),
        "adam": lambda p: torch.optim.Adam(p, 0.001),
        "adam_decay": lambda p: torch.optim.Adam(p, 0.001, weight_decay=0.01),
        "adam_betas": lambda p: torch.optim.Adam(p, 0.001, betas=(0.7, 0.9)),
        "adamw": lambda p: torch.optim.AdamW(p, 0.001),
        "adamw_betas": lambda p: torch.optim.AdamW(
            p, 0.005, betas=(0.7, 0.9), weight_decay=0.1
        ),
        "adadelta_decay": lambda p: torch.optim.Adadelta(p, 1.0, weight_decay=0.01),
        "clipped": lambda p: torch.optim.SGD(p, 0.05, momentum=0.9),
        "smoothed": lambda p: torch.optim.SGD(p, 0.05, momentum=0.9),
    },
    "cnn": {"adadelta": lambda p: torch.optim.Adadelta(p, 1.0)},
    "speedrun": {"momentum": lambda p: torch.optim.SGD(p, 0.05, momentum=0.9)},
}
CLIP_NORM = {"clipped": 1.5}  # of clip_grad_norm_: some of the ten steps have more, some less
LABEL_SMOOTHING = {"smoothed": 0.1}


def mt19937(seed):
    """The 32-bit stream of init_genrand(seed), as a function of how many numbers are wanted."""
    generator = np.random.RandomState(seed)._bit_generator
    return lambda count: generator.random_raw(count).astype(np.uint64)


def fnv1a(data):
    value = 0xCBF29CE484222325
    for byte in data:
        value = (value ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return f"{value:016x}"


def make_batch(stream, n):
    """Per image 784 pixels of two draws each (a grey value; shown only if the second draw's low two
    bits are 0), then one draw for the label."""
    pixels, labels = [], []
    for _ in range(n):
        draws = stream(784 * 2).reshape(784, 2)
        pixels.append(np.where(draws[:, 1] & 3 == 0, draws[:, 0] >> 24, 0))
        labels.append(int(stream(1)[0]) % 10)
    grey = np.array(pixels).astype(np.float32)
    x = (grey / np.float32(255) - np.float32(0.1307)) / np.float32(0.3081)
    assert np.array_equal(x, ((torch.from_numpy(grey) / 255 - 0.1307) / 0.3081).numpy())
    return torch.from_numpy(x).reshape(n, 1, 28, 28), torch.tensor(labels)


def dropout_mask(stream, count, p):
    draws = stream(count * 2).reshape(count, 2)
    bits = (draws[:, 0] << np.uint64(32) | draws[:, 1]) & np.uint64((1 << 53) - 1)
    return bits.astype(np.float64) * 2.0**-53 < 1 - p


def masks_of(seed, n):
    stream = mt19937(seed)
    return dropout_mask(stream, n * 64 * 12 * 12, 0.25), dropout_mask(stream, n * 128, 0.5)


def check_masks(model, x, seed):
    """The masks that the recipe gives are those that the model really used."""
    seen = []
    hooks = [
        layer.register_forward_hook(lambda layer, into, out: seen.append((into[0], out)))
        for layer in (model.dropout1, model.dropout2)
    ]
    torch.manual_seed(seed)
    model(x)
    for hook in hooks:
        hook.remove()
    for (into, out), keep, p in zip(seen, masks_of(seed, len(x)), (0.25, 0.5)):
        scale = torch.from_numpy(keep.astype(np.float32)).reshape(into.shape) / (1 - p)
        assert torch.equal(into * scale, out)
    torch.manual_seed(seed)
    for keep, p in zip(masks_of(seed, len(x)), (0.25, 0.5)):
        assert np.array_equal(F.dropout(torch.ones(keep.size), p).numpy() != 0, keep)


def pairs(values):
    values = np.asarray(values, np.float64)
    high = values.astype(np.float32)
    return np.stack([high, (values - high).astype(np.float32)], axis=-1)


def describe(tensor):
    """Norm, sum and four dot products with signs (pairs), and every so-many-th element."""
    flat = tensor.detach().numpy().reshape(-1)
    wide = flat.astype(np.float64)
    draws = mt19937(SIGN_SEED)(flat.size)
    dots = [np.dot(wide, 1.0 - 2.0 * (draws >> np.uint64(28 + v) & 1)) for v in range(4)]
    stride = -(-flat.size // SAMPLE) | 1  # odd: not the same column of every row
    return pairs([np.linalg.norm(wide), wide.sum(), *dots]), flat[::stride].copy()


def new_model(kind, seed):
    torch.manual_seed(seed)
    return MODELS[kind]()


def forward(model, kind, x, mask_seed):
    torch.manual_seed(mask_seed)
    return model(x)


def put(out, prefix, named):
    for name, tensor in named:
        out[f"{prefix}/{name}/stats"], out[f"{prefix}/{name}/sample"] = describe(tensor)


def initial(kind, out, metadata):
    for seed in INIT_SEEDS:
        for name, parameter in new_model(kind, seed).named_parameters():
            values = parameter.detach().numpy()
            metadata[f"init/{seed}/{name}"] = fnv1a(values.astype("<f4").tobytes())
            out[f"init/{seed}/{name}"] = values.reshape(-1)[:4].copy()


def margins(model, kind, x, mask_seed):
    """How near the net is to the kinks of ReLU and max-pooling, relative to the layer's rms:
    rounding errors smaller than this choose the same branches. Per layer: the smallest |z|, or the
    smallest gap between the best two of a pooling window (neither negative nor equal)."""
    found = []
    with torch.no_grad():
        x = x.double()
        for layer in [m for m in model.double().children() if not isinstance(m, nn.Dropout)][:-1]:
            z = layer(x.flatten(1) if isinstance(layer, nn.Linear) else x)
            rms = z.square().mean().sqrt()
            if layer in [getattr(model, name) for name in POOLED[kind]]:
                windows = F.relu(z).unfold(2, 2, 2).unfold(3, 2, 2).flatten(4)
                best = windows.topk(2, dim=-1).values
                gap = best[..., 0] - best[..., 1]
                found += [(gap[gap > 1e-12].min() / rms).item()]
                x = F.max_pool2d(F.relu(z), 2)
                if kind == "cnn":
                    keep = masks_of(mask_seed, len(x))[0].astype(np.float64)
                    x = x * torch.from_numpy(keep).reshape(x.shape) / 0.75
            else:
                found += [(z.abs().min() / rms).item()]
                x = F.relu(z)
    return found


def gradients(kind, out, metadata):
    x, y = make_batch(mt19937(INPUT_SEED), BATCH)
    for seed in GRADIENT_SEEDS:
        model = new_model(kind, seed)
        if kind == "cnn":
            check_masks(model, x, seed)
            for name, keep in zip(("dropout1", "dropout2"), masks_of(seed, BATCH)):
                metadata[f"mask/{seed}/{name}"] = fnv1a(keep.astype(np.uint8).tobytes())
        logits = forward(model, kind, x, seed)
        loss = F.cross_entropy(logits, y)
        loss.backward()
        prefix = f"grad/{seed}"
        out[f"{prefix}/logits"] = logits.detach().numpy()
        out[f"{prefix}/loss"] = pairs([loss.item()])
        put(out, prefix, [(n, p.grad) for n, p in model.named_parameters()])
        model.eval()
        with torch.no_grad():
            out[f"{prefix}/eval_logits"] = model(x).numpy()
        wide = new_model(kind, seed).double()
        F.cross_entropy(forward_masked(wide, kind, x.double(), seed), y).backward()
        print(f"{kind} gradients, seed {seed}: loss {loss.item():.6f}; off float64's by")
        both = zip(model.named_parameters(), wide.parameters())
        report([(n, p.grad, q.grad) for (n, p), q in both])
        near = margins(model, kind, x, seed)
        print("  margins " + " ".join(f"{m:.1e}" for m in near))
        assert min(near) > MARGIN


def forward_masked(model, kind, x, mask_seed):
    """Forward with the masks of a float32 run, for a float64 model."""
    if kind != "cnn":
        return model(x)
    keep = [torch.from_numpy(m.astype(np.float64)) for m in masks_of(mask_seed, len(x))]
    x = F.max_pool2d(F.relu(model.conv2(F.relu(model.conv1(x)))), 2).flatten(1)
    x = F.relu(model.fc1(x * keep[0].reshape(x.shape) / 0.75))
    return model.fc2(x * keep[1].reshape(x.shape) / 0.5)


def report(triples):
    line = [f"{n} {((p - q).norm() / q.norm()).item():.1e}" for n, p, q in triples]
    print("  " + ", ".join(line))


def train(kind, run, wide):
    """Losses, norms of the gradients (of a run that clips them) and the parameters before and after
    ten steps, in float32 or (`wide`) float64."""
    stream = mt19937(INPUT_SEED)
    model = new_model(kind, TRAIN_SEEDS[kind])
    if wide:
        model = model.double()
    before = [p.detach().clone() for p in model.parameters()]
    optimizer = RUNS[kind][run](model.parameters())
    losses, norms = [], []
    for step in range(STEPS):
        x, y = make_batch(stream, RUN_BATCH[kind])
        optimizer.zero_grad(set_to_none=True)
        if wide:
            if POOLED[kind]:
                assert min(margins(model, kind, x, MASK_SEED + step)) > RUN_MARGIN
            logits = forward_masked(model, kind, x.double(), MASK_SEED + step)
        else:
            logits = forward(model, kind, x, MASK_SEED + step)
        loss = F.cross_entropy(logits, y, label_smoothing=LABEL_SMOOTHING.get(run, 0.0))
        loss.backward()
        if run in CLIP_NORM:
            norm = nn.utils.clip_grad_norm_(model.parameters(), CLIP_NORM[run])
            norms.append(norm.item())
        optimizer.step()
        losses.append(loss.item())
    return losses, norms, before, model


def training(kind, out):
    for run in RUNS[kind]:
        losses, norms, before, model = train(kind, run, wide=False)
        out[f"train/{run}/loss"] = pairs(losses)
        if norms:
            out[f"train/{run}/norm"] = pairs(norms)
            print("  norms " + " ".join(f"{norm:.3f}" for norm in norms))
        put(out, f"train/{run}", list(model.named_parameters()))
        wide_losses, _, wide_before, wide = train(kind, run, wide=True)
        print(f"{kind} {run}: loss {losses[0]:.6f} .. {losses[-1]:.6f}; off float64's by")
        print("  losses " + " ".join(f"{abs(a - b):.0e}" for a, b in zip(losses, wide_losses)))
        with torch.no_grad():
            moved = zip(model.named_parameters(), before, wide.parameters(), wide_before)
            report([(n, p - b, q - c) for (n, p), b, q, c in moved])


def save(path, tensors, metadata):
    """A safetensors file; unlike the library's, the same bytes every time."""
    header, at = {"__metadata__": metadata}, 0
    data = {name: np.ascontiguousarray(tensors[name], "<f4").tobytes() for name in sorted(tensors)}
    for name, block in data.items():
        header[name] = {"dtype": "F32", "shape": list(np.shape(tensors[name]))}
        header[name]["data_offsets"] = [at, at + len(block)]
        at += len(block)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(data.values()))


def main():
    torch.set_num_threads(1)
    for kind in MODELS:
        out, metadata = {}, {"format": "pt", "torch": torch.__version__}
        initial(kind, out, metadata)
        gradients(kind, out, metadata)
        training(kind, out)
        path = FOLDER / f"{kind}.safetensors"
        save(path, out, metadata)
        print(f"{path}: {path.stat().st_size} bytes, torch {torch.__version__}")


if __name__ == "__main__":
    main()
