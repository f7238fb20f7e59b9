"""Reads of a diffusion model: one pass beside two steps."""
