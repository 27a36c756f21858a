"""The reference interpreter of typed programs, and the bound on a kernel's honest error."""

from ucutlass.reference.binding import bind
from ucutlass.reference.expect import Expected, exact_result, expect, expect_in
from ucutlass.reference.interpreter import evaluate, sizes_of
from ucutlass.reference.slices import (
    EvaluatedSlice,
    ExpectedResults,
    ReferenceSlice,
    RowSample,
    evaluated_slices,
    expected_results,
    least_results,
    sampled_results,
    whole_results,
)

__all__ = [
    "EvaluatedSlice",
    "Expected",
    "ExpectedResults",
    "ReferenceSlice",
    "RowSample",
    "bind",
    "evaluate",
    "evaluated_slices",
    "exact_result",
    "expect",
    "expect_in",
    "expected_results",
    "least_results",
    "sampled_results",
    "sizes_of",
    "whole_results",
]
