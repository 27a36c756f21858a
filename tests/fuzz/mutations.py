"""Programs of the repository with changes to their tokens, lines or bytes; and programs made large.

`mutated` and `amplified` are functions of a seed alone.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from functools import cache
from itertools import chain
from pathlib import Path

from tests.fuzz.grammar import drawn
from tests.random_programs import random_program
from ucutlass.ir.schedule import FIELDS

ROOT = Path(__file__).parent.parent.parent
LARGEST = 64 * 1024
"""Bytes of a program at most."""

_TOKEN = re.compile(rb"#[^\n]*|[A-Za-z_]\w*|\d[\w.]*|->|//|[=<>!]=|\s+|.", re.DOTALL)
_BYTES = b"()[]{}=:,.+-*/%#@|<>! \n\t\0\xff\xc3\x1babcxKM0129e_"
_LINES = tuple(
    f"  schedule sm90a {{ {name} {value} }}\n".encode()
    for name in FIELDS
    for value in ("auto", "1", "4", "64x64", "128x256x64", "0", "99999999999", "1x1x1", *FIELDS[name].words)
)


@cache
def seeds() -> tuple[bytes, ...]:
    """The programs that are mutated."""
    paths = sorted([*(ROOT / "examples" / "tasks").glob("*.ucu"), *(ROOT / "examples").glob("*.ucu")])
    return tuple(path.read_bytes() for path in paths)


@cache
def _words() -> tuple[bytes, ...]:
    return tuple(sorted(set(chain.from_iterable(_TOKEN.findall(text) for text in seeds()))))


def mutated(seed: int) -> bytes:
    """Case number `seed`: a program of the repository, or a random one over the whole schedule and
    epilogue space, with a few changes to its tokens, lines or bytes."""
    r = random.Random(seed)
    sound = r.random() < 0.3
    data = random_program(seed).text.encode() if sound else r.choice(seeds())
    for _ in range(r.choice((0, 1) if sound else (1, 1, 1, 1, 2, 2, 3, 5, 12))):
        data = r.choice(_MUTATIONS)(data, r)[:LARGEST]
    return data


def _tokens(data: bytes, r: random.Random) -> bytes:
    tokens: list[bytes] = _TOKEN.findall(data)
    if not tokens:
        return r.choice(_words())
    at, other = r.randrange(len(tokens)), r.randrange(len(tokens))
    match r.randrange(5):
        case 0:
            del tokens[at]
        case 1:
            tokens.insert(at, r.choice(_words()))
        case 2:
            tokens[at] = r.choice(_words())
        case 3:
            tokens[at], tokens[other] = tokens[other], tokens[at]
        case _:
            tokens[at] = tokens[other]
    return b"".join(tokens)


def _names(data: bytes, r: random.Random) -> bytes:
    """One word becomes another wherever it stands: what is left mostly parses."""
    words = sorted(set(re.findall(rb"[A-Za-z_]\w*", data)))
    if not words:
        return data
    return re.sub(rb"\b" + r.choice(words) + rb"\b", r.choice(words), data)


def _numbers(data: bytes, r: random.Random) -> bytes:
    numbers = list(re.finditer(rb"\d+", data))
    if not numbers:
        return data
    match = r.choice(numbers)
    other = str(r.choice((0, 1, 2, 3, 7, 64, 255, 256, 2**31, 2**63 - 1, 2**63, 10**30))).encode()
    return data[: match.start()] + other + data[match.end() :]


def _schedule(data: bytes, r: random.Random) -> bytes:
    at = data.rfind(b"}")
    return data[:at] + b"".join(r.choice(_LINES) for _ in range(r.randint(1, 3))) + data[at:]


def _bytes(data: bytes, r: random.Random) -> bytes:
    at = r.randrange(len(data) + 1)
    return data[:at] + bytes(r.choice(_BYTES) for _ in range(r.randint(0, 4))) + data[at + r.randint(0, 3) :]


def _splice(data: bytes, r: random.Random) -> bytes:
    other = r.choice(seeds())
    return data[: r.randrange(len(data) + 1)] + other[r.randrange(len(other)) :]


def _grow(data: bytes, r: random.Random) -> bytes:
    """A piece many times over: deep nesting, long sums, many items."""
    start = r.randrange(len(data) + 1)
    piece = data[start : start + r.choice((1, 2, 5, 20, 200))]
    return data[:start] + piece * r.choice((2, 10, 100, 3000)) + data[start + len(piece) :]


_MUTATIONS: tuple[Callable[[bytes, random.Random], bytes], ...] = (
    _tokens,
    _tokens,
    _tokens,
    _names,
    _names,
    _numbers,
    _numbers,
    _schedule,
    _bytes,
    _splice,
    _grow,
)


# --- made large --------------------------------------------------------------------


def amplified(seed: int) -> bytes:
    """Case number `seed`: a sound or a mutated program in which something stands very often, very deep, or is
    very large: what takes time or memory that is not linear."""
    r = random.Random(f"amplified {seed}")
    text = drawn(seed).text if r.random() < 0.7 else mutated(seed).decode(errors="replace")
    for _ in range(r.choice((1, 1, 2))):
        text = r.choice(_AMPLIFIERS)(text, r, r.choice((3, 12, 40, 60, 100, 250, 1000, 20_000)))
    return text.encode()[:LARGEST]


def _times(part: Callable[[int], str], count: int, room: int = LARGEST // 2) -> str:
    """The texts of 0 to `count - 1`, as many as fit."""
    parts: list[str] = []
    for i in range(count):
        parts.append(part(i))
        room -= len(parts[-1])
        if room < 0:
            break
    return "".join(parts)


def _insert(text: str, r: random.Random, pattern: str, added: str) -> str:
    """`added` behind one place where the pattern matches; at the end where it matches nowhere."""
    places = [m.end() for m in re.finditer(pattern, text)] or [len(text)]
    at = r.choice(places)
    return text[:at] + added + text[at:]


def _more_lines(text: str, r: random.Random, n: int) -> str:
    lines = [x for x in text.splitlines() if x.startswith("  ")] or ["  return 1"]
    line = r.choice(lines)
    name = re.match(r"\s*(\w+)(?=\s*(:|=))", line)

    def one(i: int) -> str:
        return (re.sub(rf"\b{name[1]}\b", f"{name[1]}_{i}", line, count=1) if name else line) + "\n"

    return text.replace(line + "\n", line + "\n" + _times(one, n), 1)


def _more_items(text: str, r: random.Random, n: int) -> str:
    items = re.findall(r"(?ms)^(?:kernel|pipeline|fn) .*?(?=^(?:kernel|pipeline|fn) |\Z)", text)
    item = r.choice(items or ["fn f(x) = x"])
    return text + _times(lambda i: re.sub(r"^(\w+) (\w+)", rf"\1 \2_{i}", item, count=1) + "\n", n)


def _more_list(text: str, r: random.Random, n: int) -> str:
    """One entry of a list again and again: parameters, axes, arguments, results."""
    entry = r.choice(re.findall(r"(?<=, )[^,()\[\]{}]+(?=, )", text) or ["x"])
    name = re.match(r"\w+", entry)
    renamed = r.random() < 0.7 and name is not None

    def one(i: int) -> str:
        return ", " + (re.sub(r"^\w+", lambda m: f"{m[0]}_{i}", entry) if renamed else entry)

    return text.replace(f", {entry}", f", {entry}" + _times(one, n), 1)


def _nested(text: str, r: random.Random, n: int) -> str:
    head = r.choice(("relu(", "(", "-", "not ", "sum[K](", "f("))
    tail = ")" if head.endswith("(") else ""
    return re.sub(r"(return )(.+)", lambda m: f"{m[1]}{head * n}{m[2]}{tail * n}", text, count=1)


def _long_sum(text: str, r: random.Random, n: int) -> str:
    name, sign = r.choice(re.findall(r"\b[a-z]\w*", text) or ["x"]), r.choice((" + ", " * ", " ** ", " and "))
    term = r.choice((name, f"{name} + {{}}", "{}", f"g0({name} + {{}})", "f32({})"))
    return _insert(text, r, r"return |= ", _times(lambda i: term.format(i) + sign, n))


def _bound_chain(text: str, r: random.Random, n: int) -> str:
    """Bindings of which each uses the one before twice."""
    use = r.choice(
        (
            "{0} + {0} * {1}",
            "where({0} < {1}, {0}, 1)",
            "{0}[A = A - 1] + {0}",
            "softmax[A]({0}) + {0}",
            "max[A]({0}) * {0}",
            "{0} * {0}",
            "{0}[A = A - {1}]",
            "cumsum[A]({0}) + {0}",
        )
    )
    start = r.choice(re.findall(r"\b[a-z]\w*(?=: )", text) or ["x"])
    lines = _times(lambda i: f"  b{i + 1} = {use.format(f'b{i}', i)}\n", n)
    return _insert(text, r, r"\{\n(?=  )", f"  b0 = {start}\n{lines}")


def _masks(text: str, r: random.Random, n: int) -> str:
    word = r.choice((" and ", " or "))
    compare = r.choice(
        ("index(A) * {0} <= index(B) + {1}", "index(A) % {1} < {0}", "index(A) < {0}", "x1 > {0}")
    )
    masks = word.join(compare.format(i + 1, i + 7) for i in range(min(n, 95)))
    return re.sub(r"(return )(.+)", lambda m: f"{m[1]}where({masks}, {m[2]}, 0)", text, count=1)


def _double_calls(text: str, r: random.Random, n: int) -> str:
    """Functions that call each other twice, the last of them called."""
    use = r.choice(
        ("{0}(a) * {0}(a)", "{0}(a) + {0}(a + {1})", "{0}({0}(a))", "{0}(a)", "{0}(a + 1) * {0}(a * 2)")
    )
    first = r.choice(("a * a + 1", "nothing", "a", "max(a)"))
    chain_ = _times(lambda i: f"fn c{i + 1}(a) = {use.format(f'c{i}', i)}\n", n)
    last = chain_.count("\n")
    calls = r.choice((last, min(last, 30), min(last, 18)))
    text = re.sub(r"(return )(.+)", lambda m: f"{m[1]}c{calls}({m[2]})", text, count=1)
    return f"fn c0(a) = {first}\n{chain_}{text}"


def _alternatives(text: str, r: random.Random, n: int) -> str:
    fields: list[str] = []
    for name in r.sample(list(FIELDS), r.choice((1, 2, 5, 9))):
        words = (*FIELDS[name].words, "1", "2", "4", "8", "64x64x64", "128x128", "auto")
        fields.append(f"{name} {' or '.join(r.choice(words) for _ in range(min(n, 2000)))}")
    when = r.choice(("", "", " when A <= 64", " when A * A % 7 == 6", " when " + "A*" * 60 + "A == 1"))
    block = f"  schedule {r.choice(('sm90a', 'sm80'))}{when} {{ {'  '.join(fields)} }}\n"
    return _insert(text, r, r"return .*\n", block * r.choice((1, 1, min(n, 40))))


def _large_numbers(text: str, r: random.Random, n: int) -> str:
    value = r.choice(
        ("9" * n, "0." + "1" * n, f"1e{n}", str(2**63 - 1), str(2**31 - 1), f"1e-{'9' * n}", "1x" * n + "1")
    )
    numbers = list(re.finditer(r"\b\d+\b", text))
    for m in sorted(r.sample(numbers, min(len(numbers), r.choice((1, 3)))), key=lambda m: -m.start()):
        text = text[: m.start()] + value[: LARGEST // 4] + text[m.end() :]
    return text


def _extents(text: str, r: random.Random, n: int) -> str:
    """Names of which each extent is computed from the one before, twice."""
    op, first = r.choice("+-*%"), r.choice(("E0", "E0=1000000", "E0=1"))
    names = [first]
    for i in range(1, min(n, 2000)):
        names.append(f"E{i}=E{i - 1}{op}{r.choice((f'E{i - 1}', '1', '2'))}")
    order = names if r.random() < 0.5 else names[::-1]
    axes = f"({' '.join(order)})" if r.random() < 0.2 and len(names) > 1 else ", ".join(order)
    return _insert(text, r, r"kernel \w+\(|pipeline \w+\(", f"ex: f32[{axes}], ")


def _long_names(text: str, r: random.Random, n: int) -> str:
    word = r.choice(re.findall(r"[A-Za-z_]\w*", text) or ["x"])
    return re.sub(rf"\b{word}\b", word[:1] * min(n, LARGEST // (2 + text.count(word))), text)


def _wrong_names(text: str, r: random.Random, n: int) -> str:
    edit = r.choice(
        (
            "  w{0} = z{0}\n",
            "  w{0} = zz{0}(x1)\n",
            "  w{0} = x1[Q{0} = 1]\n",
            "  schedule sm9{0} {{ til{0} 1 }}\n",
        )
    )
    return _insert(text, r, r"\{\n(?=  )", _times(edit.format, n))


def _stages(text: str, r: random.Random, n: int) -> str:
    """A pipeline of many stages over up to six axes, orders written or not."""
    dims = ", ".join("ABCDEF"[: r.choice((1, 3, 4, 6))])
    type_ = r.choice(("f32", f"f32[{dims}]"))
    use = r.choice(("relu({})", "{} + x", "softmax[A]({})", "{} + 1", "cumsum[A]({})"))
    lines = _times(lambda i: f"  t{i + 1}: {type_} = {use.format(f't{i}' if i else 'x')}\n", n)
    last = lines.count("\n")
    return f"{text}\npipeline many(x: f32[{dims}]) -> f32[{dims}] {{\n{lines}  return t{last} + 1\n}}\n"


def _requirements(text: str, r: random.Random, n: int) -> str:
    clause = r.choice(
        ("require A * B * A % {0} == 1", "require A > {0}", "require A % 2 == 0", "require A // {0} == 0")
    )
    return _insert(text, r, r"\{\n(?=  )", _times(lambda i: f"  {clause.format(i + 13)}\n", n))


def _comments(text: str, r: random.Random, n: int) -> str:
    return _insert(text, r, r"[ ,({\n]", _times(lambda i: f"#{i}\n", n))


_AMPLIFIERS: tuple[Callable[[str, random.Random, int], str], ...] = (
    _more_lines,
    _more_items,
    _more_list,
    _nested,
    _long_sum,
    _bound_chain,
    _masks,
    _double_calls,
    _alternatives,
    _large_numbers,
    _extents,
    _long_names,
    _wrong_names,
    _stages,
    _requirements,
    _comments,
)
