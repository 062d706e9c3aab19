"""Number of samples that fit into memory at a time: tried before the first step, in processes of their own."""
