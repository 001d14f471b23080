"""A headless Chromium, driven by its DevTools protocol over a pipe."""
import base64
import json
import os
import select
import subprocess
import time

WAIT_S = 60


class Browser:
    """A page in a window of this size. `profile` is a folder for its files."""

    def __init__(self, program, profile, width, height, scheme="light"):
        to_read, self.to_write = os.pipe()
        self.to_answer, to_write = os.pipe()

        def prepare():  # the protocol's descriptors are 3 and 4
            for fd, wanted in ((os.dup(to_read), 3), (os.dup(to_write), 4)):
                os.dup2(fd, wanted)

        self.process = subprocess.Popen(
            [program, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
             "--disable-background-networking", "--remote-debugging-pipe",
             f"--user-data-dir={profile}", f"--window-size={width},{height}", "about:blank"],
            preexec_fn=prepare, close_fds=False, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL)
        os.close(to_read)
        os.close(to_write)
        self.buffer, self.number, self.session = b"", 0, None
        self.console = []  # what the page has complained of
        page = next(target for target in self.send("Target.getTargets")["targetInfos"]
                    if target["type"] == "page")
        self.session = self.send("Target.attachToTarget", targetId=page["targetId"],
                                 flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.send(f"{domain}.enable")
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=height,
                  deviceScaleFactor=1, mobile=False)
        self.send("Emulation.setEmulatedMedia",
                  features=[{"name": "prefers-color-scheme", "value": scheme}])

    def _message(self, end):
        while b"\0" not in self.buffer:
            ready, _, _ = select.select([self.to_answer], [], [], max(0, end - time.monotonic()))
            part = os.read(self.to_answer, 1 << 20) if ready else b""
            if not part:
                raise TimeoutError("the browser does not answer")
            self.buffer += part
        text, self.buffer = self.buffer.split(b"\0", 1)
        return json.loads(text)

    def send(self, method, **params):
        """The result of a command."""
        self.number += 1
        command = {"id": self.number, "method": method, "params": params}
        if self.session:
            command["sessionId"] = self.session
        os.write(self.to_write, json.dumps(command).encode() + b"\0")
        end = time.monotonic() + WAIT_S
        while True:
            message = self._message(end)
            if message.get("id") == self.number:
                if "error" in message:
                    raise RuntimeError(f"{method}: {message['error']}")
                return message["result"]
            self._note(message)

    def _note(self, message):
        params = message.get("params", {})
        if message.get("method") == "Runtime.exceptionThrown":
            self.console.append(str(params["exceptionDetails"].get("exception", params)))
        elif message.get("method") == "Log.entryAdded" and params["entry"]["level"] == "error":
            self.console.append(params["entry"]["text"])

    def open(self, url):
        self.send("Page.navigate", url=url)

    def value(self, expression):
        """Of an expression of JavaScript."""
        answer = self.send("Runtime.evaluate", expression=expression, returnByValue=True,
                           awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(f"{expression}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def await_value(self, expression, is_right):
        """The expression's value, once it is right."""
        end = time.monotonic() + WAIT_S
        while not is_right(value := self.value(expression)):
            if time.monotonic() > end:
                raise AssertionError(f"{expression} is {value!r}; console: {self.console}")
            time.sleep(0.02)
        return value

    def mouse(self, kind, x, y):
        self.send("Input.dispatchMouseEvent", type=f"mouse{kind}", x=x, y=y, button="left",
                  buttons=0 if kind == "Released" else 1, clickCount=1)

    def touch(self, kind, points):
        self.send("Input.dispatchTouchEvent", type=f"touch{kind}", touchPoints=points)

    def screenshot(self, path):
        height = self.value("document.documentElement.scrollHeight")
        width = self.value("innerWidth")
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=height,
                  deviceScaleFactor=1, mobile=False)
        with open(path, "wb") as file:
            file.write(base64.b64decode(self.send("Page.captureScreenshot")["data"]))

    def close(self):
        try:
            self.session = None
            self.send("Browser.close")
        except (TimeoutError, OSError, RuntimeError):
            self.process.kill()
        self.process.wait(WAIT_S)
        os.close(self.to_write)
        os.close(self.to_answer)
