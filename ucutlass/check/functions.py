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
    known = _Known(dict.fromkeys(function.params), function.dims, bound, functions, callables)
    for statement in function.body:
        match statement:
            case syntax.Bind(targets=targets, value=value):
                yield from _in(value, known)
                known.values.update(dict.fromkeys(t.name for t in targets))
            case syntax.Return(items=items):
                for item in items:
                    yield from _in(item.value, known)


def _in(expr: syntax.Expr, known: _Known) -> Iterator[Reject]:
    match expr:
        case syntax.Name(name, span) if name not in known.values and name not in known.dims:
            yield _unknown(name, known, span)
        case syntax.Unary(operand=operand):
            yield from _in(operand, known)
        case syntax.Binary(left=left, right=right):
            yield from _in(left, known)
            yield from _in(right, known)
        case syntax.Index(base=base, items=items):
            yield from _in(base, known)
            for item in items:
                yield from _in(item.right, known)
        case syntax.Call(callee=callee, brackets=brackets, arguments=arguments, callee_span=span):
            if callee not in known.callables and not callee.startswith("torch."):
                hint = spelling_hint(callee) or did_you_mean(callee, sorted(known.callables))
                hint = hint or f"define it, as in fn {callee[:40]}(x) = x * x"
                yield Reject("UC0104", f"no function is named {callee}", span, hint)
            introduced = tuple(b.name for b in brackets or () if b.extent is not None)
            inner = replace(known, dims=(*known.dims, *introduced)) if introduced else known
            for argument in arguments:
                if argument.name != "acc":  # its value is a word, not a name
                    yield from _in(argument.value, inner)


def _unknown(name: str, known: _Known, span: Span) -> Reject:
    if name in known.bound:
        return used_before(name, known.bound[name], span)
    return unknown_value(name, known.values, known.dims, known.functions, span)
