"""The processes of a run: who each is, which device it has, and what they tell each other."""
