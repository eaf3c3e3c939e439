"""The command `kvpicker explain`: where a request would go, and why."""
