"""Turns PyTorch modules into programs."""
