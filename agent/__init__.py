"""This package is the optimisation agent."""
