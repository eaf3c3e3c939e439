"""What feeds the pool of endpoints, and what tells Envoy of it."""
