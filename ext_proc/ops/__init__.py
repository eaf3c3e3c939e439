"""What operators see: logs, metrics, the last decisions, and the admin server that shows them."""
