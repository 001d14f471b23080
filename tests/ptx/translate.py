"""PTX, as nvcc writes it, into C++ for simulator.h: a function of C++ per kernel. After NVIDIA's
manual of the PTX ISA. Registers are unsigned integers of their width; an instruction reads them as
its type. An instruction that no row has is an error with its line: none is passed over.
"""
import collections
import pathlib
import re
import subprocess
from json import dumps as quoted


class Unknown(Exception):
    """What has no translation, and where."""


def bits(kind):
    return 1 if kind == "pred" else int(re.sub(r"\D", "", kind))


def unsigned(kind):
    return "bool" if kind == "pred" else f"uint{bits(kind)}_t"


C_TYPES = {"pred": "bool", "f32": "float", "f64": "double"}
for size in (8, 16, 32, 64):
    C_TYPES |= {f"{k}{size}": f"{'' if k == 's' else 'u'}int{size}_t" for k in "sub"}
PACKED = {"f16": "uint16_t", "bf16": "uint16_t", "f16x2": "uint32_t", "bf16x2": "uint32_t"}
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
    ("div.rn", "T", "f", "{a} / {b}"),
    ("div", "T", "u", "{b} == 0 ? {T}(divides_by_zero({site})) : {a} / {b}"),
    ("rem", "T", "u", "{b} == 0 ? {T}(divides_by_zero({site})) : {a} % {b}"),
    ("neg", "T", "sf", "-{a}"),
    ("abs", "T", "f", "fabs{f}({a})"),
    ("sqrt.rn", "T", "f", "sqrt{f}({a})"),
    ("rcp.rn", "T", "f", "1 / {a}"),
    ("rcp.approx.ftz", "T", "f64", "rough_reciprocal({a})"),
    ("ex2.approx.ftz", "T", "f32", "flushed(std::exp2(flushed({a})))"),
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
    (rf"cvt\.rzi\.{INTEGER}\.f\d+", "clamped<{T}>(trunc{f}({a}))"),
    (rf"cvt\.rni\.{INTEGER}\.f\d+", "clamped<{T}>(nearbyint{f}({a}))"),
    (r"cvt\.rzi\.f64\.f64", "trunc({a})"),
    (r"cvt\.rni\.f64\.f64", "nearbyint({a})"),
    (r"cvt\.rmi\.f32\.f32", "floorf({a})"),
]
SPECIAL = {"%tid.x": "threadIdx.x", "%ntid.x": "blockDim.x", "%ctaid.x": "blockIdx.x",
           "%nctaid.x": "gridDim.x"}
VARIABLE = re.compile(r"\.(reg|local|param|shared|global)(?: \.align (\d+))? \.(\w+) ([%\w$]+)"
                      r"(?:\[(\d+)\])?(?: = \{(.*)\})?$")
PAGE = 4096  # simulator.cc's
Variable = collections.namedtuple("Variable", "space name kind align size values")


def variable(text):
    space, align, kind, name, count, values = VARIABLE.match(text).groups()
    size = bits(kind) // 8 * int(count or 1)
    return Variable(space, name, kind, int(align or size), size, values)


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


def assign(register, c_type, value):
    """A signed value is extended by its sign, if the register is wider."""
    value = f"{c_type}({value})"
    if c_type in ("float", "double"):
        value = f"as<uint{32 if c_type == 'float' else 64}_t>({value})"
    return f"{name_of(register)} = {value};"


