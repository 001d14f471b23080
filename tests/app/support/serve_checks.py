"""What tests/app/test_serve.c asks of `mnist_ddp serve`: serve_checks.py CHECK [BROWSER]. Runs in a
folder with a trained model in runs/a and MNIST's files in data/."""
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time

from browser import Browser

PROGRAM = os.path.join(os.environ["BUILD_DIR"], "mnist_ddp")
WAIT_S = 30
SIDE, IMAGES = 28, "data/t10k-images-idx3-ubyte"


class Server:
    """A server that has printed its address."""

    def __init__(self, *words):
        self.errors = tempfile.TemporaryFile()
        self.process = subprocess.Popen([PROGRAM, "serve", *words], stdout=subprocess.PIPE,
                                        stderr=self.errors, text=True)
        self.url = self.process.stdout.readline().strip()
        match = re.fullmatch(r"http://(.+):(\d+)/", self.url)
        assert match, (self.url, self.process.communicate(), self.said())
        self.port = int(match[2])

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.end(signal.SIGTERM)

    def said(self):
        """What it has written to stderr so far. The file's position is the server's."""
        return os.pread(self.errors.fileno(), 1 << 20, 0).decode()

    def end(self, number):
        """Ends it by a signal: (seconds that it took, exit code, stdout, stderr)."""
        began = time.monotonic()
        self.process.send_signal(number)
        out, _ = self.process.communicate(timeout=WAIT_S)
        return time.monotonic() - began, self.process.returncode, out, self.said()

    def ask(self, method, path, body=None, headers=None):
        """(code, headers, body)"""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=WAIT_S)
        connection.request(method, path, body=body, headers=headers or {})
        answer = connection.getresponse()
        text = answer.read()
        connection.close()
        return answer.status, answer.headers, text

    def send(self, data):
        """The first line of the answer to these bytes."""
        with socket.create_connection(("127.0.0.1", self.port), WAIT_S) as connection:
            try:
                connection.sendall(data)
            except (BrokenPipeError, ConnectionResetError):
                pass  # it has answered before the end
            return connection.makefile("rb").readline().decode()


