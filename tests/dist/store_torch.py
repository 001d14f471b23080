"""Torch's TCPStore and ours: `client PORT` uses our server, `server COMMAND...` runs our client."""

import subprocess
import sys
import threading
from datetime import timedelta

import torch.distributed as dist
from torch.distributed import PrefixStore, TCPStore


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


def use_queues(store, others):
    """As torch's test_queues, test_queues_nonblocking and test_queues_bidirectional."""
    expect("queue_len", store.queue_len("q"), 0)
    for value in ("a", "", "c"):
        store.queue_push("q", value)
    expect("check of a queue", store.check(["q"]), True)
    store.wait(["q"], timedelta(seconds=5))
    expect("queue_len", store.queue_len("q"), 3)
    expect("queue_pop", [store.queue_pop("q") for _ in range(3)], [b"a", b"", b"c"])
    expect("check of an empty queue", store.check(["q"]), False)
    try:
        store.queue_pop("q", False)
        sys.exit("a pop of nothing")
    except dist.QueueEmptyError:
        pass
    got = []
    threads = [threading.Thread(target=lambda s=s: got.append(s.queue_pop("q"))) for s in others]
    for thread in threads:
        thread.start()
    for i in range(len(threads)):
        store.queue_push("q", str(i))
    for thread in threads:
        thread.join()
    expect("what waited for a queue", sorted(got), [b"0", b"1", b"2"])


def use_barrier(others):
    """As torch's test_barrier."""
    threads = [threading.Thread(target=s.barrier, args=("bar", 3, timedelta(seconds=10)))
               for s in others[1:]]
    for thread in threads:
        thread.start()
    others[0].barrier("bar", 3, timedelta(seconds=10))
    for thread in threads:
        thread.join()
    try:
        others[0].barrier("alone", 2, timedelta(milliseconds=50))
        sys.exit("a barrier of two ended with one")
    except RuntimeError as error:
        if "imeout" not in str(error):
            sys.exit(f"barrier: {error}")
    expect("get after a timeout", others[0].get("bar"), b"3")
    for key in ("bar", "alone"):
        others[0].delete_key(key)


def use_newer(store, others):
    """What torch has had since 2.9 or later."""
    if not hasattr(store, "list_keys"):
        return
    if store.libuvBackend:
        use_queues(store, others)
    use_barrier(others)
    with_prefix = PrefixStore("p", store)
    with_prefix.set("mine", "1")
    expect("list_keys", [k in store.list_keys() for k in ("a", "p/mine", "q")],
           [True, True, False])
    with_prefix.delete_key("mine")


def main():
    if sys.argv[1] == "client":
        for libuv in (True, False):
            others = [TCPStore("127.0.0.1", int(sys.argv[2]), world_size=1, is_master=False,
                               timeout=timedelta(seconds=10), use_libuv=libuv) for _ in range(3)]
            store = others[0].clone()
            for key in ("n", "c", "a", "m1", "m2", "big"):
                store.delete_key(key)
            use_store(store)
            use_newer(store, others)
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
