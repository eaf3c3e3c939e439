"""Who may change the state of endpoints: whoever shows the bearer token that the configuration names."""

from __future__ import annotations

import hmac
import os
from collections.abc import Mapping
from http import HTTPStatus
from pathlib import Path

from ext_proc.config import AdminConfig
from ext_proc.core.errors import ConfigError

LONGEST_TOKEN = 4096

HOW = (
    "no token is configured, so nothing can be changed here; name one in kvpicker's configuration by"
    " `admin.token_file` or `admin.token_env`, and restart kvpicker"
)


def read_token(config: AdminConfig) -> str | None:
    """Return the token; None if none is configured.

    Raises:
        ConfigError: the variable or the file that is to hold it cannot be used.
    """
    if config.token_env is not None:
        token = os.environ.get(config.token_env, "").strip()
        if not token:
            raise ConfigError("the environment variable that it names is not set or empty", path="admin.token_env")
        return token
    if config.token_file is not None:
        return token_of(Path(config.token_file), "admin.token_file")
    return None


def token_of(path: Path, field: str) -> str:
    """Read a token from a file; `field` says who names it.

    Raises:
        ConfigError: it cannot be read, or holds none.
    """
    try:
        with path.open("rb") as file:
            token = file.read(LONGEST_TOKEN + 1).decode("ascii").strip()
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}", path=field) from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path} holds no token: it is not ASCII text", path=field) from None
    if not token or len(token) > LONGEST_TOKEN or any(not character.isprintable() for character in token):
        raise ConfigError(f"{path} holds no token; write one line of text", path=field)
    return token


def objection(config: AdminConfig, headers: Mapping[str, str]) -> tuple[HTTPStatus, str] | None:
    """Return why a request may change nothing, as an HTTP status and a text; None if it may."""
    try:
        token = read_token(config)
    except ConfigError as error:
        return HTTPStatus.FORBIDDEN, str(error)
    if token is None:
        return HTTPStatus.FORBIDDEN, HOW
    scheme, _, shown = headers.get("Authorization", "").partition(" ")
    if scheme.lower() != "bearer":
        return HTTPStatus.UNAUTHORIZED, "this needs the header Authorization: Bearer TOKEN"
    if not hmac.compare_digest(_bytes(shown.strip()), _bytes(token)):
        return HTTPStatus.UNAUTHORIZED, "this is not the token"
    return None


def _bytes(token: str) -> bytes:
    """Return the bytes that came, of which some may be no UTF-8."""
    return token.encode("utf-8", "surrogateescape")
