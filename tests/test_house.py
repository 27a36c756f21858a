"""One way through the house: which room imports which, how long files are, one code a mistake."""

from __future__ import annotations

import ast
import re
from collections import Counter
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest

from benchmarks.house import duplicate_classes, parsing_calls, trees, vague_locals
from ucutlass.codes import CODES
from ucutlass.emit.function_forms import FORMS
from ucutlass.grammar import problems
from ucutlass.ir.functions import FUNCTIONS
from ucutlass.ir.schedule import FIELDS
from ucutlass.kernels.families import FAMILIES, NAMES, RULES
from ucutlass.kernels.family import Family

ROOT = Path(__file__).parent.parent
ROOMS = ("ucutlass", "grammar", "emit", "runtime", "agent")
LONGEST = 800
"""Lines of a file at most; native sources count too."""

TOP = {
    "__init__",
    "adopt",
    "api",
    "assembly",
    "backend",
    "dynamo",
    "engine",
    "header",
    "importer",
    "interface",
    "notebook",
    "ops",
    "tasks",
    "tune",
}
"""What of the room `ucutlass` stands on top of the other rooms but `agent`; the rest is meaning."""

COMMAND = "cli"
"""The command line, a layer of its own: it stands on everything, and nothing imports it. `entry` is its
process, which must not import it before signals are taken care of."""

MAY_IMPORT = {
    "grammar": set(),
    "meaning": {"grammar"},
    "emit": {"meaning"},
    "runtime": {"meaning", "emit"},
    "top": {"grammar", "meaning", "emit", "runtime"},
    "agent": {"grammar", "meaning", "emit", "runtime", "top"},
    COMMAND: {"grammar", "meaning", "emit", "runtime", "top", "agent"},
}

READ_BY_EMIT = re.compile(
    r"ucutlass\.(ir(\.(elements|functions|extents|hardware|compute_types|neutral))?|spans"
    r"|kernels(\.(access|arithmetic|planned|\w+\.(plan\w*|smem\w*)))?)"
)
"""What an emitter reads: typed programs, plans, layouts of shared memory and the tables; no checker,
planner or rule. `spans` only measures it."""


@cache
def modules() -> dict[str, Path]:
    """Every module by its dotted name."""
    paths: dict[str, Path] = {}
    for room in ROOMS:
        for path in sorted((ROOT / room).rglob("*.py")):
            inner = path.relative_to(ROOT).with_suffix("").parts
            if room == "ucutlass" and inner[1] in ROOMS[1:]:
                continue  # through a link
            parts = inner if room == "ucutlass" else ("ucutlass", *inner)
            paths[".".join(parts).removesuffix(".__init__")] = path
    return paths


@cache
def parsed() -> dict[str, ast.Module]:
    """The tree of every module by its path, read once for all tests."""
    return trees(ROOT)


def tree_of(module: str) -> ast.Module:
    return parsed()[modules()[module].relative_to(ROOT).as_posix()]


def layer(module: str) -> str:
    first = [*module.split("."), "__init__"][1]
    if first == "entry":
        return COMMAND
    if first in (*ROOMS, COMMAND):
        return first
    return "top" if first in TOP else "meaning"


@cache
def imports(module: str, deferred: bool = True) -> frozenset[str]:
    """The modules of ours that a module imports; `deferred`: also inside functions and for types."""
    tree = tree_of(module)
    texts: set[str] = set()
    for node in ast.walk(tree) if deferred else _at_import(tree):
        match node:
            case ast.Import(names):
                texts |= {alias.name for alias in names}
            case ast.ImportFrom(source, names, 0):
                texts |= {
                    f"{source}.{a.name}" if f"{source}.{a.name}" in modules() else str(source) for a in names
                }
            case ast.ImportFrom():
                raise AssertionError(f"{module} imports by a relative name")
    return frozenset(name for name in texts if name in modules())


def _at_import(tree: ast.Module) -> list[ast.stmt]:
    """The statements that run when a module is imported; blocks for type checkers do not."""
    return [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]


def test_imports_point_one_way() -> None:
    """One test for all modules: a test for each would cost more than what it does."""
    wrong = [
        f"{module} ({layer(module)}) imports {name}"
        for module in modules()
        for name in sorted(imports(module))
        if layer(name) not in MAY_IMPORT[layer(module)] | {layer(module)} and name != "ucutlass"
    ]
    assert wrong == []


@pytest.mark.parametrize("module", [m for m in modules() if layer(m) == "emit"])
def test_emitters_read_plans_and_tables_only(module: str) -> None:
    meaning = {name for name in imports(module) if layer(name) == "meaning"}
    assert not {name for name in meaning if not READ_BY_EMIT.fullmatch(name)}


