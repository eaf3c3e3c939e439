"""How listening to one publisher of KV events goes."""

from __future__ import annotations

import enum

import msgspec


class Disbelief(enum.StrEnum):
    """Why the reports of a publisher are not gone by."""

    NOT_CONNECTED = "not_connected"
    NOTHING_HEARD = "nothing_heard"
    MISSING_EVENTS = "missing_events"
    SILENT = "silent"


class PublisherState(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One publisher of an endpoint: one data-parallel rank.

    Attributes:
        address: ZMQ address of the publisher.
        connected: whether there is a connection.
        disbelief: why its reports are not gone by; None if they are.
        complete: whether nothing can be held that was not reported; False after a loss, or a late start.
        blocks: blocks that it reports to hold, each tier by itself.
        block_tokens: tokens of a block; None before the first.
        messages: messages taken in since listening began, those that were asked for included.
        age_s: seconds since the latest message; None before the first.
        lag_s: seconds that the latest live one took to arrive, by the clocks of both machines; None where unknown.
        gaps: times that messages were missing.
        lost: times that they could not be had again.
        restarts: times that another process was found at the address.
    """

    address: str
    connected: bool
    disbelief: Disbelief | None
    complete: bool
    blocks: int
    block_tokens: int | None
    messages: int
    age_s: float | None
    lag_s: float | None
    gaps: int
    lost: int
    restarts: int
