"""Whether a place is fit to run the user's jobs: what is measured there, and what is said of it."""
