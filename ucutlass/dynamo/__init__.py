"""`torch.compile(model, backend="ucutlass")`: the parts of a graph that the language can say, as programs."""
