"""Renders conversations by a model's own chat template, as engines do, in a sandbox (extra `tokenizers`)."""

from __future__ import annotations

import datetime as dt
import importlib
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, NoReturn

from ext_proc.core.errors import ConfigError
from ext_proc.sources.tokenizing import TokenizeError

_LOOPS_OVER_CONTENT: Final = re.compile(r"for\s+\w+\s+in\s+\w+(?:\.content\b|\[['\"]content['\"]\])")
"""How templates look that want the parts of a content one by one; others want them as one text."""


class ChatTemplate:
    """One template, with the special tokens that it may name.

    Args:
        source: the template's Jinja text.
        special: the special tokens by name, such as `bos_token`.

    Raises:
        ConfigError: Jinja is not installed, or the template cannot be read.
    """

    def __init__(self, source: str, special: Mapping[str, str]) -> None:
        environment = _environment()
        try:
            self._template = environment.from_string(source)
        except Exception as error:
            raise ConfigError(f"the chat template cannot be read: {error}") from error
        self._special = dict(special)
        self._wants_parts = bool(_LOOPS_OVER_CONTENT.search(source))

    def render(self, chat: Mapping[str, Any]) -> str:
        """Render the members of a chat request.

        Raises:
            TokenizeError: the template cannot render them, or they ask for what only an engine can do.
        """
        if chat.get("chat_template") or chat.get("continue_final_message"):
            raise TokenizeError("unsupported")
        variables = {
            **self._special,
            "add_generation_prompt": chat.get("add_generation_prompt") is not False,
            "tools": chat.get("tools") or None,
            "documents": None,
            **(chat.get("chat_template_kwargs") or {}),
            "messages": [self._message(message) for message in chat["messages"]],
        }
        try:
            rendered: str = self._template.render(variables)
        except Exception as error:
            raise TokenizeError("template") from error
        return rendered

    def _message(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """Bring a message into the form that templates are written for: contents as text, arguments as objects."""
        made = dict(message)
        content = made.get("content")
        if content is None:
            made["content"] = ""
        elif isinstance(content, list):
            made["content"] = _parts(content) if self._wants_parts else "\n".join(map(_text, content))
        elif self._wants_parts and not isinstance(content, str):
            raise TokenizeError("unsupported")
        if made.get("tool_calls"):
            made["tool_calls"] = [_call(call) for call in made["tool_calls"]]
        return made


def _environment() -> Any:
    try:
        sandbox: Any = importlib.import_module("jinja2.sandbox")
    except ImportError:
        raise ConfigError("a local tokenizer needs more packages; install kvpicker[tokenizers]") from None
    environment = sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise
    environment.globals["strftime_now"] = _now
    return environment


def _to_json(value: Any, indent: int | None = None, **options: Any) -> str:
    """Write JSON as templates expect it: no escapes for HTML, no sorted keys."""
    return json.dumps(value, ensure_ascii=options.pop("ensure_ascii", False), indent=indent, **options)


def _raise(message: str) -> NoReturn:
    raise ValueError(message)


def _now(form: str) -> str:
    """Tell the time as an engine does whose clock and zone are those of this machine."""
    return dt.datetime.now().astimezone().strftime(form)


def _parts(content: Sequence[Any]) -> list[Any]:
    return [{"type": "text", "text": part} if isinstance(part, str) else part for part in content]


def _text(part: Any) -> str:
    text = part if isinstance(part, str) else part.get("text", part.get("refusal"))
    if not isinstance(text, str):
        raise TokenizeError("unsupported")
    return text


def _call(call: Any) -> Any:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("arguments"), str):
        return call
    try:
        arguments = json.loads(function["arguments"] or "{}")
    except ValueError:
        raise TokenizeError("unsupported") from None
    return {**call, "function": {**function, "arguments": arguments}}
