"""Concrete syntax: text to syntax tree and back. Imports nothing of ours."""
