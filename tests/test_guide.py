"""The guide: short enough for a context, complete, and true of the compiler."""

from __future__ import annotations

import re

import pytest

from ucutlass import frontend, ir
from ucutlass.check.calls import BUILTINS
from ucutlass.diagnostics import ProgramError
from ucutlass.guide import LIMIT, guide
from ucutlass.ir.compute_types import COMPUTE_TYPES
from ucutlass.ir.elements import ELEMENTS
from ucutlass.ir.functions import FUNCTIONS
from ucutlass.ir.hardware import ARCHES
from ucutlass.ir.schedule import FIELDS
from ucutlass.kernels.families import RULES
from ucutlass.pipeline.sized import kernels
from ucutlass.typical_sizes import typical_sizes

BLOCKS = re.findall(r"^```[a-z]*\n(.*?)^```", guide(), re.DOTALL | re.MULTILINE)
PROGRAMS = [b for b in BLOCKS if re.match(r"(#.*\n)*(kernel|pipeline|fn)\b", b)]


def test_it_fits_a_context() -> None:
    assert LIMIT == 10_000
    assert len(guide()) <= LIMIT


def test_it_holds_whole_programs() -> None:
    assert PROGRAMS
    assert any("kernel " in text and "schedule " in text for text in PROGRAMS)


def _kernels(program: ir.Program) -> list[ir.Kernel]:
    return [program] if isinstance(program, ir.Kernel) else list(kernels(program))


@pytest.mark.parametrize("text", PROGRAMS, ids=lambda t: re.findall(r"\w+", t)[1])
def test_its_programs_check_and_plan(text: str) -> None:
    checked = frontend.read_text(text, "guide")
    for kernel in [k for p in checked.module.programs for k in _kernels(p)]:
        try:
            assert not frontend.check_schedules(checked, kernel)
        except ProgramError as problem:
            # Shown for the language; the family comes later, and the guide's table says so.
            assert {d.code for d in problem.diagnostics} == {"UC0300"}
            continue
        sizes = typical_sizes(kernel, None)
        assert sizes is not None
        for arch in ARCHES:
            if arch == "sm90a" or all(b.arch != "sm90a" for b in kernel.schedules):
                assert frontend.plan_kernel(checked, kernel, sizes, arch).planned.sizes == sizes


def test_one_of_its_programs_plans() -> None:
    planned = 0
    for text in PROGRAMS:
        checked = frontend.read_text(text, "guide")
        for program in checked.module.programs:
            if isinstance(program, ir.Kernel):
                try:
                    frontend.pattern(checked, program)
                except ProgramError:
                    continue
                planned += 1
    assert planned


def _mentions(word: str) -> bool:
    return re.search(rf"(?<![\w.]){re.escape(word)}(?!\w)", guide()) is not None


@pytest.mark.parametrize("name", [f.name for f in FUNCTIONS.values() if not f.spelling])
def test_every_function_is_in_it(name: str) -> None:
    assert _mentions(name)


@pytest.mark.parametrize("name", sorted(BUILTINS))
def test_every_builtin_is_in_it(name: str) -> None:
    assert _mentions(name)


@pytest.mark.parametrize(
    "name", [e.name for e in ELEMENTS.values() if e.storable] + list(COMPUTE_TYPES) + list(ARCHES)
)
def test_every_element_compute_type_and_target_is_in_it(name: str) -> None:
    assert _mentions(name)


@pytest.mark.parametrize("name", FIELDS)
def test_every_field_is_in_it_with_its_words(name: str) -> None:
    line = next(line for line in guide().splitlines() if line.startswith(f"- `{name}`"))
    assert all(f"`{word}`" in line for word in FIELDS[name].words)


@pytest.mark.parametrize("rule", [r for r in RULES if r.in_guide], ids=lambda r: r.code)
def test_every_rule_is_in_it(rule: object) -> None:
    assert f"- {rule.text}\n" in guide()  # type: ignore[attr-defined]
