"""Analysis of recorded traffic: how much of it repeats, what keeps it from repeating, and what routing could gain."""
