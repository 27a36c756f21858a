"""Scripts that anyone with a GPU can run: evidence for correctness, soundness and speed."""
