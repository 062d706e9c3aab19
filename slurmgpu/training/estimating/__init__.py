"""How much memory a training takes on each rank, worked out before it runs."""
