"""The measurements and words of a run, and when it is to stop: metrics, notes, profiles, signals, the clock, a hang."""
