"""Tool chain, build, cache, load, launch, verify."""
