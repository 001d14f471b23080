"""Runs one program under a limit of its own; what it says is in a file while it runs."""
import ctypes
import os
import signal
import subprocess
import time

GRACE_S = 3  # from SIGTERM to SIGKILL
MAX_LOG_BYTES = 8 << 20
PR_SET_PDEATHSIG = 1
LIBC = ctypes.CDLL(None)


class Ended:
    """How a program ended: `word` is None for exit code 0, else says it."""

    def __init__(self, code, seconds, limit_s, output):
        self.code, self.seconds, self.output = code, seconds, output
        # GNU's timeout says 124, or 137 if it had to kill.
        self.hung = code is None or (code in (124, 137, -9) and seconds >= limit_s - 0.1)
        number = -code if code is not None and code < 0 else (code or 0) - 128
        if code == 0:
            self.word = None
        elif code is None:
            self.word = f"hangs in the driver: SIGKILL after {limit_s:.0f} s did not end it"
        elif self.hung:
            self.word = f"cut after {seconds:.0f} s"
        elif 0 < number < 65:
            self.word = f"signal {number}"
        else:
            self.word = f"exit code {code}"

    def last_line(self):
        lines = [line.strip() for line in self.output.splitlines() if line.strip()]
        return lines[-1][:200] if lines else ""


def limited(command, limit_s):
    return ["timeout", "-k", str(GRACE_S), f"{max(limit_s, 0.1):.1f}", *map(str, command)]


def _end_with_parent():
    """If this script is killed, its program gets SIGTERM, which `timeout` hands on."""
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def start(command, limit_s, **options):
    return subprocess.Popen(limited(command, limit_s), start_new_session=True,
                            preexec_fn=_end_with_parent, **options)


def end(child):
    """SIGTERM, then SIGKILL, for a whole session; gives up on one that even that does not end."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(child.pid, number)
            child.wait(GRACE_S)
        except (ProcessLookupError, subprocess.TimeoutExpired):
            pass


def run(command, limit_s, log, env=None, cwd=None):
    """Runs `command` for at most `limit_s` seconds; stdout and stderr go to the file `log`, of
    which the last MAX_LOG_BYTES are kept."""
    open(log, "w", encoding="utf-8").close()
    begun = time.monotonic()
    with open(log, "ab", buffering=0) as out:
        child = start(command, limit_s, stdin=subprocess.DEVNULL, stdout=out,
                      stderr=subprocess.STDOUT, env=env, cwd=cwd)
    try:
        while child.poll() is None and time.monotonic() - begun < limit_s + 2 * GRACE_S:
            if os.path.getsize(log) > MAX_LOG_BYTES:
                os.truncate(log, 0)
            time.sleep(0.01)
    except BaseException:
        end(child)
        raise
    with open(log, encoding="utf-8", errors="replace") as said:
        return Ended(child.poll(), time.monotonic() - begun, limit_s, said.read())
