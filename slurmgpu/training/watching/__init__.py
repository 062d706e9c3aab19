"""What a run measures and says, and when it is to stop: metrics, notes, profiles, signals, the clock, a hang."""
