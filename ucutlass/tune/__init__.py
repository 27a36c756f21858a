"""The tuner: which kernels a program may become, which of them to build, and which is fastest."""
