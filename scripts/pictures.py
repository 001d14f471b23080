#!/usr/bin/env python3
"""Makes the pictures of README.md, docs/images/, from runs of the program on this machine.

    scripts/pictures.py [BUILD]       the build folder (default: build)

run.svg is a terminal in which a run was recorded; it plays in a browser, and stands at the last
screen elsewhere. report-light.png and report-dark.png are the page that another run left. Needs
MNIST in $MNIST_DDP_DATA, pyte (python3-pyte), Chromium and pngquant.
"""
import codecs
import html
import os
import pty
import select
import shutil
import struct
import subprocess
import sys
import tempfile
import termios
import time
from fcntl import ioctl
from pathlib import Path

import pyte

SOURCE = Path(__file__).resolve().parent.parent
IMAGES = SOURCE / "docs" / "images"
RUN = "mnist_ddp --nproc-per-node=2 --model mlp --epochs 3"
REPORTED = "mnist_ddp --nproc-per-node=2 --epochs 4 --run-dir runs/cnn"
COLUMNS, ROWS = 100, 13
FRAME_S = 0.2  # between two screens that are kept
HOLD_S = 4  # the last screen, before it plays again
PAGE = (1200, 2130)  # what the picture shows of the page, in pixels of it

FONT_SIZE, CHARACTER, LINE, MARGIN, BAR = 14, 8.43, 19, 14, 30
BACKGROUND, FOREGROUND = "#1c1f26", "#d8dee9"
COLOURS = {"green": "#98c379", "red": "#e06c75", "brown": "#e5c07b", "yellow": "#e5c07b",
           "blue": "#61afef", "magenta": "#c678dd", "cyan": "#56b6c2"}


def screen_rows(screen):
    """The screen as rows of (text, colour, bold) pieces, so that rows can be compared."""
    rows = []
    for y in range(screen.lines):
        pieces = []
        for x in range(screen.columns):
            char = screen.buffer[y][x]
            style = (char.fg, char.bold)
            if pieces and pieces[-1][1:] == style:
                pieces[-1] = (pieces[-1][0] + char.data, *style)
            else:
                pieces.append((char.data, *style))
        if pieces[-1][1:] == ("default", False):
            pieces[-1] = (pieces[-1][0].rstrip(), "default", False)
        rows.append(tuple(piece for piece in pieces if piece[0]))
    return rows


def record(command, folder, environment):
    """Runs it in a terminal; its screens as [(seconds, rows)], and the time of its end."""
    screen = pyte.Screen(COLUMNS, ROWS)
    stream = pyte.Stream(screen)
    stream.feed(f"\x1b[32;1m$\x1b[0m {command}\r\n")
    frames = [(0, screen_rows(screen))]
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(folder)
        os.execvpe("sh", ["sh", "-c", f"sleep 0.5; exec {command}"], environment)
    ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    decoder = codecs.getincrementaldecoder("utf-8")()
    started = time.monotonic()
    while True:
        readable, _, _ = select.select([terminal], [], [], 120)
        try:
            data = os.read(terminal, 65536) if readable else b""
        except OSError:  # the end of a terminal
            data = b""
        if not data:
            break
        stream.feed(decoder.decode(data))
        now = time.monotonic() - started
        if now - frames[-1][0] >= FRAME_S:
            frames.append((now, screen_rows(screen)))
    if os.waitpid(pid, 0)[1] != 0:
        sys.exit(f"{command}: failed:\n" + "\n".join(screen.display))
    stream.feed("\x1b[32;1m$\x1b[0m ")
    frames.append((time.monotonic() - started, screen_rows(screen)))
    return frames


def intervals(frames):
    """What each row shows, and from when to when: [(y, pieces, begin, end)]."""
    end = frames[-1][0] + HOLD_S
    found = []
    for y in range(ROWS):
        shown = [(at, rows[y]) for at, rows in frames]
        begin = 0
        for i, (at, pieces) in enumerate(shown):
            until = shown[i + 1][0] if i + 1 < len(shown) else end
            if i + 1 < len(shown) and shown[i + 1][1] == pieces:
                continue
            if pieces:
                found.append((y, pieces, begin, until))
            begin = until
    return found, end


