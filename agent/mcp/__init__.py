"""Serves the commands of `ucc` to coding agents over the Model Context Protocol."""
