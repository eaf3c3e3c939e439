"""What stands between kvpicker and the KV events of engines: relays that can be cut, and a flood in their place."""

from __future__ import annotations

import asyncio
import threading
import time

import msgspec
import zmq

from tests.fault.relay import Relay
from tests.fault.stand import EngineProcess, Stand, free_port

BLOCKS = 64
BLOCK_TOKENS = 16
BURST = 50
HEARD = 2_000
PAUSE_S = 0.001
"""Between two bursts: some three million blocks a second, several times what can be read."""


class KvStreams:
    """Relays before the publishers of all engines."""

    def __init__(self) -> None:
        self._relays: list[Relay] = []
        self._flood: Flood | None = None

    async def prepare(self, stand: Stand) -> None:
        """List the engines with relays in the place of their publishers."""
        self._relays = [Relay(free_port(), engine.kv_port) for engine in stand.engines]
        await self.mend(stand)
        ports = {engine.name: relay.listens for engine, relay in zip(stand.engines, self._relays, strict=True)}
        stand.list_entries([self._entry(engine, ports[engine.name]) for engine in stand.engines])

    async def cut(self, _stand: Stand) -> None:
        """Cut all of them."""
        for relay in self._relays:
            await relay.stop()

    async def mend(self, _stand: Stand) -> None:
        """Let them pass again."""
        for relay in self._relays:
            await relay.start()

    async def flood(self, _stand: Stand) -> None:
        """Have the culprit tell more than anybody can read."""
        await self._relays[0].stop()
        self._flood = Flood(int(str(self._relays[0].listens)))
        self._flood.start()

    async def dry(self, stand: Stand) -> None:
        """Let the culprit itself be heard again; the flood must have reached kvpicker."""
        assert self._flood is not None
        await asyncio.to_thread(self._flood.end)
        heard = await stand.kvpickers[0].metric("kvpicker_kv_event_messages_total", result="ok")
        assert heard > HEARD, f"of {self._flood.sent} messages {heard:g} were heard"
        await self._relays[0].start()

    @staticmethod
    def _entry(engine: EngineProcess, port: object) -> dict[str, object]:
        return {"address": engine.address, "kv_events_port": port, "kv_replay_port": engine.kv_replay_port}


class Flood(threading.Thread):
    """A publisher that sends as much as it can; in a thread, since the clients run in this process as well."""

    def __init__(self, port: int) -> None:
        super().__init__(daemon=True)
        self.sent = 0
        self._port = port
        self._over = threading.Event()

    def run(self) -> None:
        """Send until it is over."""
        with zmq.Context() as context, context.socket(zmq.PUB) as publisher:
            publisher.linger = 0
            publisher.bind(f"tcp://127.0.0.1:{self._port}")
            while not self._over.is_set():
                for _ in range(BURST):
                    number = self.sent.to_bytes(8, "big")
                    publisher.send_multipart([b"kv-events", number, _batch(self.sent)], zmq.NOBLOCK)
                    self.sent += 1
                time.sleep(PAUSE_S)

    def end(self) -> None:
        """Stop, and let go of the port."""
        self._over.set()
        self.join(10)


def _batch(number: int) -> bytes:
    event = {
        "type": "BlockStored",
        "block_hashes": range(number * BLOCKS, (number + 1) * BLOCKS),
        "parent_block_hash": None,
        "token_ids": [number % 50_000] * (BLOCKS * BLOCK_TOKENS),
        "block_size": BLOCK_TOKENS,
        "medium": "GPU",
    }
    return msgspec.msgpack.encode([time.time(), [{**event, "block_hashes": list(event["block_hashes"])}], 0])
