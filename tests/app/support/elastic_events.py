"""What an event log (app/common/event_log.h) with --event-log-steps shows of an elastic job."""
import json

MASK = (1 << 64) - 1


def read(path):
    """The events in the order of the machine's clock. Lines are whole: one that is no JSON fails. An
    empty one means nothing."""
    with open(path, encoding="utf-8") as file:
        events = [json.loads(line) for line in file if line != "\n"]
    return sorted(events, key=lambda event: event["monotonic_ns"])


def sample_hash(index):
    """event_log_sample()"""
    x = (index + 0x9e3779b97f4a7c15) & MASK
    x = ((x ^ x >> 30) * 0xbf58476d1ce4e5b9) & MASK
    x = ((x ^ x >> 27) * 0x94d049bb133111eb) & MASK
    return x ^ x >> 31


def of(events, name):
    return [event for event in events if event["event"] == name]


def overlaps(events):
    """Pairs of rounds of which both made steps at some time: (older, newer)."""
    steps = {}
    for event in of(events, "step"):
        first, last = steps.get(event["round"], (event["monotonic_ns"],) * 2)
        steps[event["round"]] = min(first, event["monotonic_ns"]), max(last, event["monotonic_ns"])
    rounds = sorted(steps)
    return [(a, b) for i, a in enumerate(rounds) for b in rounds[i + 1:]
            if steps[a][1] >= steps[b][0]]


def line(events):
    """The steps that count, by number: {step: its events, one of each rank}. A round goes on from the
    latest round that has made the step before its first one: a node that comes back may bring a state
    that is newer than what the others have made meanwhile. Later steps of that line do not count."""
    lines = {0: {}}
    by_round = {}
    for event in of(events, "step"):
        by_round.setdefault(event["round"], []).append(event)
    for number in sorted(by_round):
        before = min(event["step"] for event in by_round[number]) - 1
        source = max((n for n, kept in lines.items() if before == 0 or before in kept),
                     default=max(lines))
        kept = {step: found for step, found in lines[source].items() if step <= before}
        for event in by_round[number]:
            kept.setdefault(event["step"], []).append(event)
        lines[number] = kept
    return lines[max(lines)]


def made_twice(events):
    """Steps that were begun in one round, and once more in a later one."""
    begun = {(event["round"], event["step"]) for event in of(events, "step")}
    return len(begun) - len(line(events))


def faults(events, epochs, samples):
    """What is wrong with a job that has finished: a list of texts."""
    found = [f"rounds {a} and {b} made steps at the same time" for a, b in overlaps(events)]
    steps = line(events)
    found += [f"step {n} of the line is missing" for n in range(1, max(steps, default=0) + 1)
              if n not in steps][:3]
    whole = sum(map(sample_hash, range(samples))) & MASK
    counts, sums = [0] * (epochs + 1), [0] * (epochs + 1)
    for number, of_ranks in sorted(steps.items()):
        ranks = sorted(event["rank"] for event in of_ranks)
        if ranks != list(range(of_ranks[0]["world_size"])):
            found.append(f"step {number} in round {of_ranks[0]['round']}: ranks {ranks} of "
                         f"{of_ranks[0]['world_size']}")
        for event in of_ranks:
            counts[event["epoch"]] += event["samples"]
            sums[event["epoch"]] = (sums[event["epoch"]] + int(event["hash"], 16)) & MASK
    for epoch in range(1, epochs + 1):
        if counts[epoch] != samples:
            found.append(f"epoch {epoch} has {counts[epoch]} samples, want {samples}")
        elif sums[epoch] != whole:
            found.append(f"epoch {epoch} has {samples} samples, but not each once")
    return found


def check_itself():
    """Logs that are made up: one that is right, and one of each fault."""
    def step(now, number, of_round, rank, indices, epoch=1):
        return {"event": "step", "monotonic_ns": now, "round": of_round, "rank": rank, "world_size": 2,
                "step": number, "epoch": epoch, "samples": len(indices),
                "hash": f"{sum(map(sample_hash, indices)) & MASK:016x}"}
    # Step 2 of round 1 did not end: round 2 makes it once more.
    right = [step(1, 1, 1, 0, [3, 1]), step(2, 1, 1, 1, [0]), step(3, 2, 1, 0, [4, 2]),
             step(5, 2, 2, 0, [2]), step(6, 2, 2, 1, [4])]
    assert faults(right, 1, 5) == [], faults(right, 1, 5)
    assert made_twice(right) == 1
    assert "same time" in faults(right + [step(9, 2, 1, 1, [])], 1, 5)[0]
    assert "each once" in faults(right[:-1] + [step(6, 2, 2, 1, [2])], 1, 5)[0]
    assert "6 samples" in faults(right[:-1] + [step(6, 2, 2, 1, [4, 2])], 1, 5)[0]
    assert "ranks [0]" in faults(right[:-1], 1, 5)[0]
    assert "missing" in faults(right[2:], 1, 5)[0]
    # Round 2 was made of an older state than round 1's rank 1 brings to round 3.
    fork = [step(1, 1, 1, 0, [3]), step(2, 1, 1, 1, [1]), step(3, 2, 1, 0, [4]), step(4, 2, 1, 1, [2]),
            step(6, 1, 2, 0, [0, 1]) | {"world_size": 1}, step(9, 3, 3, 0, [0]), step(9, 3, 3, 1, [])]
    assert faults(fork, 1, 5) == [], faults(fork, 1, 5)
