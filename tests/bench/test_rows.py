#!/usr/bin/env python3
"""What `make bench` runs and prints, without a run: bench/cpu/rows.py with a stand-in for programs."""
import json
import pathlib
import sys
import types
import unittest
from unittest import mock

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[1:1] = [str(ROOT / "bench"), str(ROOT / "bench/cpu")]
sys.dont_write_bytecode = True

import results  # noqa: E402
import rows  # noqa: E402

rows.mpi_program = lambda: None  # nothing is compiled here; there may be no build folder

RESULT = {"images_per_s": 100, "last_loss": 0.1, "test_acc": 0.97, "steps": 10, "setup_s": 0.1,
          "private_mib": 1, "rss_mib": 1, "system": "stand-in", "phases": {"forward": 0.5}}
PEAK = types.SimpleNamespace(of=lambda precision, cores: 100)
FAST = {"--channels-last", "--scan"}


class Rows(unittest.TestCase):
    def measure(self, name, times=2, trace=()):
        """The row's figures, and the commands that it ran."""
        commands = []

        def run(command, folder=None):
            words = [str(word) for word in command]
            commands.append(words)
            if "--trace" in words:
                pathlib.Path(words[words.index("--trace") + 1]).write_text(
                    json.dumps({"traceEvents": list(trace)}))
            speed = 200 if FAST & set(words) else 100
            return types.SimpleNamespace(output=json.dumps(RESULT | {"images_per_s": speed}))

        row = next(row for row in rows.all_rows() if row.name == name)
        with mock.patch.object(rows, "run", run), \
                mock.patch.object(rows, "takes_bf16", lambda: True), \
                mock.patch.object(rows.importlib.util, "find_spec", lambda name: name):
            return row.measure(times, PEAK), commands

    def peers(self, name):
        found, commands = self.measure(name)
        return found, [words for words in commands if any("bench/peers" in word for word in words)]

    def test_torch_has_channels_last_in_either_precision(self):
        for precision in ("fp32", "bf16"):
            found, peers = self.peers(f"cnn-{precision}-2")
            self.assertEqual([FAST & set(words) != set() for words in peers], [False, True, True])
            self.assertEqual(["--bf16" in words for words in peers], [precision == "bf16"] * 3)
            self.assertEqual(found["peer"], 200)
        self.assertEqual(len(self.peers("mlp-fp32-1")[1]), 2)

    def test_jax_is_a_peer_of_the_mlp_with_its_fastest_flags(self):
        found, peers = self.peers("mlp-fp32-1-jax")
        self.assertEqual((found["peer_is"], found["peer"], found["peer_flags"]),
                         ("jax", 200, "--scan"))
        self.assertTrue(all(any("jax_mnist.py" in word for word in words) for words in peers))

    def test_a_row_without_jax_is_skipped_with_the_reason(self):
        row = next(row for row in rows.all_rows() if row.name == "mlp-fp32-1-jax")
        with mock.patch.object(rows.importlib.util, "find_spec", lambda name: None):
            with self.assertRaisesRegex(rows.Skip, "no jax"):
                row.measure(1, PEAK)

    def test_ours_is_one_whole_epoch_and_a_peers_are_short(self):
        for name in ("cnn-fp32-1", "cnn-bf16-2", "mlp-fp32-2", "mlp-fp32-1-jax"):
            for words in self.measure(name)[1]:
                last = {words[i]: words[i + 1] for i in range(len(words) - 1)}
                whole = (last["--epochs"], last["--limit"]) == ("1", "60000")
                self.assertEqual(whole, not any("bench/peers" in word for word in words), words)
                self.assertNotEqual(last.get("--eval-every"), "0", "its accuracy is looked at")

    def test_shares_of_peak_are_of_the_dense_operations(self):
        found = {"cnn-fp32-1": self.measure("cnn-fp32-1")[0]}
        head = results.figures_table(found).splitlines()[0]
        self.assertIn("| share of peak, of the dense operations |", head)
        self.assertIn("| GFLOP/s of the dense operations |", head)
        spans = results.spans_tables({"cnn-step": {"spans": {"step": {
            "least_us": 1, "median_us": 2, "gflops": 3}}}})
        self.assertIn("| GFLOP/s of the dense operations |", spans)

    def test_zeros_are_told_by_step_and_layer(self):
        trace = [{"ph": "X", "pid": 0, "name": "step", "ts": 0, "args": {"step": 1}},
                 {"ph": "X", "pid": 0, "name": "fc1 forward", "ts": 1,
                  "args": {"nonzero_percent": 40}},
                 {"ph": "X", "pid": 1, "name": "fc1 forward", "ts": 2,
                  "args": {"nonzero_percent": 1}},
                 {"ph": "X", "pid": 0, "name": "fc1 backward", "ts": 3,
                  "args": {"nonzero_percent": 40}},
                 {"ph": "X", "pid": 0, "name": "conv_block backward", "ts": 4,
                  "args": {"nonzero_percent": 20}},
                 {"ph": "X", "pid": 0, "name": "step", "ts": 5, "args": {"step": 20}},
                 {"ph": "X", "pid": 0, "name": "conv_block backward", "ts": 6,
                  "args": {"nonzero_percent": 12}}]
        found = self.measure("cnn-zeros", 1, reversed(trace))[0]
        self.assertEqual(found["nonzero_percent"], {
            "fc1 forward": {"1": 40}, "conv_block backward": {"1": 20, "20": 12}})
        self.assertEqual(results.zeros_table({"cnn-zeros": found}).splitlines()[2:], [
            "| cnn: fc1 forward | 40 |  |", "| cnn: conv_block backward | 20 | 12 |", ""])
        self.assertEqual(results.figures_table({"cnn-zeros": found}), "")


unittest.main()
