"""A fleet of simulated engines in virtual time, driven by the same picker that serves requests."""
