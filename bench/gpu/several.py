"""The stage gpus: what only several GPUs of one machine can show, over NCCL."""
import hashlib
import json
import os
import re

from stages import Failed, SkipStage, Step, accuracy_of, run_trainer, speed_of, train
from training import MODEL_FLAGS, reason_not_to_count

OPERATIONS = ["all-reduce", "broadcast", "reduce", "all-gather", "reduce-scatter", "gather",
              "scatter", "all-to-all", "send-recv", "barrier"]
SHORT = ["--model", "cnn", "--limit", "16384", "--epochs", "2"]


def one_gpu():
    raise SkipStage("one GPU here")


def several(check):
    if check.gpus < 2:
        yield Step("ranks", 1, lambda limit: one_gpu())
        return
    yield Step("nccl_chooses", 60, lambda limit: what_nccl_chooses(check, limit), ranks=check.gpus)
    counts = sorted({2, check.gpus})
    bits = SameBits(check)
    for ranks in counts:
        for again in SameBits.AGAIN:
            yield Step("same_bits", 90, lambda limit, n=ranks, a=again: bits.compare(limit, n, a),
                       ranks=ranks, again=again)
    for ranks in counts:
        for model in MODEL_FLAGS:
            for loading in ("LAZY", "EAGER"):
                yield Step("data_parallel", 120, lambda limit, n=ranks, m=model, k=loading:
                           data_parallel(check, limit, n, m, k), replicas=ranks, model=model,
                           module_loading=loading)
    for fault, code in (("kill", 137), ("stop", 110)):
        yield Step("failures", 60, lambda limit, f=fault, c=code: failure(check, limit, f, c),
                   ranks=check.gpus, fault=fault, exit_code=code)
    for name in OPERATIONS:
        yield Step("operations", 90, lambda limit, n=name: operation(check, limit, n),
                   ranks=check.gpus, operation=name)
    doubled = [n for n in (1, 2, 4, 8, 16) if n <= check.gpus]
    for model in MODEL_FLAGS:
        for batch in (64, 512):
            for ranks in sorted({*doubled, check.gpus}):
                yield Step("scaling", 60, lambda limit, m=model, b=batch, n=ranks:
                           scaling(check, limit, m, b, n), model=model, precision="bf16",
                           batch_per_rank=batch, ranks=ranks)


def over_nccl(ranks):
    return ["--backend", "nccl", "--nproc-per-node", str(ranks)]


def what_nccl_chooses(check, limit_s):
    """A row per size of message: NCCL's own word for the algorithm and protocol. NVLS, which sums in
    no fixed order, must not be among them."""
    env = dict(os.environ, NCCL_DEBUG="INFO", NCCL_DEBUG_SUBSYS="INIT,TUNING")
    result = train(check, limit_s, [*SHORT, *over_nccl(check.gpus)], env)
    chosen = re.findall(r"(\w+): (\d+) Bytes -> Algo (\S+) proto (\S+)", result["said"])
    about = result.get("nccl") or {}
    rows = [dict(table="nccl_chooses", ranks=check.gpus, collective=c, bytes=int(b), algorithm=a,
                 protocol=p, result="failed: sums in no fixed order" if "NVLS" in a else "measured")
            for c, b, a, p in sorted(set(chosen))]
    return rows + [dict(table="nccl_chooses", ranks=check.gpus, result="measured", **about)]


class SameBits:
    """Whether the same command leaves the same weights: again, without graphs, and resumed. With
    --nccl-nvls nobody promises it; what is seen is noted."""

    AGAIN = ("", "--no-cuda-graph", "resumed", "--nccl-nvls", "--nccl-nvls twice")

    def __init__(self, check):
        self.check, self.seen = check, {}

    def weights(self, end, ranks, flags, resumed=False):
        check, flags = self.check, [*SHORT, *over_nccl(ranks), *flags]
        if resumed:
            train(check, end - check.now(), [*flags, "--epochs", "1"])
            flags += ["--resume"]
        result = train(check, end - check.now(), flags, fresh=not resumed)
        model = result["folder"] / "model.safetensors"
        return hashlib.sha256(model.read_bytes()).hexdigest()[:16]

    def compare(self, limit_s, ranks, again):
        end = self.check.now() + limit_s
        nvls = ["--nccl-nvls"] if "nvls" in again else []
        first = (ranks, "twice" in again)
        if first not in self.seen:
            self.seen[first] = self.weights(end, ranks, nvls if "twice" in again else [])
        flags = nvls or ([again] if again.startswith("--") else [])
        weights = self.weights(end, ranks, flags, again == "resumed")
        fields = {"sha256": weights, "as_before": weights == self.seen[first]}
        if nvls:
            return dict(fields, result="measured")
        if weights != self.seen[first]:
            raise Failed(f"other bits than before ({self.seen[first]})", [fields])
        return fields


def data_parallel(check, limit_s, replicas, model, loading):
    """One process for all GPUs: what hangs here may hang on a lock of the driver's."""
    devices = ",".join(map(str, range(replicas)))
    flags = ["--epochs", "1", "--mode", "dp", "--devices", devices, "--no-save-model"]
    result = train(check, limit_s, MODEL_FLAGS[model] + flags,
                   dict(os.environ, CUDA_MODULE_LOADING=loading))
    fields = {"accuracy_%": accuracy_of(result), "images_per_s": result["images_per_s"],
              "backend": result["backend"]}
    wrong = reason_not_to_count(result)
    if wrong:
        raise Failed(wrong, [fields])
    return fields


def failure(check, limit_s, fault, code):
    """A rank that dies or stops while a graph with collectives is replayed: the others must end,
    and say which it was."""
    flags = ["--batch-size", "16", "--timeout", "5", "--inject", f"{fault}:rank=1,step=6",
             "--no-save-model"]
    _, done = run_trainer(check, limit_s, SHORT + over_nccl(check.gpus) + flags)
    fields = {"seconds": round(done.seconds, 1), "names_rank_1": "rank 1" in done.output}
    if done.code != code or not fields["names_rank_1"]:
        raise Failed(done.word or "exit code 0", [fields])
    return fields


def operation(check, limit_s, name):
    """In place, as gradients are summed; out of place what is only so."""
    done = check.run([check.build / "mnist_ddp", "bench", name, "--device", "cuda",
                      "--json", "--quiet", "-b", "64K", "-e", "64M", *over_nccl(check.gpus)],
                     limit_s)
    check.need(done)
    answer = json.loads(next(line for line in done.output.splitlines() if line.startswith("{")))
    timed = [(row, row["in_place"] or row["out_of_place"]) for row in answer["rows"]]
    return [dict(table=name.replace("-", "_"), ranks=check.gpus, bytes=row["bytes"],
                 time_us=way["time_us"], busbw_gb_per_s=way["busbw"],
                 result="failed: wrong results" if way["wrong"] else "measured")
            for row, way in timed]


def scaling(check, limit_s, model, batch, ranks):
    result = speed_of(check, limit_s, model, "bf16", batch,
                      flags=over_nccl(ranks) if ranks > 1 else [])
    speed, alone = result["images_per_s"], None
    for row in check.record.rows("gpus"):
        if row["step"] == f"scaling {model} bf16 {batch} 1":
            alone = row.get("images_per_s")
    return {"images_per_s": speed, "accuracy_%": accuracy_of(result), "result": "measured",
            "of_linear_%": round(100 * speed / ranks / alone) if alone else None}
