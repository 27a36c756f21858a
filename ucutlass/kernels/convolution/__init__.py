"""Convolution: a dot of which at least one operand is read at affine positions."""
