"""Two runs of the same rows, compared: what `ramet agree` computes."""
