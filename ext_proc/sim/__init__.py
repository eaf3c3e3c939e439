"""A simulated engine that behaves like vLLM, for tests, demonstrations and benchmarks."""
