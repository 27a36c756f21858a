"""What is said of calls that the fallback serves."""

from __future__ import annotations

import warnings


class FallbackWarning(UserWarning):
    """The fallback computes what programs would. Python shows each text once."""


def say(words: str) -> None:
    """Warns in one line."""
    warnings.warn(" ".join(words.split("\n")[0].split()), FallbackWarning, stacklevel=2)
