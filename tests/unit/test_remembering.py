"""Cordons and drains outlive kvpicker's process."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import random
import subprocess
import sys
import urllib.request
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ext_proc.app import Service
from ext_proc.assembly import build_core
from ext_proc.cli import main
from ext_proc.config import Config, load
from ext_proc.core.model import Api, Decision, InferenceRequest, Operation
from ext_proc.core.observer import NoObserver
from ext_proc.core.pool import EndpointSpec
from ext_proc.draining import Draining
from ext_proc.ops.events import Event
from ext_proc.remembering import AWAITED_S, HEARING_SHARE, orders_path

A, B, C = "10.0.0.11:8000", "10.0.0.12:8000", "10.0.0.13:8000"
TOKEN = "sesame-of-the-test"


class Place:
    """Where one kvpicker after the other runs."""

    def __init__(self, folder: Path, *, envoy: bool = False, orders: Path | None = None) -> None:
        self.config = folder / "kvpicker.yaml"
        self.output = io.BytesIO()
        (folder / "token").write_text(TOKEN)
        admin = {"listen": "127.0.0.1:0", "token_file": str(folder / "token")}
        if orders is not None:
            admin["orders_file"] = str(orders)
        written = {
            "listen": ["127.0.0.1:0"],
            "admin": admin,
            "drain_s": 0,
            "scrape": {"enabled": False},
            "health": {"probes": {"enabled": False}},
            "envoy": {"endpoints_file": str(folder / "eds.json")} if envoy else {},
            "pools": {"main": {"endpoints": [A, B, C], "models": ["acme/chat-8b"]}},
        }
        self.config.write_text(json.dumps(written))

    def service(self) -> Service:
        """Make a kvpicker, with a log of its own."""
        self.output = io.BytesIO()
        return Service(load(self.config), self.config, self.output)

    def logged(self, event: str) -> list[dict[str, Any]]:
        """Return the log lines of an event of the latest kvpicker."""
        lines = [json.loads(line) for line in self.output.getvalue().splitlines()]
        return [line for line in lines if line["event"] == event]


class Process:
    """What of a kvpicker has to do with orders, from a start to an end without a warning.

    Args:
        config: says where orders are kept.
        listed: the endpoints that are known at once.
    """

    def __init__(self, config: Config, *listed: str) -> None:
        self.said: list[tuple[Event, dict[str, Any]]] = []
        self.now = 1_000.0
        self.core = build_core(config, NoObserver())
        self.draining = Draining(self.core, config, lambda: None, self._say, lambda: self.now)
        self.draining.memory.restore()
        self.list(*listed)

    def list(self, *listed: str, models: Collection[str] = ("acme/chat-8b",)) -> None:
        """Make these all endpoints there are."""
        specs = [EndpointSpec(address=address, models=frozenset(models)) for address in listed]
        self.core.follow(self.core.registry.replace("main", specs))

    def look(self, later: float = 0.0) -> None:
        """Do what is done every second, so many seconds later."""
        self.now += later
        self.draining.advance()

    @property
    def stages(self) -> dict[str, str]:
        """Where each endpoint stands."""
        return {mark.endpoint.address: mark.stage.value for mark, _ in self.draining.listed()}

    def _say(self, event: Event, **fields: Any) -> None:
        self.said.append((event, fields))


@pytest.fixture
def kept(tmp_path: Path) -> Config:
    """Return a configuration that keeps orders."""
    return load(Place(tmp_path, envoy=True).config)


def stages(service: Service) -> dict[str, str]:
    """Return where each endpoint stands."""
    return {mark.endpoint.address: mark.stage.value for mark, _ in service._draining.listed()}


async def test_orders_hold_after_a_restart(tmp_path: Path) -> None:
    """Envoy is told at once, the log says that they hold, and what was taken back stays taken back."""
    place = Place(tmp_path, envoy=True)
    async with place.service() as first:
        first._draining.cordon(A)
        first._draining.drain(B, 60)
        first._draining.cordon(C)
        first._draining.undrain(C)
    async with place.service() as second:
        assert stages(second) == {A: "cordoned", B: "drained", C: "active"}
        assert place.logged("orders_restored")[0]["orders"] == 2
        (started,) = place.logged("server_started")
        assert Path(started["orders_file"]).parent == tmp_path
        assert (tmp_path / "eds.json").read_text().count("DRAINING") == 2


def test_what_was_taken_back_stays_so(kept: Config) -> None:
    """A third process finds nothing that holds, and does not speak of it."""
    Process(kept, A).draining.cordon(A)
    Process(kept, A).draining.undrain(A)
    third = Process(kept, A)
    assert third.stages == {A: "active"}
    assert not third.said


def test_a_drain_goes_on_with_its_deadline(kept: Config) -> None:
    """And is over where nothing runs, once it would have been heard of."""
    first = Process(kept, A)
    asked = InferenceRequest(operation=Operation.CHAT, api=Api.OPENAI, model="acme/chat-8b", prompt_tokens=10)
    assert isinstance(first.core.picker.pick(asked, first.now, random.Random(0)), Decision)
    first.draining.drain(A, 60)
    assert first.stages == {A: "draining"}
    second = Process(kept, A)
    (mark,) = second.draining.find(A)
    assert mark.stage == "draining"
    assert 50 < (second.draining.remaining(mark) or 0) <= 60
    second.look(2.0)
    assert second.stages == {A: "draining"}
    second.look(HEARING_SHARE * kept.leases.renewal_timeout_s)
    assert second.stages == {A: "drained"}
    assert Process(kept, A).stages == {A: "drained"}


def test_an_order_waits_for_an_endpoint_that_is_listed_late(kept: Config) -> None:
    """As long as a source may take, over several restarts; after that it is dropped, from the file too."""
    Process(kept, A, B).draining.cordon(A)
    for _ in range(2):
        process = Process(kept, B)
        process.look(AWAITED_S - 1)
    process.list(A, B)
    assert process.stages == {A: "cordoned", B: "active"}
    Process(kept, B).look(AWAITED_S + 1)
    assert Process(kept, A, B).stages == {A: "active", B: "active"}


def test_what_leaves_while_kvpicker_runs_starts_afresh(kept: Config) -> None:
    """The file forgets it with the endpoint."""
    first = Process(kept, A, B)
    first.draining.cordon(A)
    first.list(B)
    first.look()
    assert Process(kept, A, B).stages == {A: "active", B: "active"}


@pytest.mark.parametrize(
    ("models", "expected"),
    [
        (("acme/chat-8b",), "cordoned"),
        (("acme/chat-8b", "acme/chat-8b-legal"), "cordoned"),
        (("acme/embed-1",), "active"),
    ],
)
def test_another_model_at_the_address_does_not_inherit_the_order(
    kept: Config, models: tuple[str, ...], expected: str
) -> None:
    """It is another engine that got the address while nobody looked; the file forgets the order too."""
    Process(kept, A, B).draining.cordon(A)
    second = Process(kept)
    second.list(A, models=models)
    assert second.stages == {A: expected}
    second.look()
    told = [(each["before"], each["state"]) for event, each in second.said if event is Event.LIFECYCLE_CHANGED]
    assert told == ([] if expected == "cordoned" else [("cordoned", "active")])
    third = Process(kept)
    third.list(A, models=models)
    assert third.stages == {A: expected}


@pytest.mark.parametrize(("model", "expected"), [("acme/chat-8b", "cordoned"), ("acme/embed-1", "active")])
def test_an_order_holds_until_the_engine_says_what_it_serves(kept: Config, model: str, expected: str) -> None:
    """Where models are learnt nobody knows at first; after a further restart meanwhile it is still compared."""
    Process(kept, A).draining.cordon(A)
    for _ in range(2):
        process = Process(kept)
        process.list(A, models=())
        process.look()
        assert process.stages == {A: "cordoned"}
    (endpoint,) = process.core.registry.snapshot.endpoints
    change = process.core.registry.learn(A, endpoint.generation, frozenset({model}))
    assert change is not None
    process.core.follow(change)
    assert process.stages == {A: expected}
    admitted = process.core.lifecycle.out
    assert bool(admitted) == (expected == "cordoned")


def test_an_order_on_one_of_many_is_written_with_all_others(kept: Config) -> None:
    """Those still waiting for their endpoint among them."""
    Process(kept, A, B).draining.cordon(A)
    Process(kept, B).draining.cordon(B)
    assert Process(kept, A, B).stages == {A: "cordoned", B: "cordoned"}


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ('{"version": 1, "orders": [{"addr', "is no file of orders"),
        ('{"version": 2, "orders": {"new": "shape"}}', "has version 2, and this kvpicker knows 1"),
        ("", "is no file of orders"),
    ],
    ids=["broken", "later version", "empty"],
)
def test_a_file_that_cannot_be_used_is_set_aside(tmp_path: Path, content: str, reason: str) -> None:
    """Kvpicker starts with one warning, and no order it is given overwrites what a later version left (I12)."""
    orders, aside = tmp_path / "orders.json", tmp_path / "orders.json.unusable"
    orders.write_text(content)
    config = load(Place(tmp_path, orders=orders).config)
    first = Process(config, A, B)
    ((event, fields),) = first.said
    assert (event, fields["source"], fields["set_aside"]) == (Event.SOURCE_FAILED, "orders", str(aside))
    assert f"{orders}: {reason}" in fields["reason"]
    first.look()
    first.draining.cordon(A)
    failures = [event for event, _ in first.said if event is Event.SOURCE_FAILED]
    assert (aside.read_text(), len(failures)) == (content, 1)
    second = Process(config, A, B)
    assert second.stages == {A: "cordoned", B: "active"}
    assert [event for event, _ in second.said] == [Event.ORDERS_RESTORED]


def test_a_file_that_cannot_be_moved_stops_nothing(tmp_path: Path) -> None:
    """Its place may be written later; until then orders hold as long as the process (I12)."""
    orders = tmp_path / "orders.json"
    orders.mkdir()
    (tmp_path / "orders.json.unusable").write_text("in the way of a folder")
    first = Process(load(Place(tmp_path, orders=orders).config), A, B)
    first.draining.cordon(A)
    assert first.stages == {A: "cordoned", B: "active"}
    assert {fields.get("set_aside") for _, fields in first.said} == {None}


async def test_a_service_starts_with_the_state_of_another_version(tmp_path: Path) -> None:
    """It listens, and its log has the one warning (I12)."""
    orders = tmp_path / "orders.json"
    orders.write_text('{"version": 7}')
    place = Place(tmp_path, orders=orders)
    async with place.service():
        assert place.logged("server_started")
    warnings = [line for line in map(json.loads, place.output.getvalue().splitlines()) if line["level"] == "warning"]
    assert [(line["event"], line["source"]) for line in warnings] == [("source_failed", "orders")]


def test_a_place_that_cannot_be_written_is_told_before_it_is_needed(tmp_path: Path) -> None:
    """Once, with the reason; orders hold as long as the process, and are written once they can be."""
    config = load(Place(tmp_path, orders=tmp_path / "later" / "orders.json").config)
    first = Process(config, A)
    first.draining.cordon(A)
    first.look()
    failures = [fields["reason"] for event, fields in first.said if event is Event.SOURCE_FAILED]
    assert len(failures) == 1
    assert "cannot be written: No such file or directory" in failures[0]
    assert first.draining.memory.is_degraded
    assert not first.draining.outlives_restart
    assert first.stages == {A: "cordoned"}
    (tmp_path / "later").mkdir()
    first.look()
    assert not first.draining.memory.is_degraded
    assert first.said[-1][0] is Event.SOURCE_RECOVERED
    assert Process(config, A).stages == {A: "cordoned"}


async def test_without_a_place_orders_are_forgotten_and_the_answer_says_so(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """As in a container whose file system is read-only: that is no fault."""
    place = Place(tmp_path)
    async with place.service() as service:
        admin = ["--admin", service.admin_address, "--token-file", str(tmp_path / "token")]
        assert await asyncio.to_thread(main, ["cordon", A, *admin]) == 0
        assert "a restart of kvpicker forgets this" in capfd.readouterr().err
        assert await asyncio.to_thread(main, ["undrain", A, *admin]) == 0
        assert "forgets" not in capfd.readouterr().err
        assert not service._degraded()["orders"]
        (started,) = place.logged("server_started")
        assert started["orders_file"] is None


def test_several_kvpickers_of_one_envoy_have_a_file_each(tmp_path: Path, kept: Config) -> None:
    """Though they write one endpoints file."""
    paths = {orders_path(msgspec.structs.replace(kept, listen=(f"unix:/run/{name}.sock",))) for name in "ab"}
    assert len(paths) == 2
    assert all(path is not None and path.parent == tmp_path and path.name != "eds.json" for path in paths)


@contextlib.contextmanager
def serving(place: Place) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """Run kvpicker as a process of its own; yields it with the address of its admin server."""
    command = [sys.executable, "-m", "ext_proc.cli", "serve", str(place.config)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            started = next(line for line in process.stdout if b"server_started" in line)
            yield process, json.loads(started)["admin"]
        finally:
            process.kill()


def test_a_kill_forgets_nothing(tmp_path: Path) -> None:
    """What was answered was written: the process may die the moment after."""
    place = Place(tmp_path, envoy=True)
    with serving(place) as (process, admin):
        request = urllib.request.Request(f"http://{admin}/endpoints/{A}/cordon", method="POST")
        request.add_header("Authorization", f"Bearer {TOKEN}")
        with urllib.request.urlopen(request) as answer:  # noqa: S310  as above
            told = json.load(answer)
        process.kill()
    assert told["outlives_restart"] is True
    with serving(place) as (_, admin), urllib.request.urlopen(f"http://{admin}/endpoints") as answer:
        found = {row["address"]: row["lifecycle"] for row in json.load(answer)["endpoints"]}
    assert found == {A: "cordoned", B: "active", C: "active"}
