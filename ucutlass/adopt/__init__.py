"""CUDA source that was written or edited by hand, in place of what a program's text is emitted as."""
