"""The verdict on a profile: what takes the time of a training's steps, and what to change.

The standard library alone, because it is read on login nodes as well as at the end of a profile.
"""
