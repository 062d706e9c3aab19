"""A folder for PYTHONPATH: what it holds changes Python programs of jobs that pretend to have GPUs."""
