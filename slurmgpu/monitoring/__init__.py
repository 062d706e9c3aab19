"""What became of jobs: status, waiting, cancelling."""
