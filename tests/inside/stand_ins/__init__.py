"""Programs that stand in for container runtimes that cannot be had here."""
