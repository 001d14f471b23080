"""PTX, as nvcc writes it, into C++ for simulator.h: a function of C++ per kernel. After NVIDIA's
manual of the PTX ISA. Registers are unsigned integers of their width; an instruction reads them as
its type. An instruction that no row has is an error with its line: none is passed over.
"""
import pathlib
import re
import subprocess


class Unknown(Exception):
    """What has no translation, and where."""


def bits(kind):
    return 1 if kind == "pred" else int(re.sub(r"\D", "", kind))


def c_type(kind):
    if kind in ("pred", "f32", "f64"):
        return {"pred": "bool", "f32": "float", "f64": "double"}[kind]
    return f"{'' if kind[0] == 's' else 'u'}int{bits(kind)}_t"


def unsigned(kind):
    return "bool" if kind == "pred" else f"uint{bits(kind)}_t"


# Opcodes without their last type; what the result is (T: of the last type, W: of twice its width);
# the last types that are allowed; the result. {a} is the first operand after the result, of the
# last type; {a:u32} of another. CC is the carry.
COMPARISONS = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
UNORDERED = {"neu": "==", "ltu": ">=", "leu": ">", "gtu": "<=", "geu": "<"}  # not what is here
ROWS = [
    ("mov|cvta.to.global", "T", "subfp", "{a}"),
    ("add|add.rn", "T", "suf", "{a} + {b}"),
    ("sub", "T", "suf", "{a} - {b}"),
    ("mul|mul.rn", "T", "f", "{a} * {b}"),
    ("mul.lo", "T", "su", "{a} * {b}"),
    ("mul.wide", "W", "su", "{W}({a}) * {W}({b})"),
    ("mul.hi", "T", "su", "{W}({a}) * {W}({b}) >> {n}"),
    ("mad.lo", "T", "su", "{a} * {b} + {c}"),
    ("fma.rn", "T", "f", "fma{f}({a}, {b}, {c})"),
    ("fma.rm", "T", "f32", "fma_down({a}, {b}, {c})"),
    ("div|div.rn", "T", "f", "{a} / {b}"),
    ("div", "T", "u", "{b} == 0 ? {T}(divides_by_zero({site})) : {a} / {b}"),
    ("rem", "T", "u", "{b} == 0 ? {T}(divides_by_zero({site})) : {a} % {b}"),
    ("neg", "T", "sf", "-{a}"),
    ("abs", "T", "f", "fabs{f}({a})"),
    ("sqrt.rn", "T", "f", "sqrt{f}({a})"),
    ("rcp.rn", "T", "f", "1 / {a}"),
    ("rcp.approx.ftz", "T", "f64", "rough_reciprocal({a})"),
    ("ex2.approx.ftz", "T", "f32", "flushed(exp2_of(flushed({a})))"),
    ("min", "T", "su", "{a} < {b} ? {a} : {b}"),
    ("max", "T", "su", "{a} > {b} ? {a} : {b}"),
    ("max", "T", "f32", "larger({a}, {b})"),
    ("not", "T", "b", "~{a}"),
    ("not", "T", "p", "!{a}"),
    ("and", "T", "bp", "{a} & {b}"),
    ("or", "T", "bp", "{a} | {b}"),
    ("xor", "T", "bp", "{a} ^ {b}"),
    ("shl", "T", "b", "{b:u32} < {n} ? {a} << {b:u32} : 0"),
    ("shr", "T", "su", "{b:u32} < {n} ? {a} >> {b:u32} : {a} < 0 ? -1 : 0"),
    ("shf.l.wrap", "T", "b32", "(uint64_t({b}) << 32 | {a}) << ({c} & 31) >> 32"),
    ("bfi", "T", "b32", "with_bits({a}, {b}, {c:u32} & 255, {d:u32} & 255)"),
    ("bfe", "T", "u32", "({b} & 255) < 32 ? {a} >> ({b} & 255) & low_bits({c} & 255) : 0"),
    ("prmt", "T", "b32", "permuted(uint64_t({b}) << 32 | {a}, {c})"),
    ("clz", "u32", "b64", "{a} == 0 ? 64 : __builtin_clzll({a})"),
    ("selp", "T", "subf", "{c:pred} ? {a} : {b}"),
    ("setp.num", "pred", "f", "{a} == {a} && {b} == {b}"),
    ("setp.equ", "pred", "f", "!({a} < {b} || {a} > {b})"),
    ("add.cc", "T", "u32", "keep_carry(&CC, uint64_t({a}) + {b})"),
    ("addc", "T", "u32", "{a} + {b} + CC"),
    ("addc.cc", "T", "u32", "keep_carry(&CC, uint64_t({a}) + {b} + CC)"),
    ("sub.cc", "T", "u32", "keep_carry(&CC, uint64_t({a}) - {b})"),
    ("subc", "T", "u32", "{a} - {b} - CC"),
    ("subc.cc", "T", "u32", "keep_carry(&CC, uint64_t({a}) - {b} - CC)"),
    ("mad.lo.cc", "T", "u32", "keep_carry(&CC, uint64_t({a} * {b}) + {c})"),
    ("madc.lo.cc", "T", "u32", "keep_carry(&CC, uint64_t({a} * {b}) + {c} + CC)"),
    ("madc.hi", "T", "u32", "(uint64_t({a}) * {b} >> 32) + {c} + CC"),
    ("madc.hi.cc", "T", "u32", "keep_carry(&CC, (uint64_t({a}) * {b} >> 32) + {c} + CC)"),
    ("atom.global.inc", "T", "u32", "atomic_inc({site}, {at}, {b})"),
    ("shfl.sync.down", "T", "b32",
     "shuffle({site}, {a}, emulated::lane() + ({b} & 31), {c}, {d}, &Q)"),
    ("shfl.sync.bfly", "T", "b32",
     "shuffle({site}, {a}, emulated::lane() ^ ({b} & 31), {c}, {d}, &Q)"),
]
ROWS += [("setp." + name, "pred", "subf" if name != "ne" else "sub", f"{{a}} {sign} {{b}}")
         for name, sign in COMPARISONS.items()]