FAMILY_MODULE = re.compile(rf"ucutlass\.(kernels|emit)\.({'|'.join(NAMES)})\b")

SHARED_BY_EMITTERS = {
    "attention": {"gemm.sm80_epilogue"},
    "convolution": {"gemm.sm80", "gemm.sm80_epilogue"},
    "grouped_gemm": {
        "gemm.lean",
        "gemm.lean_epilogue",
        "gemm.lean_mainloop",
        "gemm.sm90",
        "gemm.sm90_epilogue",
    },
}
"""Modules of another family's emitter that a family's own may import: what all kernels of one multiplier
have in common."""


def test_no_family_is_named_outside_of_kernels_and_emit() -> None:
    """Others ask `ucutlass.kernels.families` or `ucutlass.emit`."""
    named = [
        f"{module} imports {name}"
        for module in modules()
        if not module.startswith(("ucutlass.kernels", "ucutlass.emit"))
        for name in sorted(imports(module))
        if FAMILY_MODULE.match(name)
    ]
    assert named == []


NAMES_OF_OTHERS = (
    "ucutlass.kernels",
    "ucutlass.emit",
    "ucutlass.importer",
    "ucutlass.ops",
    "ucutlass.runtime.module",
)
"""`runtime.module`, the importer and `ops` name PyTorch's operators and arguments, some as families are."""


def test_no_family_is_named_in_a_string() -> None:
    named = [
        f"{module} has {node.value!r}"
        for module in modules()
        if not module.startswith(NAMES_OF_OTHERS)
        for node in ast.walk(tree_of(module))
        if isinstance(node, ast.Constant) and node.value in NAMES
    ]
    assert named == []


ROLES = {
    "cost",
    "family",
    "granularity",
    "match",
    "plan",
    "planner",
    "problem",
    "rules",
    "schedule",
    "smem",
    "space",
    "variants",
}
"""The files of a family: docs/design.md has what each holds. `match_packed.py` is a part of `match.py`'s work."""

OWN_FILES = {"gemm": {"search"}}
"""Files that one family alone has."""


@pytest.mark.parametrize("family", NAMES)
def test_families_have_the_same_files(family: str) -> None:
    folder = ROOT / "ucutlass" / "kernels" / family
    files = {path.stem for path in folder.iterdir() if path.stem != "__init__" and path.stem != "__pycache__"}
    assert {name.split("_")[0] for name in files} - OWN_FILES.get(family, set()) == ROLES
    assert files - OWN_FILES.get(family, set()) >= ROLES, "no part of a file stands without it"


@pytest.mark.parametrize("family", NAMES)
def test_families_call_their_types_alike(family: str) -> None:
    prefix = "".join(word.capitalize() for word in family.split("_"))
    plan, match, problem = (
        import_module(f"ucutlass.kernels.{family}.{name}") for name in ("plan", "match", "problem")
    )
    assert all(hasattr(plan, prefix + name) for name in ("Problem", "Schedule", "Plan"))
    assert hasattr(match, f"{prefix}Pattern") and hasattr(problem, f"{family}_problem")


@pytest.mark.parametrize("module", [m for m in modules() if m.startswith("ucutlass.emit.")])
def test_emitters_share_what_is_listed(module: str) -> None:
    own = module.split(".")[2]
    others = {
        name.removeprefix("ucutlass.emit.")
        for name in imports(module)
        if name.startswith("ucutlass.emit.") and name.split(".")[2] in set(NAMES) - {own}
    }
    assert others <= SHARED_BY_EMITTERS.get(own, set()), f"{module} imports {sorted(others)}"


@pytest.mark.parametrize("module", [m for m in modules() if layer(m) == "grammar"])
def test_the_grammar_needs_nothing_of_ours(module: str) -> None:
    assert {layer(name) for name in imports(module)} <= {"grammar"}


def test_modules_import_in_no_circle() -> None:
    done: set[str] = set()

    def visit(module: str, path: tuple[str, ...]) -> None:
        assert module not in path, " -> ".join((*path[path.index(module) :], module))
        if module not in done:
            for name in sorted(imports(module, deferred=False) - {"ucutlass"}):
                visit(name, (*path, module))
            done.add(module)

    for module in modules():
        visit(module, ())


