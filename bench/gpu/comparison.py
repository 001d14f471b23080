"""The stages torch and compiled: pairs of a run of ours and one of PyTorch's, one after the other,
so that a slow moment hits both. Tables: eager and compiled with cuDNN's first choice on both sides;
tuned is eager with cuDNN's engines timed by both, which matters to convolutions only."""
import json
import os
import select
import statistics
import subprocess
import sys

import program
from stages import (BATCHES, EPOCHS, Failed, IMAGES, PEAK_GOAL, QUICK_PRECISIONS, SPEED_PRECISIONS,
                    SkipStage, Step, by_library_alone, chosen_by, judged, peak_share, speed_of)
from training import reason_not_to_count


class Peer:
    """torch_peer.py, which keeps its models between requests. One per table: PyTorch keeps the
    engine that it chose first for a convolution."""

    def __init__(self, check, table, limit_s):
        self.check, self.table, self.begun = check, table, check.now()
        with open(check.folder / f"{check.stage}.log", "ab") as log:
            self.child = program.start(
                [os.environ.get("PYTHON", sys.executable), "bench/gpu/torch_peer.py", "--data",
                 os.environ["MNIST_DDP_DATA"], "--limit", IMAGES,
                 *(["--tune"] if table == "tuned" else [])],
                check.seconds_left() + 2 * program.GRACE_S, stdin=subprocess.PIPE,
                stdout=subprocess.PIPE, stderr=log)
        self.begun_line = b""
        self.about = self.answer(limit_s)
        if not self.about.get("ready"):
            self.close()
            raise SkipStage(self.about.get("reason", "the peer does not say that it is ready"))

    def ask(self, limit_s, *request):
        try:
            self.child.stdin.write((" ".join(map(str, request)) + "\n").encode())
            self.child.stdin.flush()
        except BrokenPipeError:
            pass  # its end is told of below
        answer = self.answer(limit_s)
        if "failed" in answer:
            raise Failed(f"torch: {answer['failed']}")
        wrong = reason_not_to_count(answer)
        if wrong:
            raise Failed(f"torch's run does not count: {wrong}")
        return answer

    def answer(self, limit_s):
        """The next line, which must be JSON; a peer that has none is closed."""
        end = self.check.now() + limit_s
        out = self.child.stdout
        why = None
        while b"\n" not in self.begun_line and why is None:
            if not select.select([out], [], [], max(0, end - self.check.now()))[0]:
                why = f"no answer from torch after {limit_s:.0f} s"
                continue
            part = os.read(out.fileno(), 65536)
            self.begun_line += part
            if not part:
                why = "torch's process ended"
        line, _, self.begun_line = self.begun_line.partition(b"\n")
        if why is None:
            try:
                answer = json.loads(line)
                if isinstance(answer, dict):
                    return answer
            except ValueError:
                pass
            why = "torch's answer is no JSON object: " + repr(line[:80])
        self.close()
        raise Failed(why)

    def close(self):
        program.end(self.child)
        self.table = None
        seconds = self.check.now() - self.begun
        ended = program.Ended(self.child.poll(), seconds, seconds + 1, "")
        self.check.record.log(self.check.stage, "torch_peer.py", ended)


class Comparison:
    def __init__(self, check):
        self.check, self.peer = check, None

    def close(self):
        if self.peer is not None and self.peer.table is not None:
            self.peer.close()

    def peer_for(self, table, limit_s):
        if self.peer is None or self.peer.table != table:
            self.close()
            self.peer = Peer(self.check, table, limit_s)
        return self.peer

    def pairs(self, limit_s, table, model, precision, batch):
        check, end = self.check, self.check.now() + limit_s
        peer = self.peer_for(table, limit_s)
        env = dict(os.environ, MNIST_DDP_CUDA_AUTOTUNE="8" if table == "tuned" else "1")
        ours, theirs = [], []
        for _ in range(check.pairs):
            mine = speed_of(check, end - check.now(), model, precision, batch, env)
            answer = peer.ask(end - check.now(), model, batch, precision,
                              "compiled" if table == "compiled" else "eager", EPOCHS[batch])
            ours.append(mine["images_per_s"])
            theirs.append(answer["images_per_s"])
        ratios = [round(mine / torch, 2) for mine, torch in zip(ours, theirs)]
        fields = {"ours_images_per_s": statistics.median(ours),
                  "torch_images_per_s": statistics.median(theirs),
                  "ratio": statistics.median(ratios), "ratios": " ".join(map(str, ratios)),
                  "of_peak_%": peak_share(check, model, precision, statistics.median(ours))}
        if by_library_alone(precision, batch):
            fields.update(goal=f"{PEAK_GOAL} % of peak", **judged(fields["of_peak_%"], PEAK_GOAL))
        else:
            goal = 1 if table == "compiled" else {64: 3, 512: 2, 4096: 1.3}[batch]
            fields.update(goal=goal, **judged(fields["ratio"], goal))
        about = peer.about
        return dict(fields, **chosen_by(mine), torch_layout=answer.get("layout"),
                    torch_optimizer=answer.get("optimizer"),
                    peer=f"torch {about['torch']}, CUDA {about['cuda']}, cuDNN {about['cudnn']}")


def steps(comparison, quick, *tables):
    for table in tables:
        for precision in QUICK_PRECISIONS if quick else SPEED_PRECISIONS:
            for model in ["cnn"] if table == "tuned" else ["mlp", "cnn"]:
                for batch in BATCHES:
                    setting = (table, model, precision, batch)
                    yield Step(table, 150 if table == "compiled" else 75,
                               lambda limit, s=setting: comparison.pairs(limit, *s),
                               model=model, precision=precision, batch=batch)
