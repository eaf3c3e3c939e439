"""The filter that copies token usage from answers into metadata, so that no answer passes through Python.

It is a Lua filter, because the stock filters cannot be trusted with strangers' answers (Envoy 1.40): an event whose
data is a JSON scalar (`data: null`) ends the process with a segmentation fault in sse_to_metadata, and
json_to_metadata turns every JSON answer above the buffer limit into a 500.

Its findings are the metadata `kvpicker.usage`, key `words`: one text of `key=value` words, of which those are there
that the engine gave.

| word | meaning |
|---|---|
| `prompt`, `completion`, `cached` | prompt tokens, generated tokens, prompt tokens from the cache (OpenAI, Responses) |
| `anthropic_input`, `anthropic_output` | uncached prompt tokens, generated tokens (Anthropic) |
| `anthropic_cached` | prompt tokens from the cache, not in `anthropic_input` (Anthropic) |
| `anthropic_created` | prompt tokens written into the cache, not in `anthropic_input` (Anthropic) |
| `response_id` | id of the answer of the Responses API |
| `failed` | the status that an error in an answer that began well names, 1 if it names none |
| `cut` | 1 if a JSON answer does not end as it begins |
"""

from __future__ import annotations

from importlib import resources

from envoy_data_plane.envoy.config.core import v3 as core
from envoy_data_plane.envoy.extensions.filters.http.lua import v3 as lua


def read_usage() -> lua.Lua:
    """The filter, with its script inline."""
    script = resources.files("ext_proc.bootstrap").joinpath("usage.lua").read_text(encoding="utf-8")
    return lua.Lua(default_source_code=core.DataSource(inline_string=script))
