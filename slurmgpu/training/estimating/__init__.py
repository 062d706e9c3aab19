"""Memory of a training on each rank, worked out before it runs."""
