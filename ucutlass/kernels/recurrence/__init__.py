"""Recurrent layers: all steps of all layers in one launch."""
