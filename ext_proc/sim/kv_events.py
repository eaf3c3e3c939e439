"""The KV events of the simulated engine over ZMQ, written like those of vLLM 0.32, with answers to who missed some."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Sequence
from typing import Any, Final, NamedTuple, Self

import msgspec
import zmq
import zmq.asyncio

from ext_proc.sim import tokens

KEPT_BATCHES: Final = 10_000
TOPIC: Final = b"kv-events"
_NUMBER_BYTES: Final = 8
_END: Final = b"\xff" * _NUMBER_BYTES
_SPARE_BLOCKS: Final = 100_000


class _Content(NamedTuple):
    """What a block holds, and after which block it comes; None for the first of a prompt."""

    parent: int | None
    data: bytes
    adapter: str | None
    salt: str


class KvPublisher:
    """A journal of the cache that publishes: all changes of one turn of the event loop are one batch.

    Args:
        host: address to publish at.
        port: port to publish at; 0 takes a free one.
        replay_port: port to answer at; 0 takes a free one.
        block_size: tokens per block.
        model: the base model; other names are adapters.
    """

    def __init__(self, host: str, port: int, replay_port: int, *, block_size: int, model: str) -> None:
        self._block_size = block_size
        self._model = model
        self._contents: dict[int, _Content] = {}
        self._held: set[int] = set()
        self._events: list[dict[str, Any]] = []
        self._kept: deque[tuple[int, bytes]] = deque(maxlen=KEPT_BATCHES)
        self._number = 0
        self._answering: asyncio.Task[None] | None = None
        self._context = zmq.asyncio.Context()
        self._publisher = self._context.socket(zmq.PUB)
        # Sends at once: the cache changes outside of any coroutine.
        self._direct: zmq.Socket[bytes] = zmq.Socket.shadow(self._publisher.underlying)
        self._router = self._context.socket(zmq.ROUTER)
        try:
            self._ports = _bind(self._publisher, host, port), _bind(self._router, host, replay_port)
        except BaseException:
            self._context.destroy(linger=0)
            raise

    @property
    def ports(self) -> tuple[int, int]:
        """Where it publishes and where it answers."""
        return self._ports

    async def __aenter__(self) -> Self:
        self._answering = asyncio.create_task(self._answer())
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._answering is not None:
            self._answering.cancel()
            await asyncio.gather(self._answering, return_exceptions=True)
        self._context.destroy(linger=0)

    def learn(self, chain: Sequence[int], content: bytes, model: str, salt: str) -> None:
        """Note what the blocks of a sequence hold, in case that they come to be stored."""
        if len(self._contents) > 2 * len(self._held) + _SPARE_BLOCKS:
            self._contents = {block: self._contents[block] for block in self._held}
        step = self._block_size * tokens.TOKEN_BYTES
        adapter = model if model != self._model else None
        parent = None
        for place, block in enumerate(chain):
            data = content[place * step : (place + 1) * step]
            self._contents.setdefault(block, _Content(parent, data, adapter, salt if place == 0 else ""))
            parent = block

    def stored(self, blocks: Sequence[int]) -> None:
        """Tell that blocks are held, parents before children."""
        for block in blocks:
            content = self._contents.get(block)
            if content is None:
                continue
            self._held.add(block)
            last = self._events[-1] if self._events else {}
            if last.get("type") == "BlockStored" and last["block_hashes"][-1] == content.parent:
                last["block_hashes"].append(block)
                last["token_ids"] += tokens.to_ids(content.data)
                last["extra_keys"].append(_extra_keys(content))
            else:
                self._tell(self._stored_event(block, content))

    def removed(self, block: int) -> None:
        """Tell that a block is held no more."""
        self._held.discard(block)
        if self._contents.pop(block, None) is not None:
            self._tell({"type": "BlockRemoved", "block_hashes": [block], "medium": "GPU", "group_idx": 0})

    def cleared(self) -> None:
        """Tell that nothing is held any more."""
        self._held.clear()
        self._tell({"type": "AllBlocksCleared"})

    def _stored_event(self, block: int, content: _Content) -> dict[str, Any]:
        return {
            "type": "BlockStored",
            "block_hashes": [block],
            "parent_block_hash": content.parent,
            "token_ids": tokens.to_ids(content.data),
            "block_size": self._block_size,
            "lora_id": None,
            "medium": "GPU",
            "lora_name": content.adapter,
            "extra_keys": [_extra_keys(content)],
            "group_idx": 0,
            "kv_cache_spec_kind": "full_attention",
        }

    def _tell(self, event: dict[str, Any]) -> None:
        if not self._events:
            asyncio.get_running_loop().call_soon(self._publish)
        self._events.append(event)

    def _publish(self) -> None:
        events, self._events = self._events, []
        if self._publisher.closed:
            return
        payload = msgspec.msgpack.encode([time.time(), events, 0])
        self._kept.append((self._number, payload))
        self._direct.send_multipart([TOPIC, self._number.to_bytes(_NUMBER_BYTES, "big"), payload], zmq.NOBLOCK)
        self._number += 1

    async def _answer(self) -> None:
        while True:
            client, *rest = await self._router.recv_multipart()
            first = int.from_bytes(rest[-1], "big") if rest else 0
            for number, payload in list(self._kept):
                if number >= first:
                    await self._router.send_multipart(
                        [client, b"", TOPIC, number.to_bytes(_NUMBER_BYTES, "big"), payload]
                    )
            await self._router.send_multipart([client, b"", TOPIC, _END, b""])


def _extra_keys(content: _Content) -> list[str] | None:
    return [key for key in (content.adapter, content.salt) if key] or None


def _bind(socket: zmq.asyncio.Socket, host: str, port: int) -> int:
    socket.linger = 0
    socket.ipv6 = ":" in host
    address = f"tcp://[{host}]" if ":" in host else f"tcp://{host}"
    if port:
        socket.bind(f"{address}:{port}")
        return port
    return socket.bind_to_random_port(address)