@pytest.mark.parametrize("room", ROOMS)
def test_files_are_one_thing_each(room: str) -> None:
    """A file that grows past the limit has become two."""
    kinds = {".py", ".j2", ".lark", ".h", ".c"}
    paths = [p for p in (ROOT / room).rglob("*") if p.suffix in kinds and p.is_file()]
    long = {str(p.relative_to(ROOT)): n for p in paths if (n := len(p.read_text().splitlines())) > LONGEST}
    allowed = {"runtime/native/launcher.c"}  # one translation unit: nothing of it is for others
    assert set(long) <= allowed, long


def test_tests_outside_of_packages_have_names_of_their_own() -> None:
    names = Counter(
        path.stem
        for path in (ROOT / "tests").rglob("test_*.py")
        if not (path.parent / "__init__.py").exists()
    )
    assert not [name for name, count in names.items() if count > 1], "pytest imports one of them alone"


def test_library_code_does_not_print() -> None:
    said = [
        name for name, path in modules().items() if re.search(r"^\s*print\(", path.read_text(), re.MULTILINE)
    ]
    assert not said


def test_commands_print_in_one_place() -> None:
    """Which escapes what a terminal would obey."""
    prints = re.compile(r"click\.s?echo|sys\.std(out|err)\b|\bConsole\(\)|Console\(highlight=False\)")
    commands = {name: path for name, path in modules().items() if layer(name) == COMMAND}
    found = [name for name, path in commands.items() if prints.search(path.read_text())]
    assert found == ["ucutlass.cli.show"]


def test_library_code_leaves_nothing_for_later() -> None:
    marks = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")
    assert not [name for name, path in modules().items() if marks.search(path.read_text())]


def test_variables_say_what_they_hold() -> None:
    """No function of the product has a variable called `found`, `made`, `one` or the like."""
    vague = {module: names for module in modules() if (names := vague_locals({module: tree_of(module)}))}
    assert vague == {}


PARSES = {
    "agent/candidate_text.py": "a proposer's answer, and a candidate of a journal",
    "agent/edits.py": "what a proposer puts into a program",
    "agent/problem.py": "a user's problem, and the one that a journal holds",
    "grammar/format.py": "a user's file, for `ucc fmt`",
    "ucutlass/api.py": "a user's file or text",
    "ucutlass/cli/inputs.py": "a user's file",
    "ucutlass/dynamo/builds.py": "a part's program, which another process may have remembered on disk",
    "ucutlass/frontend.py": "it is the way to read",
    "ucutlass/importer/expressions.py": "expressions of the importer's tables, each once",
    "ucutlass/notebook.py": "a notebook's cell",
    "ucutlass/tasks/front_end.py": "a text that a model gives to a tool; a child reads it, under limits",
    "ucutlass/tune/api.py": "a user's file",
    "ucutlass/tune/tables.py": "a recording of many timed schedules",
}
"""Files that parse program text, and where it comes from. Everything else is handed the checked program: in
one process as `frontend.Checked`, by another process as a payload of `ucutlass.handoff`."""


def test_text_is_parsed_where_it_enters() -> None:
    calls = Counter(call.partition(":")[0] for call in parsing_calls(parsed()))
    assert calls.keys() == PARSES.keys()
    assert calls.total() <= 16


# --- tables -------------------------------------------------------------------------


def _syntax_codes() -> list[str]:
    return [v for k, v in vars(problems).items() if k.isupper() and isinstance(v, str) and v.startswith("UC")]


def test_every_diagnostic_has_a_code_of_its_own() -> None:
    counted = Counter([*_syntax_codes(), *CODES, *{rule.code for rule in RULES}])
    assert {code for code, n in counted.items() if n > 1} == set()
    assert all(re.fullmatch(r"UC\d{4}", code) for code in counted)


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_every_rule_says_what_it_is_and_where_it_comes_from(family: Family) -> None:
    assert family.rules
    counted = Counter((rule.code, rule.title) for rule in family.rules)
    assert {rule for rule, n in counted.items() if n > 1} == set()
    assert all(rule.text and rule.source and rule.variants for rule in family.rules)
    names = {variant.name for variant in family.variants}
    assert all(rule.variants <= names for rule in family.rules)


def test_kernels_have_fields_and_words_of_the_table() -> None:
    variants = [variant for family in FAMILIES for variant in family.variants]
    assert {name for variant in variants for name in variant.fields} == set(FIELDS)
    assert {word for variant in variants for word in variant.words} == set(FIELDS["warps"].words)
    assert all(bool(variant.words) == ("warps" in variant.fields) for variant in variants)


def test_every_code_that_is_raised_is_listed() -> None:
    listed = {*_syntax_codes(), *CODES, *(rule.code for rule in RULES)}
    for name, path in modules().items():
        used = set(re.findall(r'"(UC\d{4})"', path.read_text()))
        assert used <= listed, f"{name} raises {sorted(used - listed)}"


