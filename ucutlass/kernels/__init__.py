"""Kernel families: what each matches, plans, prices and refuses."""
