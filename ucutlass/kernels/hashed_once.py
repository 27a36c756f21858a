"""Frozen dataclasses that keep their hash."""

from __future__ import annotations


class HashedOnce:
    """Is the base of frozen dataclasses that are keys of what is remembered, many times each, and deep. Such a class
    says `__hash__ = HashedOnce.__hash__` itself, since a dataclass writes its own otherwise."""

    __slots__ = ("_hash",)
    __match_args__: tuple[str, ...] = ()
    _hash: int

    def __hash__(self) -> int:
        try:
            return self._hash
        except AttributeError:
            own_hash = hash(tuple(getattr(self, name) for name in self.__match_args__))
            object.__setattr__(self, "_hash", own_hash)
            return own_hash
