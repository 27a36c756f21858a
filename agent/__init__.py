"""The optimisation agent."""
