"""How full endpoints and waiting rooms are."""

from __future__ import annotations

from ext_proc.core.caps import NO_CAPS, Caps
from ext_proc.core.waiting_room import Fill, Limits
from ext_proc.ops.room import Rooms, held


def test_what_is_held_stands_beside_what_may_be() -> None:
    """With the share; more than the cap is more than 1, since a cap that was lowered cuts nothing."""
    assert held(Caps(requests=8), 10, 500) == {"requests": {"used": 10, "limit": 8, "share": 1.25}, "tokens": None}
    assert held(Caps(tokens=1000), 10, 500)["tokens"] == {"used": 500, "limit": 1000, "share": 0.5}
    assert held(NO_CAPS, 10, 500) == {"requests": None, "tokens": None}


def test_queues_are_shown_by_pool() -> None:
    """Each number with its bound; a pool that nobody knows has none."""
    fill = Fill(3, 4096, 2, Limits(requests=10, bytes=8192, promises=5))
    rooms = Rooms(lambda _: NO_CAPS, lambda: {"main": fill})
    shown = rooms.queue("main")
    assert shown == {
        "requests": 3, "max_requests": 10, "bytes": 4096, "max_bytes": 8192, "promises": 2, "max_promises": 5,
    }  # fmt: skip
    assert rooms.queues() == {"main": shown}
    assert rooms.queue("other") is None
