"""The evidence store: `records` is what callers use, `file` the SQLite file below it, `faults` what a disk
does to it, `compare` what two records say of one another."""

from ucutlass.runtime.store.records import BrokenRecordWarning, EvidenceStore, NoSuchRecord, NotIntact, record

__all__ = ["BrokenRecordWarning", "EvidenceStore", "NoSuchRecord", "NotIntact", "record"]
