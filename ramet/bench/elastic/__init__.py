"""Replies whose chunks are of a chosen size, beside fixed ones, whole blocks and a token a step."""
