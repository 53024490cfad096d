"""Finding where two runs begin to differ."""
