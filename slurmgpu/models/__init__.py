"""What things are: frozen models, no I/O."""