class Function:
    """A .entry or a .func."""

    def __init__(self, module, head):
        kind, result, self.symbol, parameters, rest = head.groups()
        self.module, self.is_kernel, self.where = module, kind == "entry", "?"
        self.local = None  # the array that is all of a thread's own memory
        self.code, self.symbols = ["uint32_t CC = 0; char *M; bool Q;"], {}
        self.parameters, self.shared, self.pages = [], [], 0  # (address, size) of each
        limit = re.search(r"\.maxntid (\d+)", rest)
        self.most_threads = int(limit.group(1)) if limit else 1024
        if result:
            self.symbols[variable(result.strip()).name] = "result"
        end = 0
        for k, text in enumerate(split(parameters or "")):
            v = variable(re.sub(r"\.ptr (\.\w+ )?\.align \d+ ", "", text))
            at = -(-end // v.align) * v.align
            end = at + v.size
            self.parameters.append((at, v.size))
            self.symbols[v.name] = f"P + {at}" if self.is_kernel else f"P{k}"
        self.name = f"entry_{len(module.functions)}" if self.is_kernel else f"call_{self.symbol}"
        arguments = ["char *result", *(f"const char *P{k}" for k in range(len(self.parameters)))]
        arguments = ["const char *P"] if self.is_kernel else arguments
        self.head = f"static void {self.name}({', '.join(arguments)})"
        self.begin_block()

    def add_shared(self, v):
        """Each array has pages of its own, and is aligned no better than it says."""
        at = self.pages * PAGE + v.align
        self.symbols[v.name] = str(at)
        self.shared.append((at, v.size))
        self.pages += -(-(v.align + v.size) // PAGE)

    def begin_block(self):
        self.code.append(f"COVER[{len(self.module.blocks)}] = 1;")
        self.module.blocks.append([self, None])  # its place: that of its first instruction

    def value(self, text, kind):
        """An operand's bits as `kind`."""
        if re.match(r"0[fFdD][0-9a-fA-F]+$", text):
            source = f"uint{4 * len(text[2:])}_t(0x{text[2:]}ull)"
        elif re.match(r"-?(0x[0-9a-fA-F]+|\d+)U?$", text):
            source = f"uint64_t(0x{int(text.rstrip('U'), 0) & (1 << 64) - 1:x}ull)"
        elif found := SPECIAL.get(text) or self.symbols.get(text) or self.module.globals.get(text):
            source = found
        elif re.match(r"%?[\w$]+$", text):
            source = name_of(text)
        else:
            raise KeyError(text)
        return f"as<{C_TYPES[kind]}>({source})" if kind[0] == "f" else f"{C_TYPES[kind]}({source})"

    def address(self, text):
        name, offset = re.match(r"\[([%\w$]+)(?:\+(-?\d+))?\]$", text).groups()
        return f"{self.value(name, 'u64')} + {offset or 0}"

    def site(self, line, text):
        self.module.sites.append((self.where, line, text))
        return f"SITES[{len(self.module.sites) - 1}]"

    def declare(self, text):
        if text.startswith(".reg"):
            kind, names = re.match(r"\.reg \.(\w+) (.*)$", text).groups()
            for name in split(names):  # "%r<3>" are %r0, %r1, %r2
                stem, _, count = name.rstrip(">").partition("<")
                many = [f"{name_of(stem)}{k} = 0" for k in (range(int(count)) if count else [""])]
                self.code.append(f"{unsigned(kind)} {', '.join(many)};")
            return
        v = variable(text)
        if v.space == "shared":
            self.add_shared(v)
            return
        self.symbols[v.name] = name_of(v.name)
        self.code.append(f"alignas({v.align}) char {name_of(v.name)}[{v.size}];")
        if v.space == "local":
            self.local = name_of(v.name)

    def statement(self, line, text):
        if text.startswith((".reg", ".local", ".param", ".shared")):
            self.declare(text)
            return
        guard, opcode, rest = re.match(r"(?:@(!?%?\w+) )?([\w.]+) ?(.*)$", text).groups()
        block = self.module.blocks[-1]
        block[1] = block[1] or self.where
        code = self.instruction(line, opcode, split(rest), text)
        if guard:
            code = f"if ({'!' * guard.count('!')}{name_of(guard.lstrip('!'))}) {{ {code} }}"
        self.code.append(code)
        if guard and opcode.split(".")[0] in ("bra", "ret"):
            self.begin_block()

    def instruction(self, line, opcode, operands, text):
        if opcode in ("bra", "bra.uni"):
            return f"goto {name_of(operands[0])};"
        if opcode == "ret":
            return "return;"
        if opcode == "call.uni":
            result, name, arguments = operands
            arguments = [name_of(a) for a in split(arguments.strip("()"))]
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
        to_type = PACKED.get(result) or C_TYPES[result]
        words = dict(zip("abcd", (Operand(self, o, kind) for o in operands[1:])))
        value = expression.format(
            **words, T=to_type, n=bits(kind), f="f" if kind == "f32" else "",
            W=C_TYPES[wide] if "{W}" in expression else "",
            site=self.site(line, text) if "{site}" in expression else "",
            at=self.address(operands[1]) if "{at}" in expression else "")
        target, _, found = operands[0].partition("|")  # of a shuffle: whether there is such a lane
        return assign(target, to_type, value) + (f" {name_of(found)} = Q;" if found else "")

    def pack(self, width, operands):
        whole, parts = operands if "{" in operands[1] else operands[::-1]
        parts = split(parts.strip("{}"))
        size = width // len(parts)
        if "{" in operands[1]:
            value = " | ".join(f"uint64_t({self.value(p, f'b{size}')}) << {k * size}"
                               for k, p in enumerate(parts))
            return assign(whole, f"uint{width}_t", value)
        value = self.value(whole, f"b{width}")
        return " ".join(assign(p, f"uint{size}_t", f"{value} >> {k * size}")
                        for k, p in enumerate(parts))

    def memory(self, line, opcode, operands, text):
        how, space, count, kind = re.fullmatch(
            r"(ld|st)(?:\.volatile)?\.(\w+?)(?:\.nc)?(?:\.v([24]))?\.(\w+)", opcode).groups()
        where, names = operands if how == "st" else operands[::-1]
        names, kind = split(names.strip("{}")), kind.replace("f", "b")
        size, at, steps = bits(kind) // 8, self.address(where), []
        if space != "param":
            whole, site = size * int(count or 1), self.site(line, text)
            action = "WRITE" if how == "st" else "READ"
            steps = [f"M = reach({site}, {{{space.upper()}, {action}, {whole}}}, {at});"
                     if space != "local" else
                     f"M = reach_local({site}, {whole}, {at}, {self.local}, sizeof {self.local});"]
            at = "M"
        for k, name in enumerate(names):
            place = f"{C_TYPES[kind]}, {at} + {k * size}"
            steps.append(assign(name, C_TYPES[kind], f"GET({place})") if how == "ld" else
                         f"PUT({place}, {self.value(name, kind)});")
        return " ".join(steps)


class Module:
    """A file of PTX."""
    TOKEN = re.compile(r"""\s*(?:
        \.loc[ ](?P<file>\d+)[ ](?P<line>\d+)[^\n]*?
            (?:inlined_at[ ](?P<by>\d+)[ ](?P<at>\d+)[^\n]*)?\n |
        \.(?:version|target|address_size|file|pragma)[^\n]*\n |
        (?P<head>(?:\.(?:visible|weak|extern)\s+)?\.(?:entry|func)\b[^{;]*)(?P<end>[{;]) |
        (?P<label>[$\w]+): | (?P<brace>[{}]) |
        (?P<text>(?:[^;{}]|\{[^{}]*\})+);)""", re.X)
    HEAD = re.compile(r"\.(entry|func) ?(?:\(([^)]*)\) ?)?([\w$]+) ?(?:\(([^)]*)\))?(.*)$")

    def __init__(self, path):
        self.path = pathlib.Path(path)
        self.functions, self.blocks, self.sites = [], [], []
        self.globals, self.shared, self.constants = {}, {}, []
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
                function, depth = Function(self, head), 1
                self.functions.append(function)
        elif brace := found.group("brace"):
            depth += 1 if brace == "{" else -1
            function.code.append(brace)
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

    def statement(self, line, text, function):
        try:
            if function is None:
                self.declare(variable(text))
                return
            for name in re.findall(r"[\w$]+", text):
                if name in self.shared and name not in function.symbols:
                    function.add_shared(self.shared[name])
            function.statement(line, text)
        except (Unknown, KeyError, ValueError, AttributeError, IndexError, TypeError) as why:
            raise Unknown(f"{self.path}:{line}: {text}: not known to translate.py") from why

    def declare(self, v):
        if v.space == "shared":
            self.shared[v.name] = v  # of each function that names it
        else:
            self.globals[v.name] = f"constant_{len(self.constants)}"
            self.constants.append(v)

    def title(self, symbol):
        """Its name as in the source, and the file: unlike in all modules."""
        name = subprocess.run(["c++filt", symbol], stdout=subprocess.PIPE, text=True,
                              check=True).stdout.strip()
        name = re.sub(r"^void |[(].*$", "", name)
        name = name.replace("__nv_bfloat16", "bf16").replace("__half", "f16")
        return f"{self.path.stem}.cu {name}"

    def write(self, path):
        """The C++, and beside it .blocks: the function and the source of each basic block."""
        titles = {f: self.title(f.symbol) for f in self.functions}
        lines = ['#include "tests/ptx/simulator.h"', "using namespace ptx;",
                 "static unsigned char *COVER;", "static const site SITES[] = {"]
        lines += [f"{{{quoted(f'{where}, {self.path.name}')}, {line}, {quoted(text)}}},"
                  for where, line, text in self.sites]
        lines.append("};")
        for v in self.constants:
            lines.append(f"alignas({PAGE}) static const {unsigned(v.kind)} {self.globals[v.name]}"
                         f"[{v.size // (bits(v.kind) // 8)}] = {{{v.values}}};")
        lines += [f"{f.head};" for f in self.functions if not f.is_kernel]
        for function in self.functions:
            lines += [function.head, "{", *function.code]
        lines.append("static const std::vector<kernel> KERNELS = {")
        for f in filter(lambda f: f.is_kernel, self.functions):
            ranges = ("{" + ", ".join(f"{{{at}, {size}}}" for at, size in all_of) + "}"
                      for all_of in (f.parameters, f.shared))
            lines.append(f"{{{quoted(f.symbol)}, {quoted(titles[f])}, {f.name}, {f.most_threads}, "
                         f"{', '.join(ranges)}}},")
        lines += ["};", "static const std::vector<constant> CONSTANTS = {"]
        lines += [f"{{{name}, sizeof {name}}}," for name in self.globals.values()]
        lines += ["};", f"static const module MODULE({quoted(self.path.stem)}, KERNELS, CONSTANTS, "
                  f"{len(self.blocks)}, &COVER);"]
        path = pathlib.Path(path)
        path.write_text("\n".join(lines) + "\n")
        path.with_suffix(".blocks").write_text(
            "".join(f"{f.symbol}\t{titles[f]}\t{where or '?'}\n" for f, where in self.blocks))
