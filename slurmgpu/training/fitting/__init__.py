"""How many samples fit into memory at a time: tried before the first step, in processes of their own."""
