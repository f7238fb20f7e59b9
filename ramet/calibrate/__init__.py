"""Calibrations fitted to labelled rows: what `ramet calibrate` computes."""
