"""This package writes a session's report: facts from its journal, figures of them, one page."""
