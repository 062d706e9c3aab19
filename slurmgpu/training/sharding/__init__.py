"""Models of which each process has a piece: how they are sharded, and what of them is this process's own."""