ROWS += [("setp." + name, "pred", "f", f"!({{a}} {sign} {{b}})")
         for name, sign in UNORDERED.items()]
INSTRUCTIONS = {}
for names, result, kinds, expression in ROWS:
    for name in names.split("|"):
        INSTRUCTIONS.setdefault(name, []).append((kinds, result, expression))
INTEGER = r"[su]\d+"
CONVERSIONS = [  # to the first type, {a} is of the second
    (rf"cvt\.{INTEGER}\.{INTEGER}|cvt\.rn\.f\d+\.{INTEGER}|cvt\.f64\.f32|cvt\.rn\.f32\.f64", "{a}"),
    (r"cvt\.f32\.f16", "__half2float({{{a:b16}}})"),
    (r"cvt\.f32\.bf16", "__bfloat162float({{{a:b16}}})"),
    (r"cvt\.rn\.f16\.f32", "__float2half({a}).bits"),
    (r"cvt\.rn\.bf16\.f32", "__float2bfloat16({a}).bits"),
    (r"cvt\.rn\.f16x2\.f32", "uint32_t(__float2half({a}).bits) << 16 | __float2half({b}).bits"),
    (r"cvt\.rn\.bf16x2\.f32",
     "uint32_t(__float2bfloat16({a}).bits) << 16 | __float2bfloat16({b}).bits"),
    (r"cvt\.sat\.f32\.f32", "{a} > 0 ? ({a} < 1 ? {a} : 1.0f) : 0.0f"),
    (rf"cvt\.rzi\.({INTEGER}|f64)\.f\d+", "clamped<{T}>(trunc{f}({a}))"),
    (rf"cvt\.rni\.({INTEGER}|f64)\.f\d+", "clamped<{T}>(nearbyint{f}({a}))"),
    (r"cvt\.rmi\.f32\.f32", "floorf({a})"),
]
READ_AS = {"f32": "as_float", "f64": "as_double"}
WIDEST = {"s128": "__int128", "u128": "unsigned __int128"}
SPECIAL = {"%tid.x": "threadIdx.x", "%ntid.x": "blockDim.x", "%ctaid.x": "blockIdx.x",
           "%nctaid.x": "gridDim.x"}
