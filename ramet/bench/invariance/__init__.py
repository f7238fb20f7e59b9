"""Whether an answer's bits depend on the load."""