def pgm(pixels, width):
    return b"P5 %d %d 255\n" % (width, len(pixels) // width) + pixels


def image(index):
    with open(IMAGES, "rb") as file:
        file.seek(16 + index * SIDE * SIDE)
        return file.read(SIDE * SIDE)


def check_pages(server):
    code, headers, text = server.ask("GET", "/")
    assert code == 200 and b"<canvas" in text, code
    assert "default-src 'none'" in headers["Content-Security-Policy"]
    assert headers["X-Content-Type-Options"] == "nosniff" and headers["Cache-Control"] == "no-store"
    assert not [name for name in headers if name.lower().startswith("access-control")]
    needed = re.findall(rb'(?:src|href)="([^"]+)"', text)
    assert sorted(needed) == [b"/draw.js", b"/page.css", b"/page.js", b"/report.css",
                              b"data:,"], needed
    for path in ("/page.css", "/page.js", "/report.css", "/draw.js"):
        code, headers, text = server.ask("GET", path)
        assert code == 200 and b"http://" not in text.replace(b"http://www.w3.org/2000/svg", b"")
    for path in ("/none", "/runs/a/config.json", "/../../../../etc/passwd", "//etc/passwd",
                 "/page.js/", "/%2e%2e/%2e%2e/etc/passwd", "/watch/x", "/watch/x/-1", "/watch/x/y",
                 "/watch/" + "x" * 5000 + "/0", "/watch/../../etc/passwd/0x", "/examples/",
                 "/examples/99999999999999999999"):
        assert server.ask("GET", path)[0] == 404, path
    for method, path in (("PUT", "/"), ("DELETE", "/"), ("OPTIONS", "/predict"), ("POST", "/"),
                         ("GET", "/predict"), ("HEAD", "/"), ("BREW", "/")):
        assert server.ask(method, path)[0] == 405, (method, path)


def check_hosts(server):
    port = server.port
    for host, want in ((f"127.0.0.1:{port}", 200), (f"LOCALHOST:{port}", 200),
                       (f"[::1]:{port}", 200), (f"evil.example:{port}", 403), ("127.0.0.1", 403),
                       (f"127.0.0.1:{port + 1}", 403),
                       ("", 403), (f"127.0.0.1:{port}.evil.example", 403)):
        assert server.ask("GET", "/", headers={"Host": host})[0] == want, host
    assert " 403 " in server.send(b"GET / HTTP/1.0\r\n\r\n")


def check_bodies(server):
    large = b"x" * (2 << 20)
    head = b"POST /predict HTTP/1.1\r\nHost: 127.0.0.1:%d\r\n" % server.port
    assert " 413 " in server.send(head + b"Content-Length: %d\r\n\r\n" % len(large) + large[:100])
    chunks = b"%x\r\n" % len(large) + large + b"\r\n0\r\n\r\n"
    assert " 413 " in server.send(head + b"Transfer-Encoding: chunked\r\n\r\n" + chunks)
    assert server.send(b"nonsense\r\n\r\n")[9:12] in ("", "400")  # or it just hangs up
    for body, fact in ((b"", "PGM"), (b"hello", "PGM"), (b"\x89PNG\r\n\x1a\n" + large[:100], "PGM"),
                       (b"P5 28 28 255\n123", "truncated"),
                       (b"P5 99999 99999 255\n", "99999x99999"),
                       (pgm(b"\xff" * 784, SIDE), "nothing is drawn")):
        code, _, text = server.ask("POST", "/predict", body)
        answer = json.loads(text)
        assert code == 200 and "label" not in answer, (body[:20], answer)
        assert fact in answer["error"], (body[:20], answer)


def check_answers(server):
    """A drawing gets the answer that `predict` gives to the same picture."""
    for index in range(5):
        paper = bytes(255 - ink for ink in image(index))
        with open("drawn.pgm", "wb") as file:
            file.write(pgm(paper, SIDE))
        told = subprocess.run([PROGRAM, "predict", "--json", "--quiet", "drawn.pgm"], check=True,
                              capture_output=True, timeout=WAIT_S)
        want = json.loads(told.stdout)[0]
        got = json.loads(server.ask("POST", "/predict", pgm(paper, SIDE))[2])
        assert got["label"] == want["label"] and len(got["picture"]) == 2 * SIDE * SIDE
        assert all(abs(a - b) < 1e-4 for a, b in zip(got["probabilities"], want["probabilities"]))
    examples = json.loads(server.ask("GET", "/examples/7")[2])["examples"]
    assert [e["index"] for e in examples] == list(range(7, 19))
    assert all(bytes.fromhex(e["picture"]) == image(e["index"]) for e in examples)


def check_watch(server):
    with open("runs/a/metrics.jsonl", encoding="utf-8") as file:
        want = [json.loads(line) for line in file]
    answer = json.loads(server.ask("GET", "/watch/none/0")[2])
    run = answer["run"]
    assert answer["model"]["kind"] == "mlp" and answer["model"]["classes"][7] == "7"
    assert answer["model"]["loads"] == 1 and answer["examples"] == 250
    assert run["lines"] == want and run["done"] and run["from"] == 0
    again = f"/watch/{run['generation']}/"
    assert json.loads(server.ask("GET", again + str(run["next"]))[2])["run"]["lines"] == []
    with open("runs/a/metrics.jsonl", "a", encoding="utf-8") as file:
        file.write('{"event":"step","step":9}\n{"event":"torn')
    after = json.loads(server.ask("GET", again + str(run["next"]))[2])["run"]
    assert after["lines"] == [{"event": "step", "step": 9}], after
    os.truncate("runs/a/metrics.jsonl", run["next"])
    with open("runs/a/metrics.jsonl", "a", encoding="utf-8") as file:  # a line longer than an answer
        file.write("x" * (300 << 10) + '\n{"event":"step","step":10}\n')
    long = json.loads(server.ask("GET", again + str(run["next"]))[2])["run"]
    long = json.loads(server.ask("GET", again + str(long["next"]))[2])["run"]
    assert long["lines"] == [{"event": "step", "step": 10}], long["next"]
    os.truncate("runs/a/metrics.jsonl", run["next"])
    assert json.loads(server.ask("GET", again + str(after["next"]))[2])["run"]["lines"] == want
    os.utime("runs/a/config.json")  # a resume has begun: the result is an older one
    assert not json.loads(server.ask("GET", "/watch/none/0")[2])["run"]["done"]
    os.utime("runs/a/config.json", (1, 1))  # as if a resume had begun
    assert json.loads(server.ask("GET", again + str(run["next"]))[2])["run"]["lines"] == want


def check_reload(server):
    """A model that cannot be read leaves the one before; the next good one is used."""
    with open("runs/a/model.safetensors", "rb") as file:
        good = file.read()
    for content, loads in ((good[:1000], 1), (good, 2)):
        with open("runs/a/model.tmp", "wb") as file:
            file.write(content)
        os.rename("runs/a/model.tmp", "runs/a/model.safetensors")
        end = time.monotonic() + WAIT_S
        while (json.loads(server.ask("GET", "/watch/x/0")[2])["model"]["loads"] != loads
               or "warning" not in server.said()):
            assert time.monotonic() < end, (loads, server.said())
            time.sleep(0.02)
        assert "label" in json.loads(server.ask("POST", "/predict", pgm(image(0), SIDE))[2])


def check_other_data_set():
    """A run that comes later brings its data set: classes and examples are those."""
    for folder in ("fashion", "runs/late"):
        os.makedirs(folder)
    for name in os.listdir("data"):
        with open(f"data/{name}", "rb") as file:
            content = file.read()
        if name == os.path.basename(IMAGES):
            content = content[:16] + bytes(255 - ink for ink in content[16:])
        with open(f"fashion/{name}", "wb") as file:
            file.write(content)
    with open("runs/a/config.json", encoding="utf-8") as file:
        config = json.load(file)
    config["settings"]["dataset"] = {"value": "fashion", "origin": "flag"}
    config["settings"]["data_dir"] = {"value": os.path.abspath("fashion"), "origin": "flag"}
    with Server("runs/late") as server:
        answer = json.loads(server.ask("GET", "/watch/none/0")[2])
        assert answer["model"] is None and answer["examples"] == 0, answer
        with open("runs/late/config.json", "w", encoding="utf-8") as file:
            json.dump(config, file)
        os.link("runs/a/model.safetensors", "runs/late/model.safetensors")
        end = time.monotonic() + WAIT_S
        while not (model := json.loads(server.ask("GET", "/watch/none/0")[2])["model"]):
            assert time.monotonic() < end
            time.sleep(0.02)
        assert model["classes"][9] == "Ankle boot", model
        example = json.loads(server.ask("GET", "/examples/3")[2])["examples"][0]
        assert bytes.fromhex(example["picture"]) == bytes(255 - ink for ink in image(3))
    subprocess.run(["rm", "-rf", "fashion", "runs/late"], check=True)


def check_http(_):
    check_other_data_set()
    with Server("runs/a") as server:
        check_pages(server)
        check_hosts(server)
        check_bodies(server)
        check_answers(server)
        check_watch(server)
        check_reload(server)
        taken = subprocess.run([PROGRAM, "serve", "runs/a", f"--port={server.port}"],
                               capture_output=True, text=True, timeout=WAIT_S, check=False)
        assert taken.returncode == 64 and taken.stdout == "", taken
        assert str(server.port) in taken.stderr and str(server.process.pid) in taken.stderr, taken
        took_s, code, out, err = server.end(signal.SIGINT)
        assert took_s < 1 and code == -signal.SIGINT and out == "", (took_s, code, out)
        assert err.count("warning") == 1 and "model.safetensors" in err, err  # the damaged one
    with Server("--bind=0.0.0.0") as server:  # the newest model in runs/
        assert server.ask("GET", "/", headers={"Host": "any.example"})[0] == 200
        assert "0.0.0.0" in server.end(signal.SIGTERM)[3]
    for words, code, fact in (("none", 74, "none"), ("a", 74, "a"), ("runs/a runs/b", 64, "runs/b"),
                              ("runs/a --port=70000", 64, "65535"),
                              ("runs/a --bind=none.invalid", 64, "none.invalid")):
        refused = subprocess.run([PROGRAM, "serve", *words.split()], capture_output=True, text=True,
                                 timeout=WAIT_S, check=False)
        assert refused.returncode == code and fact in refused.stderr, (words, refused)
    others = [name for name in os.listdir(os.environ["BUILD_DIR"])
              if re.fullmatch("mnist_ddp_(curl|gloo).so", name)]
    for module in ["/none"] + [os.path.join(os.environ["BUILD_DIR"], name) for name in others[:1]]:
        missing = subprocess.run([PROGRAM, "serve", "runs/a"], capture_output=True, text=True,
                                 env={**os.environ, "MNIST_DDP_MICROHTTPD_MODULE": module},
                                 timeout=WAIT_S, check=False)
        assert missing.returncode == 64 and "microhttpd" in missing.stderr, missing


def check_limits(_):
    """Clients that hold connections, and one that sends a letter at a time, delay nobody for long,
    and are parted from: the oldest first if there are too many."""
    with Server("runs/a") as server:
        idle = [socket.create_connection(("127.0.0.1", server.port), WAIT_S) for _ in range(50)]
        slow = idle.pop()
        began = time.monotonic()
        assert server.ask("GET", "/")[0] == 200 and time.monotonic() - began < 2
        more = [socket.create_connection(("127.0.0.1", server.port), WAIT_S) for _ in range(50)]
        letters = iter(b"GET /" + b"x" * 1000)
        try:
            while time.monotonic() - began < WAIT_S:
                slow.sendall(bytes([next(letters)]))
                time.sleep(0.1)
        except (BrokenPipeError, ConnectionResetError):
            pass
        assert 3 < time.monotonic() - began < 10, "the slow client was not parted from in time"
        for connection in idle:
            assert connection.recv(1) == b""
        for connection in more + [slow]:
            connection.close()
        half = []
        for _ in range(200):
            half.append(socket.create_connection(("127.0.0.1", server.port), WAIT_S))
            half[-1].sendall(b"GET / HT")
        assert server.ask("GET", "/")[0] == 200
        young = half[-30]  # which would have kept the reader out
        young.setblocking(False)
        try:
            young.recv(1)
            assert False, "200 half requests keep another reader waiting until they are late"
        except BlockingIOError:
            pass
        for connection in idle + half:
            connection.close()


LABEL = "document.getElementById('label')?.textContent"
BARS = "[...document.querySelectorAll('.fill')].map(bar => parseFloat(bar.style.width))"
DARK = "(() => { const c = document.getElementById('%s'); return c.getContext('2d')" \
    ".getImageData(0, 0, c.width, c.height).data" \
    ".filter((value, i) => i %% 4 == 0 && value < 128).length; })()"
TEXT = "document.getElementById('%s')?.textContent ?? ''"


def place(browser, x, y):
    """A point of the paper, from 0 to 1, in the window."""
    box = browser.value("(({x, y, width, height}) => [x, y, width, height])"
                        "(document.getElementById('paper').getBoundingClientRect())")
    return box[0] + x * box[2], box[1] + y * box[3]


def stroke(browser, points):
    browser.mouse("Pressed", *place(browser, *points[0]))
    for point in points[1:]:
        browser.mouse("Moved", *place(browser, *point))


def check_drawing(browser):
    line = [(0.5, 0.2 + 0.6 * i / 10) for i in range(11)]
    stroke(browser, line)
    browser.await_value(LABEL, lambda label: label == "1")  # the button is still down
    browser.mouse("Released", *place(browser, *line[-1]))
    bars = browser.value(BARS)
    assert abs(sum(bars) - 100) < 1 and bars.index(max(bars)) == 1, bars
    assert browser.value(DARK % "seen") > 15
    browser.mouse("Moved", *place(browser, 0.1, 0.1))  # the pen is lifted
    dark = browser.value(DARK % "paper")
    browser.value("document.getElementById('clear').click()")
    assert browser.value(DARK % "paper") == 0 < dark
    browser.await_value(LABEL, lambda label: label == "–")
    assert sum(browser.value(BARS)) == 0
    browser.touch("Start", [dict(zip("xy", place(browser, *line[0])))])
    for point in line[1:]:
        browser.touch("Move", [dict(zip("xy", place(browser, *point)))])
    browser.touch("End", [])
    browser.await_value(LABEL, lambda label: label == "1")


def check_examples(browser):
    count = "document.querySelectorAll('#pictures button').length"
    browser.await_value(count, lambda n: n == 12)
    browser.value("document.querySelectorAll('#pictures button')[3].click()")
    browser.await_value(TEXT % "truth", lambda text: "image 3," in text)
    told = subprocess.run([PROGRAM, "predict", "--quiet", "--checkpoint=runs/a", IMAGES + "#3"],
                          check=True, capture_output=True, text=True, timeout=WAIT_S)
    browser.await_value(LABEL, lambda label: label == told.stdout.strip())


def check_layout(browser):
    page = "document.documentElement"
    assert browser.value("roundTicks(0, 10, 5).join()") == "0,2,4,6,8,10"
    # steps below an ulp end, too
    assert browser.value("roundTicks(2 ** 60, 2 ** 60 + 256, 5).length <= 20")
    assert browser.value(f"{page}.scrollWidth <= {page}.clientWidth")
    assert browser.value("[...document.querySelectorAll('section:not([hidden])')].every(s => "
                         "s.getBoundingClientRect().width >= 150)")


def check_run(browser):
    """A run that is under way: its model and its curves come by themselves."""
    os.makedirs("runs/b", exist_ok=True)
    with Server("runs/b") as server:  # nothing is there yet
        browser.open(server.url)
        browser.await_value(TEXT % "model", lambda text: "no model yet" in text)
        subprocess.run([PROGRAM, "train", "--model=mlp", "--limit=192", "--batch-size=16",
                        "--epochs=2", "--threads=1", "--quiet", "--log-interval=1",
                        "--run-dir=runs/b"], timeout=WAIT_S, check=True, capture_output=True)
        browser.await_value(TEXT % "model", lambda text: "mlp" in text)
        browser.await_value(TEXT % "step", lambda text: text == "24")
        browser.await_value(TEXT % "epoch", lambda text: text == "2")
        line = browser.value("document.querySelector('#loss .line').getAttribute('d')")
        assert len(re.findall("[ML]", line)) == 24, line
        assert browser.value("document.querySelectorAll('#acc circle').length") == 2
        assert not browser.value(TEXT % "validated").endswith("%")
        with open("runs/b/metrics.jsonl", "a", encoding="utf-8") as file:  # as with --val-split
            file.write('{"event":"epoch","epoch":3,"step":36,"val_loss":0.5,"val_acc":0.9}\n')
        browser.await_value(TEXT % "validated", lambda text: text == "90.00 %")
        assert browser.value("document.querySelectorAll('#run svg [style*=\"--c2\"]').length") == 4
        check_layout(browser)
    subprocess.run(["rm", "-rf", "runs/b"], check=True)


def check_browser(program):
    for width, scheme in ((400, "dark"), (1400, "light")):
        browser = Browser(program, os.path.abspath(f"profile{width}"), width, 900, scheme)
        check_run(browser)
        browser.console.clear()  # that server has ended
        with Server("runs/a") as server:
            browser.open(server.url)
            browser.await_value(TEXT % "model", lambda text: "runs/a" in text)
            check_drawing(browser)
            check_examples(browser)
            check_layout(browser)
            errors = [line for line in browser.console if "ERR_CONNECTION" not in line]
            assert not errors, errors
        browser.close()


if __name__ == "__main__":
    {"http": check_http, "limits": check_limits, "browser": check_browser}[sys.argv[1]](
        sys.argv[2] if len(sys.argv) > 2 else None)
