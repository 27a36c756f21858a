"""What can be said of a function before it is called: that every name in it means something."""

from __future__ import annotations

from collections.abc import Iterator, Set

from ucutlass.check.scope import Reject, did_you_mean
from ucutlass.grammar import syntax


def unknown_names(function: syntax.Function, callables: Set[str]) -> Iterator[Reject]:
    """A finding for each name in the body that is no parameter, binding, dimension or function.

    Types are checked where the function is expanded; a misspelling is found here even in one
    that nobody calls. `callables` are the names of whatever can be called.
    """
    known = {*function.params, *function.dims}
    for statement in function.body:
        match statement:
            case syntax.Bind(targets=targets, value=value):
                yield from _in(value, known, callables)
                known |= {t.name for t in targets}
            case syntax.Return(items=items):
                for item in items:
                    yield from _in(item.value, known, callables)


def _in(expr: syntax.Expr, known: set[str], callables: Set[str]) -> Iterator[Reject]:
    match expr:
        case syntax.Name(name, span) if name not in known:
            yield Reject("UC0101", f"nothing is named {name} here", span, did_you_mean(name, sorted(known)))
        case syntax.Unary(operand=operand):
            yield from _in(operand, known, callables)
        case syntax.Binary(left=left, right=right):
            yield from _in(left, known, callables)
            yield from _in(right, known, callables)
        case syntax.Index(base=base, items=items):
            yield from _in(base, known, callables)
            for item in items:
                yield from _in(item.right, known, callables)
        case syntax.Call(callee=callee, brackets=brackets, arguments=arguments, callee_span=span):
            if callee not in callables and not callee.startswith("torch."):
                hint = did_you_mean(callee, sorted(callables))
                yield Reject("UC0104", f"no function is named {callee}", span, hint)
            introduced = {b.name for b in brackets or () if b.extent is not None}
            inner = known | introduced if introduced else known
            for argument in arguments:
                if argument.name != "acc":  # its value is a word, not a name
                    yield from _in(argument.value, inner, callables)
