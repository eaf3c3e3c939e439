"""What kvpicker costs, and what it gains; README.md says how to read the numbers."""
