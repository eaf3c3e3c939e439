"""kvpicker: an ext_proc endpoint picker for LLM inference behind a stock Envoy.

The names below are for authors of strategies.
"""

from ext_proc.core.model import Endpoint, InferenceRequest
from ext_proc.core.strategies import Context, Ranking, Strategy

__all__ = ["Context", "Endpoint", "InferenceRequest", "Ranking", "Strategy"]
