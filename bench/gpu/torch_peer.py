#!/usr/bin/env python3
"""PyTorch training MNIST on one GPU: the peer of 'make gpu-check', in one process.

Reads requests from stdin, one a line, "MODEL BATCH PRECISION MODE EPOCHS" (mlp|cnn, N,
f32|tf32|bf16|fp16, eager|compiled), and answers each with one JSON line. The first line that it
prints says what it is: {"ready": true, ...} or {"ready": false, "reason": ...}.

The fastest that a PyTorch user would reasonably write: the normalised data set on the GPU, batches
by index_select in an order drawn there, no DataLoader; the faster of the two memory formats for an
eager CNN, sgd fused; compiled: model with loss and optimizer step by
torch.compile(mode="reduce-overhead"). cuDNN's benchmark mode is torch's default, off, or on with
--tune; for a whole process, as torch keeps the engine that it took first. A trainer is kept between
requests, so that only its first pays for warming up and compiling, and goes on training.
"""
import argparse
import json
import math
import os
import pathlib
import sys
import time

sys.path.insert(1, str(pathlib.Path(__file__).resolve().parents[1] / "peers"))
try:
    import torch
    from torch.nn import functional
    from torch_ddp_mnist import CNN, MLP, load
except ImportError as missing:
    print(json.dumps({"ready": False, "reason": f"python3 has no {missing.name}"}), flush=True)
    sys.exit(0)


def read_split(folder, split, limit, device):
    x, y = load(folder, split)
    return x[:limit].to(device), y[:limit].to(device)


def set_tf32(on):
    torch.backends.cuda.matmul.allow_tf32 = on
    torch.backends.cudnn.allow_tf32 = on


def compile_exactly(function):
    """For the shapes at hand. All trainers share their code, so its number of versions is raised:
    past the limit torch would go on eagerly and say nothing."""
    config = torch._dynamo.config
    for name in ("recompile_limit", "accumulated_recompile_limit"):
        setattr(config, name, 1000)
    return torch.compile(function, mode="reduce-overhead", dynamic=False)


class Trainer:
    """One model with its optimizer, as one of the measured settings wants them."""

    def __init__(self, a, data, model, batch, precision, mode, channels_last):
        self.device, self.data, self.batch = torch.device(a.device), data, batch
        self.half = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(precision)
        torch.manual_seed(1)
        net = (MLP() if model == "mlp" else CNN()).to(self.device)
        self.net = net.to(memory_format=torch.channels_last) if channels_last else net
        self.compiled = mode == "compiled"
        self.optimizer = self.make_optimizer(model)
        # fp16 gradients are scaled, as ours are.
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=precision == "fp16")
        self.forward, self.update = self.loss_of, self.optimizer.step
        if self.compiled:
            self.forward = compile_exactly(self.loss_of)
            if precision != "fp16":  # GradScaler drives the optimizer itself
                self.update = compile_exactly(self.optimizer.step)
        self.layout = "channels_last" if channels_last else "contiguous"
        self.loss = torch.zeros((), device=self.device)

    def make_optimizer(self, model):
        parameters, cuda = self.net.parameters(), self.device.type == "cuda"
        if model == "mlp":
            fused = {"fused": True} if cuda and not self.compiled else {}
            return torch.optim.SGD(parameters, 0.1, momentum=0.9, **fused)
        return torch.optim.Adadelta(parameters, 1.0, capturable=cuda and self.compiled)

    def loss_of(self, x, y):
        with torch.autocast(self.device.type, self.half or torch.bfloat16,
                            enabled=self.half is not None):
            return functional.cross_entropy(self.net(x), y)

    def step(self, index):
        x, y = (part.index_select(0, index) for part in self.data["train"])
        if self.compiled:
            torch.compiler.cudagraph_mark_step_begin()
        self.optimizer.zero_grad(set_to_none=True)
        loss = self.forward(x, y)
        if self.scaler.is_enabled():
            self.scaler.scale(loss).backward()
            self.scaler.step(self.optimizer)
            self.scaler.update()
        else:
            loss.backward()
            self.update()
        return loss

    def wait(self):
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def epoch(self):
        self.net.train()
        self.wait()
        begun = time.perf_counter()
        order = torch.randperm(len(self.data["train"][1]), device=self.device)
        for index in order.split(self.batch):
            loss = self.step(index)
        self.wait()
        elapsed_s = time.perf_counter() - begun
        self.loss = loss.detach().clone()
        return elapsed_s

    @torch.no_grad()
    def accuracy(self):
        self.net.eval()
        x, y = self.data["test"]
        hits = sum((self.net(x[i:i + 1000]).argmax(1) == y[i:i + 1000]).sum()
                   for i in range(0, len(y), 1000))
        return hits.item() / len(y)

    def measure(self, epochs):
        seconds = [self.epoch() for _ in range(epochs)]
        return {"images_per_s": round(len(self.data["train"][1]) / min(seconds)),
                "train_s": [round(s, 6) for s in seconds], "test_acc": self.accuracy(),
                "last_loss": round(self.loss.item(), 4), "layout": self.layout,
                "optimizer": "compiled" if self.update != self.optimizer.step else "eager"}


def trainer_for(a, data, model, batch, precision, mode):
    """The faster memory format of two where it matters: by the second epoch of each."""
    choices = [False, True] if (model, mode) == ("cnn", "eager") else [False]
    trainers = [Trainer(a, data, model, batch, precision, mode, last) for last in choices]
    if len(trainers) == 1:
        return trainers[0]
    return min(trainers, key=lambda trainer: [trainer.epoch(), trainer.epoch()][1])


def answer(a, data, kept, line):
    model, batch, precision, mode, epochs = line.split()
    key = (model, int(batch), precision, mode)
    set_tf32(precision == "tf32")
    if key not in kept:
        kept[key] = trainer_for(a, data, *key)
    trainer = kept[key]
    try:
        return trainer.measure(int(epochs))
    except Exception as error:  # a compiled optimizer that this version cannot record
        if trainer.update == trainer.optimizer.step:
            raise
        print(f"torch_peer: optimizer goes on eagerly: {error}", file=sys.stderr)
        trainer.update = trainer.optimizer.step
        return trainer.measure(int(epochs))


def main():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--data", required=True, help="folder of MNIST's four files")
    p.add_argument("--limit", type=int, default=57344, help="images per epoch")
    p.add_argument("--device", default="cuda")
    p.add_argument("--tune", action="store_true", help="let cuDNN time its engines")
    a = p.parse_args()
    if a.device == "cuda" and not torch.cuda.is_available():
        print(json.dumps({"ready": False, "reason": "python3's torch sees no GPU"}), flush=True)
        return
    # Answers alone go to stdout, whatever a library prints.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    torch.backends.cudnn.benchmark = a.tune
    data = {"train": read_split(a.data, "train", a.limit, a.device),
            "test": read_split(a.data, "t10k", 10000, a.device)}
    print(json.dumps({"ready": True, "torch": torch.__version__, "cuda": torch.version.cuda,
                      "cudnn": torch.backends.cudnn.version(), "benchmark": a.tune}),
          flush=True, file=answers)
    kept = {}
    for line in sys.stdin:
        try:
            result = answer(a, data, kept, line)
            if not math.isfinite(result["last_loss"]):
                result["last_loss"] = str(result["last_loss"])  # JSON knows no NaN
        except Exception as error:
            text = " ".join(str(error).split())[:200].replace('"', "'")
            result = {"failed": f"{type(error).__name__}: {text}"}
        print(json.dumps(result), flush=True, file=answers)


if __name__ == "__main__":
    main()
