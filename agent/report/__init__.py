"""A session's report: facts from its journal, pictures of them, one page."""
