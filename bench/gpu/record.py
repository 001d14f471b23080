"""The results of 'make gpu-check': a folder with results.json, tables.md and a log per stage.

A row stands in there from the moment that its stage is planned, as "not run", and is replaced as
soon as it is measured: whatever ends the check leaves what was done, and says what is missing.
"""
import json
import os
import pathlib
import re
import time

LOG_BYTES = 1 << 20  # of a stage's log; then each program's last line or so
TAIL_BYTES = {True: 64 << 10, False: 4 << 10}  # of a program that failed, and of others


def is_done(row):
    return not row["result"].startswith("not run")


def is_failed(row):
    return row["result"].startswith("failed")


def done_rows(rows):
    """By step, of the steps that are done as a whole."""
    steps = {}
    for row in rows:
        steps.setdefault(row["step"], []).append(row)
    return {step: of_step for step, of_step in steps.items() if all(map(is_done, of_step))}


class Record:
    def __init__(self, folder, machine, kind, commit, stages):
        self.folder, self.commit, self.stages = pathlib.Path(folder), commit, stages
        self.folder.mkdir(parents=True, exist_ok=True)
        self.data = {"kind": kind, "machine": machine, "stages": {}}
        if (self.folder / "results.json").exists():
            with open(self.folder / "results.json", encoding="utf-8") as file:
                self.data = json.load(file)
            before = (self.data["kind"], self.data["machine"]["gpu"])
            if before != (kind, machine["gpu"]):
                raise ValueError(f"holds results of a {before[0]} check of {before[1]}, and this "
                                 f"is a {kind} check of {machine['gpu']}: name another folder, "
                                 "RESULTS=DIR")
            self.data["machine"] = machine

    # --- rows ---

    def is_open(self, name):
        """Whether the stage did not get through all of its steps."""
        return self.data["stages"].get(name, {}).get("status") in ("cut", "not run")

    def plan(self, name, steps, afresh):
        """The stage's rows as they are before it runs: what was measured at this commit stays,
        unless it shall start afresh."""
        old = self.data["stages"].get(name)
        goes_on = old and old["commit"] == self.commit and not afresh
        kept = done_rows(old["rows"]) if goes_on else {}
        rows = []
        for step in steps:
            rows += kept.get(step.name, [dict(step=step.name, **step.key, result="not run")])
        self.data["stages"][name] = {
            "status": "not run", "seconds": old["seconds"] if goes_on else 0, "date": self._now(),
            "commit": self.commit, "note": "", "rows": rows}
        if not goes_on and (self.folder / f"{name}.log").exists():
            (self.folder / f"{name}.log").unlink()

    def rows(self, name):
        return self.data["stages"].get(name, {"rows": []})["rows"]

    def replace(self, name, step, rows):
        """The rows of a step are now these."""
        all_rows = self.rows(name)
        at = [i for i, row in enumerate(all_rows) if row["step"] == step.name]
        all_rows[at[0]:at[-1] + 1] = [dict(step=step.name, **row) for row in rows]
        self.save()

    def close(self, name, seconds, note):
        stage = self.data["stages"][name]
        rows = stage["rows"]
        if not all(map(is_done, rows)):
            stage["status"] = "cut"
        elif any(map(is_failed, rows)):
            stage["status"] = "failed"
        else:
            skips = all(row["result"].startswith("skipped") for row in rows)
            stage["status"] = "skipped" if skips else "passed"
        stage["seconds"] = round(stage["seconds"] + seconds, 1)
        stage["date"], stage["note"] = self._now(), note
        self.save()
        return stage["status"]

    @staticmethod
    def _now():
        return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())

    # --- files ---

    def log(self, name, title, ended):
        """Adds what a program said, its end if it is long."""
        path = self.folder / f"{name}.log"
        full = path.exists() and path.stat().st_size > LOG_BYTES
        tail = 1000 if full else TAIL_BYTES[ended.word is not None]
        with open(path, "a", encoding="utf-8") as log:
            log.write(f"== {title}: {ended.word or 'exit code 0'}, {ended.seconds:.1f} s\n"
                      f"{ended.output[-tail:].rstrip()}\n")

    def save(self):
        stages = {name: self.data["stages"][name] for name in self.stages
                  if name in self.data["stages"]}
        self._replace("results.json", self._json(stages))
        self._replace("tables.md", self._markdown(stages))

    def _replace(self, name, text):
        beside = self.folder / f".{name}.tmp"
        beside.write_text(text, encoding="utf-8")
        os.replace(beside, self.folder / name)

    def _json(self, stages):
        """A row on each line."""
        parts = []
        for name, stage in stages.items():
            head = {key: value for key, value in stage.items() if key != "rows"}
            rows = ",\n".join(map(json.dumps, stage["rows"]))
            parts.append(f'{json.dumps(name)}: {json.dumps(head)[:-1]}, "rows": [\n{rows}\n]}}')
        head = ",\n".join(f'"{key}": {json.dumps(self.data[key])}' for key in ("kind", "machine"))
        return f'{{\n{head},\n"stages": {{\n' + ",\n".join(parts) + "\n}\n}\n"

    def _markdown(self, stages):
        machine = self.data["machine"]
        lines = [f"# The GPU path on {machine['gpu']}", "",
                 "Written by `make gpu-check`; results.json beside this holds the same.", ""]
        lines += _table([machine])
        missing = []
        for name, stage in stages.items():
            left = sum(not is_done(row) for row in stage["rows"])
            if left:
                missing.append(f"- {name}: {left} of {len(stage['rows'])} rows")
        if missing:
            lines += ["", "## Missing", "", "The same command again, with the same RESULTS and "
                      "COMMIT, goes on with these; STAGES picks some.", "", *missing]
        for name, stage in stages.items():
            lines += ["", f"## {name}: {stage['status']}", "",
                      f"{stage['seconds']} s, {stage['date']}, commit {stage['commit']}"
                      + (f". {stage['note']}" if stage["note"] else "")]
            tables = {}
            for row in stage["rows"]:
                tables.setdefault(row["table"], []).append(row)
            for title, rows in tables.items():
                lines += ["", f"### {title}", "", *_table(rows)]
        return "\n".join(lines) + "\n"


def _table(rows):
    columns = list(dict.fromkeys(key for row in rows for key in row))
    columns = [column for column in columns if column not in ("step", "table")]
    if "result" in columns:
        columns.append(columns.pop(columns.index("result")))
    lines = ["| " + " | ".join(columns) + " |", "|" + " --- |" * len(columns)]
    for row in rows:
        cells = (re.sub("[|\n]", "/", str(row.get(column, ""))) for column in columns)
        lines.append("| " + " | ".join(cells) + " |")
    return lines
