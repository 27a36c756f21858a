"""What recognition says of a kernel that no family serves."""

from __future__ import annotations

from ucutlass import ir
from ucutlass.diagnostics import Diagnostic
from ucutlass.grammar.syntax import Span


class Refused(Exception):
    """No family runs this kernel in one launch; `diagnostic` says why and where to cut."""

    def __init__(self, code: str, message: str, span: Span, hint: str | None = None) -> None:
        super().__init__(message)
        self.diagnostic = Diagnostic(code, message, span, hint)

    @classmethod
    def mixed_fp8(cls, span: Span) -> Refused:
        """For a dot of e4m3 with e5m2 outside of GEMM."""
        return cls(
            "UC0308",
            "e4m3 and e5m2 are multiplied together in one dot of two stored tensors alone",
            span,
            "store both in f16, which holds them exactly, in a pipeline: h: f16[..] = ..",
        )

    @classmethod
    def no_family(cls, kernel: ir.Program, what: str, span: Span | None = None) -> Refused:
        """The one place that says that a family is still to come."""
        return cls(
            "UC0300",
            f"no kernel family for this yet: {what}",
            span or kernel.span,
            "one launch has no dot; one, of two stored operands or of a window; two over one operand; or two "
            "with a softmax between them: cut, in a pipeline: h: f32[..] = ..",
        )
