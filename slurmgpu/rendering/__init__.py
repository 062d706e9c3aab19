"""Plan -> script text: pure."""
