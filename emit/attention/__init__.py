"""The emitter of attention and its templates."""
