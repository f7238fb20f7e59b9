"""How far probabilities are from float32's."""
