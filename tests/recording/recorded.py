"""Recorded facts as text: expected/CASE, and expected/shapes/NAME for what files of a name share.

A fact is a name and a value. A line is a value and the names that have it, with tabs between:

    AuthenticAMD 25 17 (avx512 kernels)             the machine, first of all
    value 0<TAB>again.code<TAB>plain.code           two facts
    in run/state.json:<TAB>like state.json          from here on names begin with "run/state.json:",
     number 2<TAB>.epoch<TAB>.optimizer_steps       and all facts of the shape hold but for these
     absent<TAB>.loss_scale
    in run/a.env <TAB>run/b.env                     from here on names begin with either

"any number" is a fact that keeps only its kind, "sometimes" one that may be there or not.
"""
import collections
import os
import re

HERE = os.path.dirname(os.path.abspath(__file__))
EXPECTED = os.path.join(HERE, "expected")
SHAPES = os.path.join(EXPECTED, "shapes")
WIDTH = 100
# The file, and how its facts are joined to it: "t.json:.ts", "x.out | Epoch #", "0.env RANK".
PART = re.compile(r"(\S+?\.(?:json|jsonl|out|err|log|env|txt)(?::| \| | names | (?=[A-Z_])))(.+)")
SHAPED_FILES, SHAPED_FACTS = 6, 10  # a shape is worth it for so many files with so many facts
TABLES = ("launches", "settings")  # of scripts of their own


def parts_of(facts):
    """{"": the facts of no part, "t.json:": {".ts": "number", ...}, ...}"""
    parts = {"": {}}
    for name, value in facts.items():
        match = PART.fullmatch(name)
        prefix, rest = match.groups() if match else ("", name)
        parts.setdefault(prefix, {})[rest] = value
    return parts


def lines_of(facts, indent=""):
    """A line for each value, several for one with many names; by the first name."""
    names_of = collections.defaultdict(list)
    for name, value in sorted(facts.items()):
        if set("\t\n") & set(name + value):
            raise ValueError(f"a tab or a new line in a fact: {name!r}: {value!r}")
        names_of[value].append(name)
    lines = []
    for value, names in names_of.items():
        line = ""
        for name in names:
            if not line or len(line) + 1 + len(name) > WIDTH:
                lines.append(line)
                line = indent + value
            line += "\t" + name
        lines.append(line)
    return [line for line in lines if line]


def facts_in(lines):
    facts = {}
    for line in lines:
        value, *names = line.removeprefix(" ").split("\t")
        facts.update(dict.fromkeys(names, value))
    return facts


def shapes():
    """{"state.json": its facts, ...}"""
    found = {}
    for name in sorted(os.listdir(SHAPES)) if os.path.isdir(SHAPES) else []:
        with open(os.path.join(SHAPES, name), encoding="utf-8") as file:
            found[name] = facts_in(file.read().splitlines())
    return found


def beside(shape, facts):
    """What has to be said of the facts if they are like the shape."""
    other = {name: value for name, value in facts.items() if shape.get(name) != value}
    return other | {name: "absent" for name in shape if name not in facts}


def read(case):
    """The machine and the facts of a case as they were recorded."""
    with open(os.path.join(EXPECTED, case), encoding="utf-8") as file:
        machine, *lines = file.read().splitlines()
    known, facts, prefixes, mine = shapes(), {}, [""], {}
    for line in lines + ["in "]:
        if not line.startswith("in "):
            mine.update(facts_in([line]))
            continue
        facts.update({prefix + name: value for prefix in prefixes for name, value in mine.items()
                      if value != "absent"})
        prefixes, _, shape = line[len("in "):].partition("\tlike ")
        prefixes, mine = prefixes.split("\t"), dict(known.get(shape, {}))
    return machine, facts


def write(case, machine, facts):
    known, said = shapes(), collections.defaultdict(list)
    for prefix, mine in sorted(parts_of(facts).items()):
        shape = min(known, key=lambda name: len(beside(known[name], mine)), default=None)
        like = shape and 2 * len(beside(known[shape], mine)) <= len(mine)
        lines = lines_of(beside(known[shape], mine) if like else mine, " " if prefix else "")
        said[f"\tlike {shape}" if like else "", *lines].append(prefix)
    text = [machine]
    for (like, *lines), prefixes in said.items():
        text += ["in " + "\t".join(prefixes) + like] * (prefixes != [""]) + lines
    os.makedirs(EXPECTED, exist_ok=True)
    with open(os.path.join(EXPECTED, case), "w", encoding="utf-8") as file:
        file.write("\n".join(text) + "\n")


def find_shapes():
    """Makes the shapes anew of what the cases have now, and stores all cases by them."""
    cases = sorted(file.name for file in os.scandir(EXPECTED)
                   if file.is_file() and file.name not in TABLES)
    recorded = {case: read(case) for case in cases}
    alike = collections.defaultdict(list)
    for _, facts in recorded.values():
        for prefix, mine in parts_of(facts).items():
            if prefix.endswith(":"):
                alike[re.sub(r"\d+", "#", os.path.basename(prefix[:-1]))].append(mine)
    os.makedirs(SHAPES, exist_ok=True)
    for name in os.listdir(SHAPES):
        os.remove(os.path.join(SHAPES, name))
    for name, files in alike.items():
        counts = collections.Counter(fact for mine in files for fact in mine.items())
        usual = {}
        for (fact, value), _ in sorted(counts.items(), key=lambda c: (-c[1], c[0])):
            if sum(fact in mine for mine in files) * 2 >= len(files):
                usual.setdefault(fact, value)
        if len(files) >= SHAPED_FILES and len(usual) >= SHAPED_FACTS:
            with open(os.path.join(SHAPES, name), "w", encoding="utf-8") as file:
                file.write("\n".join(lines_of(usual)) + "\n")
    for case, (machine, facts) in recorded.items():
        write(case, machine, facts)
