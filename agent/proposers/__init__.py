"""This package has the proposers: what makes candidates, with a model or without one."""
