"""Under which conditions a fleet is simulated: what kvpicker gets to know, when, and what goes wrong."""

from __future__ import annotations

import enum

import msgspec


class View(enum.StrEnum):
    """Where kvpicker's knowledge of caches comes from."""

    OBSERVED = "observed"
    EVENTS = "events"
    ORACLE = "oracle"


class Slowdown(msgspec.Struct, frozen=True, kw_only=True):
    """An engine that becomes slower.

    Attributes:
        engine: its position in the fleet.
        at: seconds since the start.
        factor: on the time of every step.
    """

    engine: int
    at: float = 0.0
    factor: float = 3.0


class Restart(msgspec.Struct, frozen=True, kw_only=True):
    """An engine that loses everything, refuses connections for a while and comes back cold.

    Attributes:
        engine: its position in the fleet.
        at: seconds since the start.
        down: seconds until it answers again.
    """

    engine: int
    at: float
    down: float = 30.0


class Conditions(msgspec.Struct, frozen=True, kw_only=True):
    """What kvpicker gets to know, when, and what goes wrong.

    Attributes:
        view: own history only; KV events too; or the engines' true caches and queues.
        end_lag: seconds from the end of a request to its outcome.
        event_lag: seconds from a change of a cache to the KV event.
        first_token: True if kvpicker hears of each first token, at once.
        scrape_interval: seconds between two scrapes of an engine; None scrapes nothing.
        scrape_jitter: share of the interval by which each one varies, either way.
        kv_factor: stated KV capacity over the true one; None states none.
        rate_factor: stated prefill rate over the true one; None states none.
        sessions: True if clients name their conversations, by which kvpicker breaks ties.
        token_noise: standard deviation of the estimated prompt tokens, as a share of the true ones.
        kvpickers: how many share the traffic at random, each knowing only its own.
        retry_s: seconds until a client asks again that was refused by all engines it was sent to.
        slowdowns: engines that become slow.
        restarts: engines that restart.
    """

    view: View = View.OBSERVED
    end_lag: float = 0.2
    event_lag: float = 0.005
    first_token: bool = True
    scrape_interval: float | None = None
    scrape_jitter: float = 0.1
    kv_factor: float | None = 1.0
    rate_factor: float | None = None
    sessions: bool = False
    token_noise: float = 0.0
    kvpickers: int = 1
    retry_s: float = 1.0
    slowdowns: tuple[Slowdown, ...] = ()
    restarts: tuple[Restart, ...] = ()