SPACES = {"global": "GLOBAL", "shared": "SHARED_SPACE"}
VARIABLE = re.compile(r"\.(reg|local|param|shared|global)(?: \.align (\d+))? \.(\w+) ([%\w$]+)"
                      r"(?:\[(\d+)\])?(?: = \{(.*)\})?$")
PAGE = 4096  # simulator.h's


class Operand:
    def __init__(self, function, text, kind):
        self.function, self.text, self.kind = function, text, kind

    def __format__(self, kind):
        return self.function.value(self.text, kind or self.kind)


def name_of(word):
    return "v_" + re.sub(r"\W", "_", word)


def split(text):
    """The operands: what commas part that are not in brackets."""
    return [part.strip() for part in re.findall(r"(?:\{[^}]*\}|\[[^]]*\]|\([^)]*\)|[^,])+", text)]


def quoted(text):
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


class Function:
    """A .entry or a .func."""

    def __init__(self, module, head, line):
        kind, result, self.symbol, parameters, rest = head.groups()
        self.module, self.line, self.is_kernel = module, line, kind == "entry"
        self.name = f"{kind}_{len(module.functions)}"
        self.where = "?"
        self.local = None  # the array that is all of a thread's own memory
        self.code, self.blocks, self.symbols = [], [], {}
        self.parameters, self.parameter_bytes, self.shared, self.pages = [], 0, [], 0
        limit = re.search(r"\.maxntid (\d+)", rest)
        self.most_threads = int(limit.group(1)) if limit else 1024
        if result:
            self.symbols[result.split()[-1].split("[")[0]] = "result"
        for k, text in enumerate(split(parameters or "")):
            self.add_parameter(k, re.sub(r"\.ptr (\.\w+ )?\.align \d+ ", "", text))

    def add_parameter(self, k, text):
        _, align, kind, name, count, _ = VARIABLE.match(text).groups()
        size = bits(kind) // 8 * int(count or 1)
        align = int(align or size)
        at = -(-self.parameter_bytes // align) * align
        self.parameters.append((at, size))
        self.parameter_bytes = at + size
        self.symbols[name] = f"(P + {at})" if self.is_kernel else f"P{k}"

    def add_shared(self, name, align, size):
        """Each array has pages of its own, and is aligned no better than it says."""
        self.symbols[name] = f"{self.pages * PAGE + align}u"
        self.shared.append((self.pages * PAGE + align, size))
        self.pages += -(-(align + size) // PAGE)

    def begin_block(self):
        self.blocks.append(len(self.module.blocks))
        self.code.append(f"COVER[{len(self.module.blocks)}] = 1;")
        self.module.blocks.append([self, None])  # its place: that of its first instruction

    def value(self, text, kind):
        """An operand's bits as `kind`."""
        if text in SPECIAL:
            source = SPECIAL[text]
        elif re.match(r"0[fFdD][0-9a-fA-F]+$", text):
            source = f"uint{4 * len(text[2:])}_t(0x{text[2:]}ull)"
        elif re.match(r"-?(0x[0-9a-fA-F]+|\d+)U?$", text):
            source = f"uint64_t(0x{int(text.rstrip('U'), 0) & (1 << 64) - 1:x}ull)"
        elif text in self.symbols or text in self.module.globals:
            source = self.symbols.get(text) or f"uint64_t({self.module.globals[text]})"
        elif re.match(r"%?[\w$]+$", text):
            source = name_of(text)
        else:
            raise KeyError(text)
        return f"{READ_AS.get(kind) or c_type(kind)}({source})"

    def address(self, text):
        name, offset = re.match(r"\[([%\w$]+)(?:\+(-?\d+))?\]$", text).groups()
        if name in self.symbols and not self.symbols[name].endswith("u"):
            return f"{self.symbols[name]} + {offset or 0}"  # a parameter's
        return f"{self.value(name, 'u64')} + {offset or 0}"

    def site(self, line, text):
        self.module.sites.append((self.where, line, text))
        return f"SITES[{len(self.module.sites) - 1}]"

    def declare(self, text):
        if many := re.match(r"\.reg \.(\w+) (%\w+)<(\d+)>$", text):
            kind, name, count = many.groups()
            names = (f"{name_of(name)}{k} = 0" for k in range(int(count)))
            self.code.append(f"{unsigned(kind)} {', '.join(names)};")
            return
        if text.startswith(".reg"):
            kind, names = re.match(r"\.reg \.(\w+) (.*)$", text).groups()
            self.code += [f"{unsigned(kind)} {name_of(name)} = 0;" for name in split(names)]
            return
        space, align, kind, name, count, _ = VARIABLE.match(text).groups()
        size = bits(kind) // 8 * int(count or 1)
        if space == "shared":
            self.add_shared(name, int(align or size), size)
            return
        self.code.append(f"alignas({align or size}) char {name_of(name)}[{size}];")
        self.local = name_of(name)
        self.symbols[name] = name_of(name) if space == "param" else f"uint64_t({name_of(name)})"

    def statement(self, line, text):
        if text.startswith((".reg", ".local", ".param", ".shared")):
            return self.declare(text)
        if text.startswith(".pragma"):
            return None
        guard, opcode, rest = re.match(r"(?:@(!?%?\w+) )?([\w.]+) ?(.*)$", text).groups()
        block = self.module.blocks[self.blocks[-1]]
        block[1] = block[1] or self.where
        code = self.instruction(line, opcode, split(rest), text)
        if guard:
            code = f"if ({'!' * guard.count('!')}{name_of(guard.lstrip('!'))}) {{ {code} }}"
        self.code.append(code)
        if guard and opcode.split(".")[0] in ("bra", "ret"):
            self.begin_block()
        return None

    def instruction(self, line, opcode, operands, text):
        if opcode in ("bra", "bra.uni"):
            return f"goto {name_of(operands[0])};"
        if opcode == "ret":
            return "return;"
        if opcode == "call.uni":
            result, name, arguments = operands
            arguments = [name_of(a) for a in split(arguments.strip("()"))]
            self.module.calls.add(name)
            return f"call_{name}({', '.join([name_of(result.strip('()')), *arguments])});"
        if opcode == "bar.sync" and operands == ["0"]:
            return f"barrier({self.site(line, text)});"
        if opcode in ("membar.gl", "membar.sys"):
            return "fence();"
        if opcode.startswith(("ld.", "st.")):
            return self.memory(line, opcode, operands, text)
        if opcode.startswith("mov.b") and "{" in text:
            return self.pack(bits(opcode[4:]), operands)
        return self.computation(line, opcode, operands, text)

    def computation(self, line, opcode, operands, text):
        base, kind = opcode.rsplit(".", 1)
        found = [row for kinds, *row in INSTRUCTIONS.get(base, ())
                 if kinds == kind or not kinds[-1].isdigit() and kind[0] in kinds]
        result, expression = found[0] if found else (None, None)
        if opcode.startswith("cvt."):
            found = [e for pattern, e in CONVERSIONS if re.fullmatch(pattern, opcode)]
            result, expression = opcode.split(".")[-2], found[0] if found else None
        if expression is None:
            raise Unknown(opcode)
        wide = f"{kind[0]}{2 * bits(kind)}"
        result = {"T": kind, "W": wide}.get(result, result)
        packed = {"f16": "uint16_t", "bf16": "uint16_t", "f16x2": "uint32_t", "bf16x2": "uint32_t"}
        to_type = packed.get(result) or c_type(result)
        words = dict(zip("abcd", (Operand(self, o, kind) for o in operands[1:])))
        value = expression.format(
            **words, T=to_type, n=bits(kind), f="f" if kind == "f32" else "",
            W=WIDEST.get(wide) or wide[0] in "su" and c_type(wide),
            site=self.site(line, text) if "{site}" in expression else "",
            at=self.address(operands[1]) if "{at}" in expression else "")
        target, _, found = operands[0].partition("|")  # of a shuffle: whether there is such a lane
        return self.assign(target, to_type, value) + (f" {name_of(found)} = Q;" if found else "")

    @staticmethod
    def assign(register, c_type, value):
        """A signed value is extended by its sign, if the register is wider."""
        value = f"{c_type}({value})"
        if c_type in ("float", "double"):
            value = f"bits({value})"
        return f"{name_of(register)} = {value};"

    def pack(self, width, operands):
        whole, parts = operands if "{" in operands[1] else operands[::-1]
        parts = split(parts.strip("{}"))
        size = width // len(parts)
        if "{" in operands[1]:
            value = " | ".join(f"uint64_t({self.value(p, f'b{size}')}) << {k * size}"
                               for k, p in enumerate(parts))
            return self.assign(whole, f"uint{width}_t", value)
        value = self.value(whole, f"b{width}")
        return " ".join(self.assign(p, f"uint{size}_t", f"{value} >> {k * size}")
                        for k, p in enumerate(parts))

    def memory(self, line, opcode, operands, text):
        how, space, count, kind = re.fullmatch(
            r"(ld|st)(?:\.volatile)?\.(\w+?)(?:\.nc)?(?:\.v([24]))?\.(\w+)", opcode).groups()
        where, names = operands if how == "st" else operands[::-1]
        names = split(names.strip("{}"))
        size, at, same = bits(kind) // 8, self.address(where), f"b{bits(kind)}"
        if space == "local":
            own = f"{{{self.local}, sizeof {self.local}}}"
            self.code.append(f"M = reach_local({self.site(line, text)}, {size}, {at}, {own});")
            at = "M"
        elif space != "param":
            action = "WRITE" if how == "st" else "READ"
            access = f"{{{SPACES[space]}, {action}, {size * int(count or 1)}}}"
            self.code.append(f"M = reach({self.site(line, text)}, {access}, {at});")
            at = "M"
        if how == "ld":
            source = unsigned(kind) if kind[0] == "f" else c_type(kind)
            return " ".join(self.assign(name, source, f"GET({source}, {at} + {k * size})")
                            for k, name in enumerate(names))
        return " ".join(f"PUT({unsigned(kind)}, {at} + {k * size}, {self.value(name, same)});"
                        for k, name in enumerate(names))

    def head(self):
        if self.is_kernel:
            return f"static void {self.name}(const char *P)"
        arguments = (f", const char *P{k}" for k in range(len(self.parameters)))
        return f"static void call_{self.symbol}(char *result{''.join(arguments)})"


class Module:
    """A file of PTX."""
    TOKEN = re.compile(r"""\s*(?:
        \.loc[ ](?P<file>\d+)[ ](?P<line>\d+)[^\n]*?
            (?:inlined_at[ ](?P<by>\d+)[ ](?P<at>\d+)[^\n]*)?\n |
        \.(?:version|target|address_size|file)[^\n]*\n |
        (?P<head>(?:\.(?:visible|weak|extern)\s+)?\.(?:entry|func)\b[^{;]*)(?P<end>[{;]) |
        (?P<label>[$\w]+): | (?P<brace>[{}]) |
        (?P<text>(?:[^;{}]|\{[^{}]*\})+);)""", re.X)
    HEAD = re.compile(r"\.(entry|func) ?(?:\(([^)]*)\) ?)?([\w$]+) ?(?:\(([^)]*)\))?(.*)$")

    def __init__(self, path):
        self.path = pathlib.Path(path)
        self.functions, self.blocks, self.sites, self.globals = [], [], [], {}
        self.calls, self.shared, self.constants = set(), {}, []
        text = self.path.read_text()
        self.files = {n: name.rsplit("/", 1)[-1]
                      for n, name in re.findall(r'\.file\s+(\d+)\s+"([^"]+)"', text)
                      if "/include/" not in name}  # else CUDA's own
        text = re.sub(r"//[^\n]*", "", text.split("\t.section")[0]).replace("\t", " ")
        at, line, function, depth = 0, 1, None, 0
        while found := self.TOKEN.match(text, at):
            start = found.end() - len(found.group().lstrip())
            line += text.count("\n", at, start)
            function, depth = self.take(found, line, function, depth)
            line += text.count("\n", start, found.end())
            at = found.end()
        if text[at:].strip():
            raise Unknown(f"{self.path}:{line}: {text[at:].strip()[:80]}")

    def take(self, found, line, function, depth):
        if head := found.group("head"):
            if found.group("end") == "{":
                head = self.HEAD.search(re.sub(r"\s+", " ", head).strip())
                function, depth = self.begin(head, line), 1
        elif brace := found.group("brace"):
            depth += 1 if brace == "{" else -1
            function.code.append(brace if depth or brace == "{" else "}")
            function = function if depth else None
        elif found.group("file"):
            places = [(found.group(f), found.group(n)) for f, n in (("file", "line"), ("by", "at"))]
            own = [f"{self.files[f]}:{n}" for f, n in places if f in self.files and n != "0"]
            if function and own:
                function.where = own[0]
        elif label := found.group("label"):
            function.code.append(f"{name_of(label)}:;")
            function.begin_block()
        elif text := found.group("text"):
            self.statement(line, re.sub(r"\s+", " ", text).strip(), function)
        return function, depth

    def begin(self, head, line):
        function = Function(self, head, line)
        self.functions.append(function)
        for name, (align, size) in self.shared.items():
            function.symbols[name] = None  # it becomes one of this function's if it is named
        function.code.append("uint32_t CC = 0; char *M; bool Q;")
        function.begin_block()
        return function

    def statement(self, line, text, function):
        try:
            if function is None:
                self.variable(text)
                return
            for name in re.findall(r"[\w$]+", text):
                if name in self.shared and function.symbols[name] is None:
                    function.add_shared(name, *self.shared[name])
            function.statement(line, text)
        except (Unknown, KeyError, ValueError, AttributeError, IndexError, TypeError) as why:
            raise Unknown(f"{self.path}:{line}: {text}: not known to translate.py") from why

    def variable(self, text):
        space, align, kind, name, count, values = VARIABLE.match(text).groups()
        size = bits(kind) // 8 * int(count or 1)
        if space == "shared":
            self.shared[name] = (int(align or size), size)
        else:
            self.globals[name] = f"constant_{len(self.globals)}"
            self.constants.append((self.globals[name], unsigned(kind), int(count or 1), values))

    def titles(self):
        """The functions' names as in the source, and its file: unlike in all modules."""
        symbols = "\n".join(f.symbol for f in self.functions)
        names = subprocess.run(["c++filt"], input=symbols, stdout=subprocess.PIPE, text=True,
                               check=True).stdout
        names = re.sub(r"(?m)^void |[(].*$", "", names)
        names = names.replace("__nv_bfloat16", "bf16").replace("__half", "f16")
        return [f"{self.path.stem}.cu {name}" for name in names.splitlines()]

    def write(self, path):
        """The C++, and beside it .blocks: the function and the source of each basic block."""
        titles = self.titles()
        lines = ['#include "tests/ptx/simulator.h"', "using namespace ptx;",
                 "static unsigned char *COVER;", "static const site SITES[] = {"]
        lines += [f"{{{quoted(f'{where}, {self.path.name}')}, {line}, {quoted(text)}}},"
                  for where, line, text in self.sites]
        lines += ["};"]
        for name, kind, count, values in self.constants:
            lines.append(f"alignas({PAGE}) static const {kind} {name}[{count}] = {{{values}}};")
        lines += [f"{f.head()};" for f in self.functions if not f.is_kernel]
        for function in self.functions:
            lines += [function.head(), "{", *function.code]
        kernels = [(f, t) for f, t in zip(self.functions, titles) if f.is_kernel]
        lines.append("static const kernel KERNELS[] = {")
        for f, title in kernels:
            parameters = ", ".join(f"{{{at}, {size}}}" for at, size in f.parameters)
            shared = ", ".join(f"{{{at}, {size}}}" for at, size in f.shared)
            lines.append(f"{{{quoted(f.symbol)}, {quoted(title)}, {f.name}, {f.most_threads}, "
                         f"{f.parameter_bytes}, {{{parameters}}}, {{{shared}}}}},")
        lines += ["};", f"static const module MODULE({quoted(self.path.stem)}, KERNELS, "
                  f"{len(kernels)}, {len(self.blocks)}, &COVER);"]
        lines += [f"static const constant_memory MEMORY_{name}({name}, sizeof {name});"
                  for name, *_ in self.constants]
        path = pathlib.Path(path)
        path.write_text("\n".join(lines) + "\n")
        names = dict(zip(self.functions, titles))
        path.with_suffix(".blocks").write_text(
            "".join(f"{f.symbol}\t{names[f]}\t{where or '?'}\n" for f, where in self.blocks))
