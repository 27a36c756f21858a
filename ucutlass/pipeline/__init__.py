"""Plans pipelines: extents and shapes of stages, memory orders, streams, workspace, and fusion candidates."""
