"""What takes the time of a training's steps, read from a trace of torch's profiler, and what to change.

The standard library alone, because it is read on login nodes as well as at the end of a profile.
"""
