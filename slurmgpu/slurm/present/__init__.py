"""What a cluster is like at this moment: nodes and what is taken of them, queues, limits and what is used of them."""
