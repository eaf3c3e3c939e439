"""Real engines (vLLM on CPU) and peers from PyPI, each in an environment of its own, and what they are compared by."""
