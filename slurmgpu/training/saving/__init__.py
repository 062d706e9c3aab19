"""Checkpoints: copied while the training goes on, written whole, kept from a second writer."""
