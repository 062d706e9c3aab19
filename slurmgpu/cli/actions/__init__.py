"""What the commands do; each is imported when its command is called."""
