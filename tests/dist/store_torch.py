"""Torch's TCPStore and ours: `client PORT` uses our server, `server COMMAND...` runs our client."""

import subprocess
import sys
from datetime import timedelta

from torch.distributed import TCPStore


def expect(what, got, want):
    if got != want:
        sys.exit(f"{what}: {got!r}, expected {want!r}")


def use_store(store):
    expect("check", store.check(["k"]), False)
    store.set("k", "v")
    expect("get", store.get("k"), b"v")
    expect("check", store.check(["k"]), True)
    expect("add", store.add("n", 5), 5)
    expect("add", store.add("n", -7), -2)
    expect("get of a counter", store.get("n"), b"-2")
    expect("compare_set, absent", store.compare_set("c", "x", "y"), b"x")
    expect("check", store.check(["c"]), False)
    expect("compare_set, new", store.compare_set("c", "", "y"), b"y")
    expect("compare_set, other", store.compare_set("c", "z", "w"), b"y")
    expect("compare_set, same", store.compare_set("c", "y", "w"), b"w")
    store.append("a", "x")
    store.append("a", "yz")
    expect("append", store.get("a"), b"xyz")
    store.multi_set(["m1", "m2"], ["1", "22"])
    expect("multi_get", store.multi_get(["m1", "m2", "k"]), [b"1", b"22", b"v"])
    keys = store.num_keys()
    expect("delete_key", store.delete_key("k"), True)
    expect("delete_key", store.delete_key("k"), False)
    expect("num_keys", store.num_keys(), keys - 1)
    store.wait(["m1", "m2"], timedelta(seconds=5))
    for _ in range(3):
        try:
            store.wait(["m1", "never"], timedelta(milliseconds=50))
            sys.exit("a wait for a key that nobody sets ended well")
        except RuntimeError as error:
            if "imeout" not in str(error):
                sys.exit(f"wait: {error}")
        expect("get after a timeout", store.get("a"), b"xyz")
    big = bytes(range(256)) * 4096
    store.set("big", big)
    expect("a large value", store.get("big") == big, True)


def main():
    if sys.argv[1] == "client":
        for libuv in (True, False):
            store = TCPStore("127.0.0.1", int(sys.argv[2]), world_size=1, is_master=False,
                             timeout=timedelta(seconds=10), use_libuv=libuv)
            for key in ("n", "c", "a", "m1", "m2", "big"):
                store.delete_key(key)
            use_store(store)
        return
    for libuv in (True, False):
        store = TCPStore("127.0.0.1", 0, is_master=True, timeout=timedelta(seconds=10),
                         use_libuv=libuv, wait_for_workers=False)
        store.set("given", "from the server's side")
        subprocess.run([*sys.argv[2:], "--client", "127.0.0.1", str(store.port)],
                       check=True, timeout=30)
        expect("the client's key", store.get("taken"), b"from the client's side")
        del store


main()
