"""What can be said of a function before it is called: that every name in it means something."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Set
from dataclasses import dataclass, replace

from ucutlass.check.scope import Reject, did_you_mean, unknown_value, used_before
from ucutlass.check.spellings import spelling_hint
from ucutlass.grammar import syntax
from ucutlass.grammar.syntax import Span


@dataclass(frozen=True, slots=True)
class _Known:
    """The names of a function's body, and of its file. `values` are those bound so far, the keys of a
    dictionary that grows from statement to statement; `bound` are all."""

    values: dict[str, None]
    dims: tuple[str, ...]
    bound: Mapping[str, Span]
    functions: Collection[str]
    callables: Set[str]


def unknown_names(
    function: syntax.Function, functions: Collection[str], callables: Set[str]
) -> Iterator[Reject]:
    """A finding for each name in the body that is no parameter, binding, dimension or function.

    Types are checked where the function is expanded; a misspelling is found here even in one
    that nobody calls. `functions` are the names of the file's own functions, `callables` the names of
    whatever can be called.
    """
    bound = {t.name: t.span for s in function.body if isinstance(s, syntax.Bind) for t in s.targets}
    names = _Known(dict.fromkeys(function.params), function.dims, bound, functions, callables)
    for statement in function.body:
        match statement:
            case syntax.Bind(targets=targets, value=value):
                yield from _in(value, names)
                names.values.update(dict.fromkeys(t.name for t in targets))
            case syntax.Return(items=items):
                for item in items:
                    yield from _in(item.value, names)


def _in(expr: syntax.Expr, names: _Known) -> Iterator[Reject]:
    match expr:
        case syntax.Name(name, span) if name not in names.values and name not in names.dims:
            yield _unknown(name, names, span)
        case syntax.Unary(operand=operand):
            yield from _in(operand, names)
        case syntax.Binary(left=left, right=right):
            yield from _in(left, names)
            yield from _in(right, names)
        case syntax.Index(base=base, items=items):
            yield from _in(base, names)
            for item in items:
                yield from _in(item.right, names)
        case syntax.Call(callee=callee, brackets=brackets, arguments=arguments, callee_span=span):
            if callee not in names.callables and not callee.startswith("torch."):
                hint = spelling_hint(callee) or did_you_mean(callee, sorted(names.callables))
                hint = hint or f"define it, as in fn {callee[:40]}(x) = x * x"
                yield Reject("UC0104", f"no function is named {callee}", span, hint)
            introduced = tuple(b.name for b in brackets or () if b.extent is not None)
            inner = replace(names, dims=(*names.dims, *introduced)) if introduced else names
            for argument in arguments:
                if argument.name != "acc":  # its value is a word, not a name
                    yield from _in(argument.value, inner)


def _unknown(name: str, names: _Known, span: Span) -> Reject:
    if name in names.bound:
        return used_before(name, names.bound[name], span)
    return unknown_value(name, names.values, names.dims, names.functions, span)
