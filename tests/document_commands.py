#!/usr/bin/env python3
"""Runs the commands of README.md, docs/*.md, docs/internals/*.md and docs/tutorial/*.md as they stand
there. Run by ctest as docs.commands.

A command is
- a block that begins with ```sh: bash runs it as one script, which ends at the first failure;
- `mnist_ddp ...` between backticks, in running text or in a table. If no flag or file follows, it
  names a command, whose help must be there.

Each document has a folder of its own, where its commands run in their order. In it lie bench/,
configs/ and scripts/ as here, the finished runs RUN, RUN1, RUN2, runs/a and runs/b, MNIST's files in DIR, a
train.py, and the drawing seven.png. Runs see 64 training and 20 test images, and have one epoch if
they do not say more. `make TARGET` is not run; the target must be there.

A comment before a block, or in the line of a text, says otherwise:

    <!-- sh: skip, needs two machines -->             it is not run, and counts as skipped
    <!-- sh: needs jq -->                             it is skipped if there is no such program,
                                                      or if a command of several words fails
    <!-- sh: MNIST_DDP_EPOCHS=1 MNIST_DDP_STEPS=2 --> with these in the environment
    <!-- sh: exit 110, MNIST_DDP_LIMIT=4000 -->       this exit code is right; several at once

In docs/tutorial/ and docs/for-pytorch-users.md a block that begins with ```text and follows one of
```sh is what that prints. Both are compared without what MASKS has. `...` stands for any words in a
line; alone, for any lines.

Arguments: words that a document's name or a command must hold, to run only those.
"""
import os
import re
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import zlib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from difflib import unified_diff
from pathlib import Path

SOURCE = Path(os.environ.get("SOURCE_DIR", Path(__file__).parent.parent)).resolve()
BUILD = Path(os.environ.get("BUILD_DIR", SOURCE / "build")).resolve()
TIMEOUT_S = 60
NAMES = re.compile(r"mnist_ddp( [a-z][a-z-]*)*")
MASKS = [(re.compile(pattern), name) for pattern, name in (  # another one each time, or elsewhere
    (r"\b\d{8}-\d{6}\b|\b\d{4}-\d\d-\d\d([T ][\d:.]+Z?)?", "DATE"),
    (r"\b\d+:\d\d(:\d\d)?(\.\d+)?\b|\b[\d.,]+ ?(ns|us|µs|ms|s|min)(?![\w/])", "TIME"),
    (r"\b[\d.,]+ ?(\w+/s|[KMG]?i?B/s|Gbit/s)", "RATE"),
    (r"\b(pid|process|PID)([ =:]) *\d+", "PID"),
    (r"(\bport[ =]|[\w.\]]:)\d{4,5}\b", r"\1PORT"),
    (r"/tmp/[^\s:,;'\")]+", "PATH"),
    (r"\b(loss|accuracy) [\d.]+%?( \(\d+/\d+\))?", r"\1 FIGURE"),  # the data set is another one
    (rf"\b{re.escape(socket.gethostname())}\b", "HOST"),
)]


@dataclass
class Note:
    """What a comment asks for."""

    skip: str = ""
    needs: str = ""
    code: int = 0
    environment: dict = field(default_factory=dict)


@dataclass
class Command:
    place: str  # README.md:8
    text: str
    note: Note
    output: list = None  # the lines that it prints, if the document has them


def read_note(place, text):
    note = Note()
    if text.startswith("skip, "):
        note.skip = text[len("skip, "):]
        return note
    for part in text.split(", "):
        word, _, value = part.partition(" ")
        if word == "exit":
            note.code = int(value)
        elif word == "needs":
            note.needs = value
        elif "=" in word:
            note.environment |= dict(setting.split("=", 1) for setting in part.split())
        else:
            sys.exit(f"{place}: '<!-- sh: {text} -->' is none of skip, needs, exit, NAME=VALUE")
    return note


def refuse_command(place, line):
    """No command is overlooked because of how its block begins."""
    if re.match(r" *(\$ )?(mnist_ddp [a-z-]|make [a-z])", line):
        sys.exit(f"{place}: a command: begin its block with ```sh (output: ```text)")


