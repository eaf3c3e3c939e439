"""Conversations get their names in Envoy, and nothing else of what clients send leaves it."""

from __future__ import annotations

from typing import Any

import pytest

from ext_proc.bootstrap import EnvoyOptions, render
from ext_proc.core.errors import ConfigError
from tests.unit.bootstrap.lab import Gateway, running

NAME = "x-kvpicker-session"


async def _told(gateway: Gateway, **headers: str) -> dict[str, str]:
    """The headers of a request as the picker sees them."""
    gateway.picker.requests.clear()
    assert (await gateway.post(**headers))[0] == 200
    first = gateway.picker.requests[0].request_headers
    assert first is not None
    assert first.headers is not None
    return {header.key: header.raw_value.decode() for header in first.headers.headers}


@pytest.mark.envoy
async def test_the_picker_sees_the_named_cookie_and_no_other() -> None:
    """The cookie's value arrives under our name; the other cookies and the credentials stay in Envoy."""
    async with running(session_cookie="chat_id") as gateway:
        told = await _told(gateway, cookie="login=secret; chat_id=c-17; theme=dark", authorization="Bearer secret")
        assert told[NAME] == "c-17"
        assert "secret" not in repr(gateway.picker.requests)
        assert {"cookie", "authorization"}.isdisjoint(told)
        assert gateway.engine.requests[0][0].headers["cookie"] == "login=secret; chat_id=c-17; theme=dark"


@pytest.mark.envoy
async def test_a_request_without_the_cookie_has_no_name() -> None:
    """Neither an empty name nor that of the request before."""
    async with running(session_cookie="chat_id") as gateway:
        await _told(gateway, cookie="chat_id=c-17")
        assert NAME not in await _told(gateway, cookie="theme=dark")
        assert NAME not in await _told(gateway)


@pytest.mark.envoy
async def test_the_header_goes_before_the_cookie() -> None:
    """Where both are named and both are there, the header counts; where it is absent, the cookie."""
    async with running(session_header="x-thread", session_cookie="chat_id") as gateway:
        assert (await _told(gateway, cookie="chat_id=c-17", x_thread="t-4"))[NAME] == "t-4"
        assert (await _told(gateway, cookie="chat_id=c-17"))[NAME] == "c-17"
        assert NAME not in await _told(gateway)


@pytest.mark.envoy
@pytest.mark.parametrize("options", [{}, {"session_header": "x-thread"}], ids=["none", "header"])
async def test_a_client_cannot_give_the_name_itself(options: dict[str, Any]) -> None:
    """Our header is taken away from clients before it is set."""
    async with running(**options) as gateway:
        assert NAME not in await _told(gateway, x_kvpicker_session="mine")


def test_without_a_name_no_filter_is_added() -> None:
    """The configuration of those who need no sessions stays as it is."""
    assert "header_to_metadata" not in repr(render(EnvoyOptions()))


@pytest.mark.parametrize("wrong", ["", "a b", "x)%%REQ(authorization", "naïve", "a" * 101], ids=repr)
@pytest.mark.parametrize("option", ["session_header", "session_cookie"])
def test_what_is_no_name_is_refused(option: str, wrong: str) -> None:
    """A name cannot smuggle a formatter into the configuration."""
    with pytest.raises(ConfigError, match=f"{option}: .* is not a name; use letters"):
        EnvoyOptions(**{option: wrong})


@pytest.mark.parametrize(
    "name",
    ["authorization", "Authorization", "authorization-extra", "cookie", "proxy-authorization", "X-API-Key", "api-key"],
)
def test_a_credential_is_no_name_of_a_session(name: str) -> None:
    """Headers that carry credentials never reach the picker, not even by an operator's choice."""
    with pytest.raises(ConfigError, match=f"session_header: `{name}` carries credentials"):
        EnvoyOptions(session_header=name)


def test_a_header_that_only_sounds_alike_is_allowed() -> None:
    """Only what carries credentials as a rule is refused."""
    assert EnvoyOptions(session_header="x-thread-cookie").session_header == "x-thread-cookie"


@pytest.mark.parametrize("option", ["tenant_header", "priority_header"])
def test_tenants_are_not_named_by_credentials(option: str) -> None:
    """A key would be sent to kvpicker; a hash of it in another header will do."""
    with pytest.raises(ConfigError, match=f"{option}: `X-Api-Key` carries credentials"):
        EnvoyOptions(**{option: "X-Api-Key"})
