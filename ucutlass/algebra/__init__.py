"""Algebra: programs that are equal to a program for all inputs, and the cheapest of them by the cost models.

`whole.py` makes one graph of values of a program's stages, `egraph.py` holds equal values, `rules.py` lists the
rules, `saturation.py` applies them within bounds, `extraction.py` takes cheap programs out, `writing.py` writes
them as text, and `derivation.py` puts these together.
"""
