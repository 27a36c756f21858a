"""Defines why a source is not adopted: a code for each reason, and what it stands for."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

REFUSALS: Mapping[str, str] = MappingProxyType(
    {
        "size": "the file has more bytes than are read",
        "encoding": "the file is not plain UTF-8 text",
        "literal": "a raw string literal",
        "directive": "a preprocessor directive or operator that reads files or renames symbols",
        "include": "a header that no emitter uses",
        "startup": "code that runs when the library is loaded or unloaded",
        "assembly": "host assembly that reads files or calls the kernel",
        "host-call": "a call of the host that a kernel has no need of",
        "entry": "not exactly one function of C linkage, or another name than an entry has",
        "signature": "the entry's parameters are not those of the binary interface",
        "object": "the compiler left no object or no PTX to look at",
        "precision": "tensor cores multiply or add in less than the program says",
        "fence": "TMA, wgmma or cp.async without a fence or a wait that they need",
        "workspace": "the entry does not answer how much workspace it needs",
        "wrong": "the results are not those of the program",
        "untimed": "the comparison gave no time that may be believed",
        "slower": "the text's own kernel is faster",
        "audit": "the audit does not accept the evidence",
    }
)
"""In the order in which a source is looked at."""


class SourceRefused(Exception):
    """A source is not adopted: `code` is a key of REFUSALS, `what` says where and with which numbers."""

    def __init__(self, code: str, what: str) -> None:
        assert code in REFUSALS, code
        super().__init__(code, what)
        self.code = code
        self.what = what

    def __str__(self) -> str:
        return f"{self.what} [{self.code}: {REFUSALS[self.code]}]"
