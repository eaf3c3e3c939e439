"""Does what the image's build does, without a container engine."""