def find_commands(document):
    """The document's commands, in their order."""
    found = []
    note = Note()
    block = None  # its lines, if it is one of ours
    fence = None
    printing = None  # the command that is right above
    compared = document.parent.name == "tutorial" or document.name == "for-pytorch-users.md"
    for number, line in enumerate(document.read_text().splitlines(), 1):
        place = f"{document.relative_to(SOURCE)}:{number}"
        mark = re.match(r" *(```+)(\w*)", line)
        if mark and fence is None:
            fence = mark[1]
            kind = mark[2]
            block = [] if kind == "sh" else None
            if kind == "text" and printing:
                block = printing.output = []
            start = place
        elif fence is not None:
            if not (mark and mark[1] == fence):
                if block is not None:
                    block.append(line)
                elif kind != "text":
                    refuse_command(place, line)
                continue
            printing = None
            if kind == "sh":
                found.append(Command(start, "\n".join(block) + "\n", note))
                note = Note()
                printing = found[-1] if compared else None
            fence = None
        else:
            printing = None if line else printing
            if line.startswith("    "):
                refuse_command(place, line)
            comment = re.search(r"<!-- sh: (.*?) -->", line)
            if comment:
                note = read_note(place, comment[1])
            spans = re.findall(r"`((?:[A-Z_]+=\S+ )*mnist_ddp [^`]+)`", line)
            found += [Command(place, span + "\n", note) for span in spans]
            if spans or (line and not comment):
                note = Note()
    return found


def write_data(folder):
    """MNIST's four files: 60,000 training images, of which all but the first 64 are black."""
    folder.mkdir(parents=True)
    for stem, count, drawn in (("train", 60000, 64), ("t10k", 20, 20)):
        labels = bytes(i % 10 for i in range(count))
        with open(folder / f"{stem}-labels-idx1-ubyte", "wb") as file:
            file.write(struct.pack(">II", 0x801, count) + labels)
        with open(folder / f"{stem}-images-idx3-ubyte", "wb") as file:
            file.write(struct.pack(">IIII", 0x803, count, 28, 28))
            for label in labels[:drawn]:
                rows = [255 if label * 2 <= y < label * 2 + 8 else 0 for y in range(28)]
                file.write(bytes(value for value in rows for _ in range(28)))
            file.truncate(16 + count * 784)


def write_seven(path):
    """A seven, black on white: PNG, 8 bits of grey."""
    def ink(x, y):
        return y in (5, 6) and 7 <= x < 21 or 7 <= y < 23 and abs(x - (23 - y / 2)) < 1.5

    rows = [bytes(0 if ink(x, y) else 255 for x in range(28)) for y in range(28)]

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", 28, 28, 8, 0, 0, 0, 0)
    pixels = zlib.compress(b"".join(b"\0" + row for row in rows))
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", pixels) +
                     chunk(b"IEND", b""))


def write_programs(folder):
    """bin/: the program as it is called when it is installed, and a make that runs nothing."""
    folder.mkdir()
    (folder / "mnist_ddp").symlink_to(BUILD / "mnist_ddp")
    make = shutil.which("make")
    (folder / "make").write_text(f'#!/bin/sh\nexec {make} -n -C "{SOURCE}" "$@" >/dev/null\n')
    (folder / "make").chmod(0o755)


def environment_in(work):
    keep = {k: v for k, v in os.environ.items() if k in ("LANG", "LC_ALL", "ASAN_OPTIONS")}
    return keep | {
        "PATH": f"{work}/bin:{os.environ['PATH']}",
        "HOME": str(work),
        "XDG_CACHE_HOME": str(work / "cache"),
        "TMPDIR": str(work / "tmp"),
        "TERM": "dumb",
        "PAGER": "cat",
        "MNIST_DDP_DATA": str(work / "data"),
        "MNIST_DDP_LIMIT": "64",
        "MNIST_DDP_EPOCHS": "1",
        "MNIST_DDP_FAST": "1",
    }


def masked(lines):
    for pattern, name in MASKS:
        lines = [pattern.sub(name, line.rstrip()) for line in lines]
    return lines


