"""This module rewrites a PyTorch problem file as KernelBench takes an answer: a class `ModelNew` that is built as
the file's `Model` is, and whose forward calls a program.

KernelBench copies no weights: both modules are built after the same seed, so the constructor must draw the same
random numbers in the same order. It stays as it is, statement by statement; comments and docstrings go, and so
does what the file has for its own use.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping

MODEL, MODEL_NEW = "Model", "ModelNew"

_OF_THE_FILE = frozenset({"get_inputs", "get_init_inputs"})

RUN = "_run_program"
"""The function that forward calls, with a dictionary from a program's parameters to values."""


class NotRewritable(ValueError):
    """Raised for a file whose module cannot be written as `ModelNew`; says why."""


def model_new(source: str, keys: Mapping[str, str]) -> str:
    """Returns the file with `ModelNew` in the place of `Model`. `keys` says of each parameter of the program what
    it is, as `ucutlass.agent.module.ModuleMatch` has it: `input 0`, or `state layers.0.weight`. Raises
    NotRewritable."""
    tree = ast.parse(source)
    body: list[ast.stmt] = []
    rewritten = False
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name in _OF_THE_FILE:
            continue
        if isinstance(node, ast.If) and "__name__" in ast.dump(node.test):
            continue
        if isinstance(node, ast.ClassDef) and node.name == MODEL:
            node, rewritten = _class(node, keys), True
        body.append(node)
    if not rewritten:
        raise NotRewritable(f"the file has no class {MODEL}")
    plain = _Plain().visit(ast.Module(body, []))
    return ast.unparse(ast.fix_missing_locations(plain)) + "\n"


def _class(node: ast.ClassDef, keys: Mapping[str, str]) -> ast.ClassDef:
    forward = next((f for f in node.body if isinstance(f, ast.FunctionDef) and f.name == "forward"), None)
    if forward is None:
        raise NotRewritable(f"{MODEL} has no forward of its own")
    names = [a.arg for a in (*forward.args.posonlyargs, *forward.args.args)]
    owner, inputs = names[0], names[1:]
    values: list[str] = []
    for name, key in keys.items():
        kind, _, place = key.partition(" ")
        if kind == "state":
            values.append(f"{name!r}: _state({owner}, {place!r})")
        elif int(place) < len(inputs):
            values.append(f"{name!r}: {inputs[int(place)]}")
        else:
            raise NotRewritable("forward takes its inputs as a list")
    call = ast.parse(f"return {RUN}({{{', '.join(values)}}})").body
    rest: list[ast.stmt] = [statement for statement in node.body if statement is not forward]
    forward.body = list(call)
    renamed = ast.ClassDef(
        **{
            **{field: getattr(node, field) for field in node._fields},
            "name": MODEL_NEW,
            "body": [*rest, forward],
        }
    )
    rewritten: ast.ClassDef = _Renamed().visit(renamed)
    return ast.copy_location(rewritten, node)


class _Renamed(ast.NodeTransformer):
    """Has `super(Model, self)` name the new class."""

    def visit_Name(self, node: ast.Name) -> ast.Name:
        return ast.Name(MODEL_NEW, node.ctx) if node.id == MODEL else node


class _Plain(ast.NodeTransformer):
    """Leaves out docstrings, and writes `pass`, which KernelBench's checker refuses, as `...`."""

    def visit_Expr(self, node: ast.Expr) -> ast.Expr | None:
        is_text = isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        return ast.Expr(ast.Constant(...)) if is_text else node

    def visit_Pass(self, node: ast.Pass) -> ast.Expr:
        return ast.Expr(ast.Constant(...))
