"""The settings of the admin server."""

from __future__ import annotations

import re
from typing import Literal

from ext_proc.config.section import Section, Text


class AdminConfig(Section, frozen=True, kw_only=True):
    """The admin server: metrics, health, debug pages and, with a token, what changes the state of endpoints.

    Attributes:
        listen: Address of the admin server, `ip:port`; port 0 takes a free one. Loopback, since its pages
            show endpoints and decisions; open it only to those who may see them.
        pages: Who may see what is neither metrics nor health: `all` that reach the address, or `loopback`, which is
            127.0.0.1 and ::1 alone, as `kubectl exec` and `kubectl port-forward` come from.
        token_env: Name of an environment variable that holds the bearer token for what changes state: drain, undrain
            and cordon. Without a token these are refused.
        token_file: The same as a file, read at each use; in place of `token_env`.
        orders_file: Path of the file in which cordons and drains outlive a restart; its directory must be writable, and
            each kvpicker needs one of its own. Unset takes one beside `envoy.endpoints_file`; if that is unset as well,
            a restart forgets them.
    """

    listen: str = "127.0.0.1:9090"
    pages: Literal["all", "loopback"] = "all"
    token_env: Text | None = None
    token_file: Text | None = None
    orders_file: Text | None = None

    def problem(self) -> tuple[str, str] | None:
        """Return a field and what is wrong with it; None if all is well."""
        if self.token_env is not None and not re.fullmatch(r"[A-Za-z_]\w*", self.token_env, re.ASCII):
            # The text is not quoted, since it may be the token itself.
            return "token_env", "not the name of an environment variable; the token must not stand here"
        if self.token_env is not None and self.token_file is not None:
            return "token_file", "`token_env` says the same; remove one"
        return None
