"""A bounded memory of which endpoint a name was tied to: sessions and response ids."""

from __future__ import annotations

from collections import OrderedDict

from ext_proc.core.model import InferenceRequest


class Affinity:
    """Maps names to endpoint addresses; the least recently used name goes first, and each goes after `ttl` seconds."""

    def __init__(self, *, limit: int = 10_000, ttl: float = 3600.0) -> None:
        self._limit = limit
        self._ttl = ttl
        self._tied: OrderedDict[str, tuple[str, float]] = OrderedDict()

    def __len__(self) -> int:
        """Return the number of names remembered."""
        return len(self._tied)

    @property
    def fill(self) -> float:
        """How full it is, in [0, 1]."""
        return len(self._tied) / self._limit

    def copy(self) -> Affinity:
        """Return a memory of its own with the same content."""
        made = Affinity(limit=self._limit, ttl=self._ttl)
        made._tied = self._tied.copy()
        return made

    def tie(self, name: str, address: str, now: float) -> None:
        """Tie a name to an endpoint's address; `now` in monotonic seconds."""
        self._tied[name] = (address, now + self._ttl)
        self._tied.move_to_end(name)
        if len(self._tied) > self._limit:
            self._tied.popitem(last=False)

    def address(self, name: str, now: float) -> str | None:
        """Return the address a name is tied to, or None; `now` in monotonic seconds."""
        tied = self._tied.get(name)
        if tied is None:
            return None
        if tied[1] < now:
            del self._tied[name]
            return None
        self._tied.move_to_end(name)
        return tied[0]


def session_name(request: InferenceRequest) -> str:
    """Name a session per model: a client that uses two models in turn has a place for each."""
    return f"{request.model}\n{request.session}"
