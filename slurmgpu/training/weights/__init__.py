"""Weights that a training begins with: files read without running what is in them, and what of them fits a model."""
