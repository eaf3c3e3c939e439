"""Asks a running kvpicker what it would do with a request."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

from ext_proc.core.errors import ConfigError
from ext_proc.core.names import READ_HEADERS
from ext_proc.core.rehearsal import Asked
from ext_proc.ops import admin_client


async def ask(admin: str, asked: Asked) -> dict[str, Any]:
    """Return what the kvpicker whose admin server has this URL would do with a request.

    Raises:
        ConfigError: it cannot be reached, or does not answer as it should.
    """
    url = admin_client.page(admin, "/debug/explain")
    headers = {name: value for name, value in asked.headers.items() if name in READ_HEADERS}
    query = {"path": asked.path, "method": asked.method}
    answer = await admin_client.ask("POST", url, query=query, headers=headers, body=asked.body)
    if answer.status == HTTPStatus.OK and "verdict" in answer.told:
        return answer.told
    advice = "; is it a kvpicker of this version?" if answer.status in (HTTPStatus.OK, HTTPStatus.NOT_FOUND) else ""
    complaint = answer.complaint("this is no explanation")
    raise ConfigError(f"{url} answered {answer.status}: {complaint}{advice}", path="--admin")
