"""A process that is killed before a statement of SQLite, for tests of stores."""

HALTING = """
import os
import sys
from ucutlass.runtime.store import file as store_file

class Halting(store_file.sqlite3.Connection):
    left = int(sys.argv[2])
    def execute(self, *arguments):
        Halting.left -= 1
        if Halting.left < 0:
            os.kill(os.getpid(), 9)
        return super().execute(*arguments)

connect = store_file.sqlite3.connect
store_file.sqlite3.connect = lambda *a, **k: connect(*a, **k, factory=Halting)
"""
"""What such a process runs first: its second argument counts the statements before the one that it does not do."""
