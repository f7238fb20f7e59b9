"""Timed comparisons of Ramet with its peers, on one machine, in one run."""