def differences(expected, printed):
    """Lines of a diff, or none if what was printed is what the document has."""
    expected = masked(expected)
    printed = masked(printed.decode(errors="replace").strip("\n").splitlines())
    pattern = "".join(r"(.*\n)*?" if line.strip() == "..." else
                      re.escape(line).replace(r"\.\.\.", ".*") + r"\n" for line in expected)
    if re.fullmatch(pattern, "".join(line + "\n" for line in printed)):
        return []
    return list(unified_diff(expected, printed, "the document", "printed", lineterm="", n=1))


def last_lines(output):
    return output.decode(errors="replace").splitlines()[-15:]


def run(command, folder, environment):
    """What went wrong and lines to show, or None."""
    text = command.text
    if command.output is None and NAMES.fullmatch(text.strip()):
        text = text.replace("mnist_ddp", "mnist_ddp help")
    try:
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", text], cwd=folder, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=TIMEOUT_S,
            env=environment | command.note.environment)
    except subprocess.TimeoutExpired as late:
        return f"not finished after {TIMEOUT_S} s", last_lines(late.stdout or b"")
    if done.returncode != command.note.code:
        return f"exit code {done.returncode}, not {command.note.code}", last_lines(done.stdout)
    if command.output is not None and (lines := differences(command.output, done.stdout)):
        return "its output is another one", lines
    return None


def reason_to_skip(note):
    words = note.needs.split()
    if words and shutil.which(words[0]) is None:
        return f"no {words[0]} here"
    if words[1:] and subprocess.run(words, capture_output=True, check=False).returncode != 0:
        return f"not here: {note.needs}"
    return note.skip


def run_document(document, commands, work):
    """Runs them; the lines to print, and how many were run, skipped, failed."""
    folder = work / document.relative_to(SOURCE)
    folder.mkdir(parents=True)
    for name in ("bench", "configs", "scripts"):
        (folder / name).symlink_to(SOURCE / name)
    for name in ("RUN", "RUN1", "RUN2", "runs/a", "runs/b"):
        shutil.copytree(work / "RUN", folder / name)
    (folder / "DIR").symlink_to(work / "data")
    (folder / "train.py").write_text("import os\nprint('rank', os.environ['RANK'])\n")
    write_seven(folder / "seven.png")
    lines = []
    counts = {"run": 0, "skipped": 0, "failed": 0}
    for command in commands:
        shown = command.text.strip().splitlines()[0]
        reason = reason_to_skip(command.note)
        if reason:
            counts["skipped"] += 1
            lines.append(f"SKIP {command.place}: {reason}: {shown}")
            continue
        counts["run"] += 1
        failure = run(command, folder, environment_in(work))
        if failure:
            counts["failed"] += 1
            lines += [f"FAIL {command.place}: {failure[0]}:", command.text.rstrip(), *failure[1]]
    lines.append(f"{document.relative_to(SOURCE)}: " +
                 ", ".join(f"{n} {word}" for word, n in counts.items()))
    return lines, counts["failed"]


def main():
    documents = [SOURCE / "README.md", *sorted((SOURCE / "docs").glob("*.md")),
                 *sorted((SOURCE / "docs" / "internals").glob("*.md")),
                 *sorted((SOURCE / "docs" / "tutorial").glob("*.md"))]
    wanted = sys.argv[1:]
    plan = []
    for document in documents:
        commands = [c for c in find_commands(document)
                    if all(word in c.place + c.text for word in wanted)]
        if commands:
            plan.append((document, commands))
    failed = 0
    with tempfile.TemporaryDirectory(prefix="mnist_ddp-documents-") as name:
        work = Path(name)
        (work / "tmp").mkdir()
        write_data(work / "data")
        write_programs(work / "bin")
        subprocess.run(["mnist_ddp", "--run-dir", "RUN"],
                       cwd=work, env=environment_in(work), check=True, stdout=subprocess.DEVNULL)
        with ThreadPoolExecutor(2) as pool:
            for lines, failures in pool.map(lambda p: run_document(*p, work), plan):
                print("\n".join(lines), flush=True)
                failed += failures
    sys.exit(1 if failed else 0)


main()
