"""Proposers: what makes candidates, with a model or without one."""