def row_text(y, pieces):
    spans = []
    for text, colour, bold in pieces:
        style = f' fill="{COLOURS[colour]}"' if colour in COLOURS else ""
        style += ' font-weight="bold"' if bold else ""
        text = html.escape(text)
        spans.append(f"<tspan{style}>{text}</tspan>" if style else text)
    return f'<text x="{MARGIN}" y="{BAR + (y + 1) * LINE}">{"".join(spans)}'


def make_svg(frames):
    width = round(COLUMNS * CHARACTER + 2 * MARGIN)
    height = BAR + ROWS * LINE + MARGIN
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" font-family="ui-monospace, SFMono-Regular, Menlo, '
        f'DejaVu Sans Mono, monospace" font-size="{FONT_SIZE}" fill="{FOREGROUND}">',
        "<title>a run in a terminal</title>",
        "<style>text{white-space:pre}</style>",
        f'<rect width="{width}" height="{height}" rx="8" fill="{BACKGROUND}"/>',
    ]
    for i, colour in enumerate(("#ff5f57", "#febc2e", "#28c840")):
        lines.append(f'<circle cx="{MARGIN + 6 + 20 * i}" cy="16" r="6" fill="{colour}"/>')
    found, end = intervals(frames)
    for y, pieces, begin, until in found:
        last = until == end
        play = ""
        if begin > 0 or not last:
            values = (["hidden"] if begin > 0 else []) + ["visible"] + ([] if last else ["hidden"])
            times = ([0] if begin > 0 else []) + [begin / end] + ([] if last else [until / end])
            play = (f'<animate attributeName="visibility" values="{";".join(values)}" keyTimes="'
                    f'{";".join(f"{t:.4g}" for t in times)}" calcMode="discrete" '
                    f'dur="{end:.1f}s" repeatCount="indefinite"/>')
        text = row_text(y, pieces)
        if not last:
            text = text.replace("<text ", '<text visibility="hidden" ', 1)
        lines.append(f"{text}{play}</text>")
    lines.append("</svg>\n")
    return "\n".join(lines)


def photograph(page, scheme, out, work):
    """The top of a page, by Chromium, with its colours reduced to 256."""
    scheme_number = {"dark": 0, "light": 1}[scheme]
    subprocess.run(
        ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
         f"--user-data-dir={work}/chromium", f"--window-size={PAGE[0]},{PAGE[1]}",
         f"--blink-settings=preferredColorScheme={scheme_number}",
         "--virtual-time-budget=2000", f"--screenshot={out}", page.as_uri()],
        check=True, stderr=subprocess.DEVNULL, timeout=60)
    subprocess.run(["pngquant", "--force", "--strip", "--speed", "1", "--output", out, "64", out],
                   check=True)


def main():
    build = Path(sys.argv[1] if len(sys.argv) > 1 else SOURCE / "build").resolve()
    data = os.environ.get("MNIST_DDP_DATA") or sys.exit("name MNIST's folder in MNIST_DDP_DATA")
    for program in ("chromium", "pngquant"):
        shutil.which(program) or sys.exit(f"needs {program}")
    IMAGES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        (work / "data" / "MNIST").mkdir(parents=True)
        (work / "data" / "MNIST" / "raw").symlink_to(Path(data).resolve())
        environment = {"PATH": f"{build}:{os.environ['PATH']}", "HOME": name, "LANG": "C.UTF-8",
                       "TERM": "xterm-256color"}
        (IMAGES / "run.svg").write_text(make_svg(record(RUN, work, environment)))
        subprocess.run(REPORTED.split(), cwd=work, env=environment, check=True,
                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for scheme in ("light", "dark"):
            photograph(work / "runs" / "cnn" / "report.html", scheme,
                       IMAGES / f"report-{scheme}.png", work)
    for picture in sorted(IMAGES.iterdir()):
        print(f"{picture.relative_to(SOURCE)}: {picture.stat().st_size} bytes")


main()