def test_every_listed_code_is_raised() -> None:
    texts = "".join(path.read_text() for name, path in modules().items() if name != "ucutlass.codes")
    assert [code for code in CODES if f'"{code}"' not in texts] == []


def test_every_function_can_be_emitted() -> None:
    """The front end's table and the emitter's name the same functions."""
    assert set(FUNCTIONS) == set(FORMS)


# --- files --------------------------------------------------------------------------

WRITES_ITSELF = {
    "ucutlass/files.py": "it is the way to write",
    "grammar/tables.py": "the grammar needs nothing of ours; it writes the checkout's own table",
    "emit/keep_templates.py": "it writes the checkout's own table",
    "runtime/process.py": "the log that a compiler writes to",
    "runtime/nvcc.py": "room is reserved on a disk, and given back",
    "runtime/verify/batch.py": "a log of lines, open while a batch runs; in a temporary folder",
    "runtime/isolation_child.py": "pipes; it imports nothing of ours",
    "agent/proposers/traffic.py": "lines are added, and one that was cut short is taken away",
}
"""Files with a bare way of writing, and why."""


def _file_faults(tree: ast.Module, may_write: bool) -> list[str]:
    """Calls that write a file other than by `ucutlass.files`, or read text in the locale's encoding."""
    return [
        f"line {node.lineno}: {fault}"
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and (fault := _file_fault(node, may_write))
    ]


def _file_fault(call: ast.Call, may_write: bool) -> str:
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    given = {k.arg: k.value for k in call.keywords}
    match name:
        case "write_text" | "write_bytes" if not may_write:
            return f".{name}: use ucutlass.files"
        case "read_text" if isinstance(call.func, ast.Attribute) and not call.args:
            return "" if "encoding" in given else "read_text without an encoding"
        case "open" | "fdopen":
            mode = _mode(call, given)
            if mode is None:
                return ""  # a method of another name's sake
            if set(mode) & set("wax+") and not may_write:
                return f"open(.., {mode!r}): use ucutlass.files"
            return "" if "b" in mode or "encoding" in given else "text without an encoding"
        case "run" | "Popen" | "check_output":
            text = {"text", "universal_newlines"} & set(given)
            return "text without an encoding" if text and "encoding" not in given else ""
        case "NamedTemporaryFile" | "mktemp":
            return f"{name}: use TemporaryDirectory and ucutlass.files"
    return ""


def _mode(call: ast.Call, given: dict[str | None, ast.expr]) -> str | None:
    """The mode of a call that opens a file; None where it opens something else."""
    texts = [a.value for a in [*call.args, *given.values()] if isinstance(a, ast.Constant)]
    modes = [t for t in texts if isinstance(t, str) and re.fullmatch("[rwaxbt+]{1,3}", t)]
    if modes:
        return modes[0]
    if isinstance(call.func, ast.Name) or call.func.attr == "fdopen":  # type: ignore[attr-defined]
        return "r"
    owner = call.func.value  # type: ignore[attr-defined]
    of_files = not call.args and isinstance(owner, ast.Name) and owner.id.islower()
    return "r" if of_files else None


def _writers() -> list[Path]:
    here = [path for name, path in modules().items()]
    return here + sorted((ROOT / "benchmarks").rglob("*.py"))


def test_files_are_written_whole_and_read_as_utf8() -> None:
    """Everything a user owns or the product keeps goes through `ucutlass.files`; no locale decides."""
    faults = {}
    for path in _writers():
        name = str(path.relative_to(ROOT))
        text = path.read_text(encoding="utf-8")
        if wrong := _file_faults(ast.parse(text), name in WRITES_ITSELF):
            faults[name] = wrong
    assert not faults


@pytest.mark.parametrize(
    "text",
    [
        "open(p, 'w')",
        "p.open('ab')",
        "open(p)",
        "p.open()",
        "p.write_text(x)",
        "p.read_text()",
        "p.read_text(errors='replace')",
        "os.fdopen(f)",
        "subprocess.run(c, text=True)",
    ],
)
def test_a_bare_way_to_a_file_is_seen(text: str) -> None:
    assert _file_faults(ast.parse(text), may_write=False)


def test_what_may_write_itself_does() -> None:
    idle = [
        name
        for name in WRITES_ITSELF
        if not _file_faults(ast.parse((ROOT / name).read_text(encoding="utf-8")), may_write=False)
    ]
    assert set(idle) <= {"ucutlass/files.py"}


def test_a_class_name_is_one_concept() -> None:
    assert not duplicate_classes({module: tree_of(module) for module in modules()})
