"""bench/results/cpu-<name>.json: the figures of one machine, row by row, and the tables that people
read. A row says when and of which commit it was measured; measuring it again replaces it alone."""
import datetime
import fnmatch
import json
import pathlib
import re
import subprocess

import machine

ROOT = pathlib.Path(__file__).resolve().parents[2]
OF_DENSE = "of the dense operations"  # those that would be with all zeros
DENSE = f"GFLOP/s {OF_DENSE}"
LOSS = 0.10  # of a ratio: more fails `make bench-check`


def path():
    return ROOT / f"bench/results/cpu-{machine.name()}.json"


def load():
    """None if nothing was kept for this processor."""
    return json.loads(path().read_text()) if path().exists() else None


def describe_commit():
    said = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=ROOT, text=True,
                          capture_output=True, check=False).stdout.strip()
    return said or "unknown"


STAMP = {"measured": datetime.date.today().isoformat(), "commit": describe_commit()}


def save(name, row, peak):
    kept = load() or {"rows": {}}
    kept |= {"name": machine.name(), "machine": machine.describe(), "peak_gflops": peak.gflops}
    kept["rows"][name] = STAMP | row
    path().parent.mkdir(parents=True, exist_ok=True)
    path().write_text(json.dumps(kept, indent=1) + "\n")


def losses(rows, kept):
    """What each row that lost says of it."""
    for name, row in rows.items():
        before = kept["rows"].get(name, {}).get("ratio")
        if before and "ratio" in row and row["ratio"] < (1 - LOSS) * before:
            yield name, (f"{name}: ratio to {row['peer_is']} {row['ratio']:.2f}, kept {before:.2f}: "
                         f"{100 * (1 - row['ratio'] / before):.0f} % lost")


def number(value, unit=""):
    if value is None:
        return ""
    return (f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}") + unit


def percent(share):
    return "" if share is None else f"{100 * share:.0f} %"


def table(columns, lines):
    """Markdown, without the columns in which nothing stands."""
    if not lines:
        return ""
    used = [i for i in range(len(columns)) if any(line[i] != "" for line in lines)]
    lines = [[line[i] for i in used] for line in (columns, ["---"] * len(columns), *lines)]
    return "".join("| " + " | ".join(map(str, line)) + " |\n" for line in lines) + "\n"


def ratio_of(row):
    if "ratio" not in row:
        return ""
    return f"{row['ratio']:.2f} ({min(row['ratios']):.2f} to {max(row['ratios']):.2f})"


def figures_table(rows):
    rows = {name: row for name, row in rows.items()
            if "spans" not in row and "nonzero_percent" not in row}
    return table(
        ["row", "ours", "peer", "ratio", DENSE, f"share of peak, {OF_DENSE}",
         "set-up, peer", "MiB, peer"],
        [[name, f"{number(row['ours'])} {row['unit']}",
          f"{row['peer_is']}: {number(row['peer'])}" if "peer" in row else "", ratio_of(row),
          number(row.get("gflops")), percent(row.get("share_of_peak")),
          " / ".join(number(row[key], " s") for key in ("setup_s", "peer_setup_s") if key in row),
          " / ".join(number(row[key]) for key in ("private_mib", "peer_rss_mib") if key in row)]
         for name, row in rows.items()])


def phases_table(rows):
    rows = {name: row["phases_ms"] for name, row in rows.items() if "phases_ms" in row}
    phases = list(dict.fromkeys(phase for row in rows.values() for phase in row))
    return table(["ms of a step", *phases],
                 [[name, *(number(row.get(phase)) for phase in phases)]
                  for name, row in rows.items()])


def accuracy_table(rows):
    return table(["whole command", "median s", "most s", "former recipe, --dense", "accuracy, mean",
                  "least", "seeds that reach it"],
                 [[name, number(row["ours"]), row["most_s"], number(row.get("peer")),
                   f"{100 * row['accuracy_mean']:.3f} %", f"{100 * row['accuracy_least']:.2f} %",
                   row.get("reached", "")]
                  for name, row in rows.items() if "accuracy_mean" in row])


def spans_tables(rows):
    return "".join(table([name, "us, least", "median", DENSE],
                         [[span, number(one["least_us"]), number(one["median_us"]),
                           number(one.get("gflops"))] for span, one in row["spans"].items()])
                   for name, row in rows.items() if "spans" in row)


def zeros_table(rows):
    rows = {name: row["nonzero_percent"] for name, row in rows.items() if "nonzero_percent" in row}
    at = {step for row in rows.values() for layer in row.values() for step in layer}
    at = sorted(at, key=int)
    return table(["% not zero", *(f"step {step}" for step in at)],
                 [[f"{name.removesuffix('-zeros')}: {layer}", *(steps.get(step, "") for step in at)]
                  for name, row in rows.items() for layer, steps in row.items()])


def machine_line(kept):
    m, peak = kept["machine"], kept["peak_gflops"]
    most = "; ".join(f"{precision} {', '.join(number(one) for one in seen)} GFLOP/s"
                     for precision, seen in peak.items())
    return (f"{kept['name']}: {m['processor']} (family {m['family']}, model {m['model']}), "
            f"{m['cores']} cores, {m['memory_gib']} GiB, Linux {m['kernel']}. Peak of 1, 2, ... "
            f"cores: {most}.\n\n")


TABLES = {"figures": figures_table, "phases": phases_table, "accuracy": accuracy_table,
          "spans": spans_tables, "zeros": zeros_table}


def tables(rows):
    return "".join(make(rows) for make in TABLES.values())


def when(rows):
    stamps = sorted({f"{row['commit']} ({row['measured']})" for row in rows.values()})
    return f"Measured at {', '.join(stamps)}.\n\n" if rows else "Not measured yet.\n\n"


def fill(text, kept):
    """A document with its tables made anew: what stands between "<!-- bench TABLE ROWS... -->" and
    "<!-- end -->", where TABLE is one of TABLES, or "machine"."""
    def made(found):
        table_name, *patterns = found.group(1).split()
        rows = {name: row for name, row in kept["rows"].items()
                if any(fnmatch.fnmatch(name, pattern) for pattern in patterns)}
        body = machine_line(kept) if table_name == "machine" else \
            when(rows) + TABLES[table_name](rows)
        return f"<!-- bench {found.group(1)} -->\n\n{body}<!-- end -->"
    return re.sub(r"<!-- bench (.*?) -->.*?<!-- end -->", made, text, flags=re.DOTALL)
