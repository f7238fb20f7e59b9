"""Canvases of diffusion models, from noise to text, step by step. Knows no devices."""
