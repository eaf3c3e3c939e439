"""Gives an order to each kvpicker by its admin server, and waits for what has to end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import quote

import msgspec

from ext_proc.core.errors import ConfigError
from ext_proc.ops.admin_client import Answer, Unreachable, ask, page
from ext_proc.ops.text import counted

DONE: Final = 0
REQUESTS_LEFT: Final = 3
CALLED_OFF: Final = 4

HOLD_S: Final = 20.0
"""How long one answer is held back: below what middlemen allow, and often enough to see a kvpicker that died."""

GRACE_S: Final = 10.0
RETRY_S: Final = 0.5


class Order(msgspec.Struct, frozen=True):
    """What is to be done with an endpoint.

    Attributes:
        verb: drain, undrain or cordon.
        endpoint: `ip:port`, or a name as listed.
        token: shown to the admin servers.
        deadline: seconds after which a drain is over.
        wait: whether to wait for that.
        missing_ok: whether an endpoint that is not listed counts as done.
        say: hears what goes on, line by line.
    """

    verb: str
    endpoint: str
    token: str
    deadline: float
    wait: bool
    missing_ok: bool
    say: Callable[[str], None]


async def listed(admins: Sequence[str]) -> dict[str, Any]:
    """Return the endpoints that each kvpicker knows, by the URLs of their admin servers.

    Raises:
        ConfigError: one of them cannot be asked.
    """
    answers = await asyncio.gather(*(ask("GET", page(admin, "/endpoints")) for admin in admins))
    for answer in answers:
        if answer.status != HTTPStatus.OK or "endpoints" not in answer.told:
            raise _refused(answer)
    return {admin: answer.told["endpoints"] for admin, answer in zip(admins, answers, strict=True)}


async def give(order: Order, admins: Sequence[str]) -> int:
    """Give an order to all at once and return the worst exit status.

    Raises:
        ConfigError: one of them cannot be asked or refuses; the others have the order all the same.
    """
    given = await asyncio.gather(*(_give(order, admin) for admin in admins), return_exceptions=True)
    for result in given:
        if isinstance(result, BaseException):
            raise result
    return max(result for result in given if isinstance(result, int))


async def _give(order: Order, admin: str) -> int:
    url = page(admin, f"/endpoints/{quote(order.endpoint, safe='')}")
    headers = {"Authorization": f"Bearer {order.token}"}
    if order.verb != "drain":
        return _concluded(order, await ask("POST", f"{url}/{order.verb}", headers=headers))
    until = time.monotonic() + order.deadline
    answer = await _drain(url, headers, until)
    if not order.wait or answer.status != HTTPStatus.ACCEPTED:
        return _concluded(order, answer)
    running = counted(sum(int(row["running"]) for row in answer.told["endpoints"]), "request")
    order.say(f"{order.endpoint}: {running} running, {order.deadline:g} s to the deadline")
    while answer.status == HTTPStatus.ACCEPTED:
        instance, answer = answer.told.get("instance"), await _watch(order, url, headers, until)
        if answer.told.get("instance", instance) != instance:
            answer = await _drain(url, headers, until)
    if answer.status == HTTPStatus.NOT_FOUND:
        order.say(f"{order.endpoint}: not listed any more, and nothing runs there")
        return DONE
    return _concluded(order, answer)


async def _watch(order: Order, url: str, headers: Mapping[str, str], until: float) -> Answer:
    """Ask how it goes; a kvpicker that was restarted meanwhile, and forgot the order, gets it again."""
    try:
        return await ask("GET", url, query={"wait": f"{HOLD_S:g}s"}, timeout_s=HOLD_S + GRACE_S)
    except Unreachable as error:
        order.say(f"{error.message}; trying again")
    while True:
        await asyncio.sleep(RETRY_S)
        try:
            return await _drain(url, headers, until)
        except Unreachable:
            if time.monotonic() > until:
                raise


async def _drain(url: str, headers: Mapping[str, str], until: float) -> Answer:
    left = max(until - time.monotonic(), 0.0)
    return await ask("POST", f"{url}/drain", query={"deadline": f"{left:.3f}"}, headers=headers, timeout_s=GRACE_S)


def _concluded(order: Order, answer: Answer) -> int:
    if answer.status == HTTPStatus.NOT_FOUND and "error" in answer.told and order.missing_ok:
        order.say(f"{order.endpoint}: not listed at {answer.url}")
        return DONE
    if answer.status not in (HTTPStatus.OK, HTTPStatus.ACCEPTED) or "endpoints" not in answer.told:
        raise _refused(answer)
    if order.verb != "undrain" and answer.told.get("outlives_restart") is False:
        order.say(f"{order.endpoint}: a restart of kvpicker forgets this; `admin.orders_file` keeps it")
    return max((_one(order, row) for row in answer.told["endpoints"]), default=DONE)


def _one(order: Order, row: Mapping[str, Any]) -> int:
    """Say how one endpoint stands, and return the exit status that makes."""
    stage, running = str(row["lifecycle"]), int(row["running"])
    order.say(f"{row['address']}: {stage}, {counted(running, 'request')} running")
    if order.verb != "drain" or stage == "draining":
        return DONE
    if stage != "drained":
        order.say(f"{row['address']}: somebody called the drain off")
        return CALLED_OFF
    if not row["left"]:
        return DONE
    order.say(f"{row['address']}: the deadline passed while {counted(row['left'], 'request')} still ran")
    return REQUESTS_LEFT


def _refused(answer: Answer) -> ConfigError:
    complaint = answer.complaint("this is no list of endpoints; is it a kvpicker of this version?")
    return ConfigError(f"{answer.url} answered {answer.status}: {complaint}", path="--admin")
