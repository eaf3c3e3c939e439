"""What runs a whole gateway on one machine: child processes and Envoy."""
