"""Understands requests: from method, path, headers and body bytes to an InferenceRequest."""

from ext_proc.core.prompts.parsing import INSPECT_BYTES, RequestHead, parse, parse_head
from ext_proc.core.prompts.rewriting import with_model
from ext_proc.core.prompts.routes import Route, classify

__all__ = ["INSPECT_BYTES", "RequestHead", "Route", "classify", "parse", "parse_head", "with_model"]
