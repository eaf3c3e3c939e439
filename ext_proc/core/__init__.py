"""The decision and all that it rests on: no I/O, no clock, no randomness of its own."""
