"""The settings of listening to KV events."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from ext_proc.config.section import Port, Section
from ext_proc.core.pool import EndpointSpec

Offset = Annotated[int, Meta(ge=-65_535, le=65_535)]
Share = Annotated[float, Meta(ge=0, le=1)]
Ranks = Annotated[int, Meta(ge=1, le=64)]


class KvEventsConfig(Section, frozen=True, kw_only=True):
    """Listening to the KV events of engines that publish them over ZMQ: vLLM and SGLang with `--kv-events-config`.

    They are of use together with `tokens`, since events tell tokens and no text. They need `kvpicker[kv-events]`.

    Attributes:
        port: Port of the first publisher, at the endpoint's own address.
        port_offset: The same as the endpoint's port and so many more, for several engines at one address; in place of
            `port`.
        replay_port: Port where events can be asked for again (the engine's `replay_endpoint`). Without one, a lost
            message ends the belief in all that was held before, and a late start knows only what comes after it.
        replay_port_offset: The same as the endpoint's port and so many more.
        ranks: Data-parallel ranks of an engine; each publishes, and replays, at the port after that of the one before.
        pin_rank: Whether a request names the rank that is to answer it, in the header `x-data-parallel-rank` (vLLM,
            SGLang): the one that can begin soonest, by what it holds of the prompt and by what it has to do. Where the
            tokens of a request are not known, or a rank has not been heard yet, the engine chooses. Without this it
            always does, and its ranks count as their mean.
        topic: What the topics that count begin with.
        cpu_weight: What a cached token counts that lies in CPU memory: 1 were one on the GPU, 0 is none. The default
            is for a transfer that costs a fifth of computing.
        disk_weight: The same on a disk.
        external_weight: The same in a store outside of the engine, or in a medium of another name.
    """

    port: Port | None = None
    port_offset: Offset | None = None
    replay_port: Port | None = None
    replay_port_offset: Offset | None = None
    ranks: Ranks = 1
    pin_rank: bool = False
    topic: Annotated[str, Meta(max_length=256)] = ""
    cpu_weight: Share = 0.8
    disk_weight: Share = 0.3
    external_weight: Share = 0.6

    def ranked(self, endpoint: EndpointSpec) -> EndpointSpec:
        """Have an endpoint that does not say how many ranks it has take what is said here."""
        return endpoint if endpoint.ranks or self.ranks == 1 else msgspec.structs.replace(endpoint, ranks=self.ranks)

    def problem(self) -> tuple[str, str] | None:
        """Return a field and what is wrong with it; None if all is well."""
        if self.port is None and self.port_offset is None:
            return "port", "missing; write the port of the engines' publishers, `port` or `port_offset`"
        for one, other in (("port", "port_offset"), ("replay_port", "replay_port_offset")):
            if getattr(self, one) is not None and getattr(self, other) is not None:
                return other, f"`{one}` says the same; remove one"
        pairs = {"replay_port": (self.port, self.replay_port)}
        pairs["replay_port_offset"] = self.port_offset, self.replay_port_offset
        for name, (first, again) in pairs.items():
            if first is not None and again is not None and abs(first - again) < self.ranks:
                return name, f"overlaps the publishers' ports; leave room for {self.ranks} of each"
        if self.pin_rank and self.ranks == 1:
            return "pin_rank", "there is one rank only; write how many in `ranks`, or remove this"
        return None
