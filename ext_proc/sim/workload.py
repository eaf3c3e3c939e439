"""What a simulated fleet is asked: requests with arrival times, lengths and the ids of their blocks."""

from __future__ import annotations

import msgspec


class SimRequest(msgspec.Struct, frozen=True, gc=False):
    """One request of a workload.

    Attributes:
        at: arrival in seconds since the start; where `after` is set: think seconds after the end of that request.
        prompt_tokens: tokens of the prompt.
        output_tokens: tokens that the engine generates; at least 1.
        blocks: ids of the prompt's whole blocks, in order; equal ids mean equal prefixes up to that block.
        output_blocks: ids of the whole blocks that prompt and output fill beyond `blocks`: the history that the next
            turn of a conversation begins with.
        session: the conversation it belongs to; empty if to none.
        after: position in the workload of the request whose end starts the think time; None for an open arrival.
    """

    at: float
    prompt_tokens: int
    output_tokens: int
    blocks: tuple[int, ...]
    output_blocks: tuple[int, ...] = ()
    session: str = ""
    after: int | None = None


class Workload(msgspec.Struct, frozen=True):
    """Requests to replay; open arrivals stand in the order of their times.

    Attributes:
        name: what tables and plots call it.
        block_tokens: tokens of a block.
        requests: the requests; a follow-up stands behind the request it waits for.
    """

    name: str
    block_tokens: int
    requests: tuple[SimRequest, ...]
