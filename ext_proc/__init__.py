"""kvpicker: an ext_proc endpoint picker for LLM inference behind a stock Envoy."""
