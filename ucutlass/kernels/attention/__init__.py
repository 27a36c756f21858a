"""Attention: two dots around a softmax, in one launch."""
