"""The training entrypoint: torch and the standard library only, to run wherever torch runs."""
