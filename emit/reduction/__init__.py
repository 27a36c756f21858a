"""The emitter of reductions and its templates."""
