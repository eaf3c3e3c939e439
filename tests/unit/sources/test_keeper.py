"""A change of endpoints takes effect everywhere at once."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest

from ext_proc.assembly import Core, build_core
from ext_proc.config import parse
from ext_proc.core.model import Api, Decision, Ending, InferenceRequest, Operation, Outcome
from ext_proc.core.observer import NoObserver
from ext_proc.sources.dns import NameUnknownError
from ext_proc.sources.eds import EdsWriter
from ext_proc.sources.keeper import EndpointKeeper
from tests.waiting import until

A, B = "10.0.0.11:8000", "10.0.0.12:8000"
ASKED = InferenceRequest(operation=Operation.CHAT, api=Api.OPENAI, model="m", prompt_tokens=10)


class Kept:
    """A keeper with all that it keeps, and what it reported."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.eds = directory / "eds.json"
        self.core: Core = build_core(parse(f"pools: {{p: {{endpoints: ['{A}']}}}}"), NoObserver())
        self.reports: list[tuple[str, bool]] = []
        self.known: dict[str, Sequence[str] | Exception] = {}
        self.keeper = EndpointKeeper(
            registry=self.core.registry,
            follow=self.core.follow,
            eds=EdsWriter(self.eds, "engines"),
            on_change=lambda _: None,
            on_source=lambda source, error: self.reports.append((source, error is None)),
            resolver=self,
        )

    async def resolve(self, host: str) -> Iterable[str]:
        """Look a name up in `known`."""
        answer = self.known.get(host, NameUnknownError(host))
        if isinstance(answer, Exception):
            raise answer
        return answer

    def configure(self, text: str) -> None:
        """Apply a configuration."""
        self.keeper.configure(parse(text))

    def addresses(self) -> set[str]:
        """Return the endpoints of the registry."""
        return set(self.core.registry.snapshot.by_address)

    def hosts(self) -> dict[str, str]:
        """Return the hosts in Envoy's file with their health."""
        (resource,) = json.loads(self.eds.read_text())["resources"]
        hosts = {}
        for locality in resource.get("endpoints", []):
            for entry in locality["lb_endpoints"]:
                socket = entry["endpoint"]["address"]["socket_address"]
                hosts[f"{socket['address']}:{socket['port_value']}"] = entry.get("health_status", "HEALTHY")
        return hosts


@pytest.fixture
def kept(tmp_path: Path) -> Kept:
    """Make a keeper."""
    return Kept(tmp_path)


def test_endpoints_reach_registry_ledger_and_envoy(kept: Kept) -> None:
    """A configured endpoint can be chosen, counted and used by Envoy."""
    kept.configure(f"pools: {{p: {{endpoints: ['{A}', '{B}']}}}}")
    assert kept.addresses() == {A, B} == set(kept.hosts())
    assert len(kept.core.ledger._loads) == 2


def test_ranks_are_those_of_the_endpoint_or_of_the_pool(kept: Kept) -> None:
    """An endpoint that says how many it has has them; another has as many as its pool listens to."""
    listed = f"endpoints: ['{A}', {{address: '{B}', ranks: 2}}]"
    kept.configure(f"pools: {{p: {{{listed}, kv_events: {{port: 1, ranks: 4}}}}}}")
    assert [endpoint.ranks for endpoint in kept.core.registry.snapshot.endpoints] == [4, 2]
    kept.configure(f"pools: {{p: {{{listed}}}}}")
    assert [endpoint.ranks for endpoint in kept.core.registry.snapshot.endpoints] == [1, 2]


def test_removed_endpoint_loses_its_state(kept: Kept) -> None:
    """What was known of an endpoint goes with it, so that a successor inherits nothing (E04)."""
    kept.configure(f"pools: {{p: {{endpoints: ['{A}', '{B}']}}}}")
    gone = kept.core.registry.snapshot.by_address[A]
    kept.core.index.learn(gone.slot, [1, 2, 3])
    kept.core.health.note(gone, Ending.CONNECT_FAILURE, 0.0)
    kept.configure(f"pools: {{p: {{endpoints: ['{B}']}}}}")
    assert kept.core.index.blocks(gone.slot) == 0
    assert kept.core.health.state(gone.slot) == "ready"
    assert set(kept.hosts()) == {B}


def test_removed_pool_takes_its_endpoints_along(kept: Kept) -> None:
    """A pool that leaves the configuration leaves nothing behind."""
    kept.configure(f"pools: {{p: {{endpoints: ['{A}']}}, q: {{endpoints: ['{B}']}}}}")
    kept.configure(f"pools: {{p: {{endpoints: ['{A}']}}}}")
    assert kept.addresses() == {A}


def test_only_the_default_pool_is_offered_to_the_fallback(kept: Kept) -> None:
    """Envoy may be told to use any endpoint, but chooses by itself in the default pool only."""
    kept.configure(f"{{default_pool: p, pools: {{p: {{endpoints: ['{A}']}}, q: {{endpoints: ['{B}']}}}}}}")
    assert kept.hosts() == {A: "HEALTHY", B: "UNHEALTHY"}


async def test_file_is_followed_and_its_last_good_list_kept(kept: Kept) -> None:
    """An edit of the file applies, a broken one changes nothing but is reported."""
    file = kept.directory / "engines.yaml"
    file.write_text(f"endpoints: ['{A}']")
    kept.configure(f"pools: {{p: {{endpoints_file: {file}}}}}")
    assert kept.addresses() == {A}
    file.write_text("endpoints: [broken")
    await until(lambda: ("p", False) in kept.reports)
    assert kept.addresses() == {A}
    file.write_text(f"endpoints: ['{A}', '{B}']")
    await until(lambda: kept.addresses() == {A, B})
    assert set(kept.hosts()) == {A, B}
    await kept.keeper.close()


async def test_pool_of_a_missing_file_exists_without_endpoints(kept: Kept) -> None:
    """A file that is not there yet is a pool without endpoints, and is reported."""
    kept.configure(f"pools: {{p: {{endpoints_file: {kept.directory / 'missing.yaml'}}}}}")
    assert list(kept.core.registry.snapshot.by_pool.items()) == [("p", ())]
    assert kept.reports == [("p", False)]
    await kept.keeper.close()


async def test_unread_file_does_not_empty_envoys_list(kept: Kept) -> None:
    """After a restart Envoy keeps its endpoints until their list could be read once."""
    kept.configure(f"pools: {{p: {{endpoints: ['{A}']}}}}")
    successor = Kept(kept.directory)
    successor.configure(f"pools: {{p: {{endpoints_file: {kept.directory / 'missing.yaml'}}}}}")
    assert set(successor.hosts()) == {A}
    await successor.keeper.close()


def test_unwritable_envoy_file_is_reported_until_it_can_be_written(kept: Kept) -> None:
    """A failed write is tried again and its end reported once."""
    kept.eds.mkdir()
    kept.configure(f"pools: {{p: {{endpoints: ['{A}']}}}}")
    for _ in range(3):  # it is tried every second, and no news
        kept.keeper.write_eds()
    kept.eds.rmdir()
    kept.keeper.write_eds()
    kept.keeper.write_eds()
    assert [report for report in kept.reports if report[0] == "eds"] == [("eds", False), ("eds", True)]
    assert set(kept.hosts()) == {A}


async def test_names_from_configuration_and_file_become_endpoints(kept: Kept) -> None:
    """Envoy is told their addresses, since it knows endpoints by no name (E09)."""
    kept.known = {"a.example": ["10.0.0.31"], "b.example": ["10.0.0.32", "fd00::32"]}
    file = kept.directory / "engines.yaml"
    file.write_text("endpoints: ['B.example:8001']")
    kept.configure(f"pools: {{p: {{endpoints: ['a.example:8000'], endpoints_file: {file}}}}}")
    await kept.keeper.names_known(5.0)
    assert kept.addresses() == {"10.0.0.31:8000", "10.0.0.32:8001"} == set(kept.hosts())
    endpoint = kept.core.registry.snapshot.by_address["10.0.0.32:8001"]
    assert endpoint.name == "b.example:8001"
    await kept.keeper.close()


async def test_an_endpoint_that_returns_under_a_new_address_inherits_nothing(kept: Kept) -> None:
    """Its old address goes with all that was known of it; a running request there settles without harm."""
    kept.known = {"a.example": ["10.0.0.31"]}
    kept.configure("{dns: {interval_s: 0.1}, pools: {p: {endpoints: ['a.example:8000'], models: [m]}}}")
    await kept.keeper.names_known(5.0)
    before = kept.core.registry.snapshot.by_address["10.0.0.31:8000"]
    kept.core.index.learn(before.slot, [1, 2, 3])
    decision = kept.core.picker.pick(ASKED, 1.0, random.Random(0))
    assert isinstance(decision, Decision)
    kept.known = {"a.example": ["10.0.0.32"]}
    await until(lambda: kept.addresses() == {"10.0.0.32:8000"})
    after = kept.core.registry.snapshot.by_address["10.0.0.32:8000"]
    assert after.generation != before.generation
    assert kept.core.index.blocks(after.slot) == 0
    ended = Outcome(decision_id=decision.id, ending=Ending.RESET, served=before.address)
    assert kept.core.feedback.settle(ended, 2.0)
    assert kept.core.ledger.load(after.slot).in_flight == 0
    assert kept.core.health.state(after.slot) == "ready"
    await kept.keeper.close()


async def test_names_nobody_answers_for_do_not_empty_envoys_list(kept: Kept) -> None:
    """After a restart without a name service Envoy keeps its endpoints; a name that does not exist is an answer."""
    kept.configure(f"pools: {{p: {{endpoints: ['{A}']}}}}")
    successor = Kept(kept.directory)
    successor.known = {"a.example": OSError("no server")}
    successor.configure("{dns: {interval_s: 0.1}, pools: {p: {endpoints: ['a.example:8000']}}}")
    await successor.keeper.names_known(5.0)
    successor.keeper.write_eds()
    assert set(successor.hosts()) == {A}
    assert successor.keeper.names_degraded
    successor.known = {}
    await until(lambda: successor.keeper.write_eds() or set(successor.hosts()) == set())
    await successor.keeper.close()


async def test_names_end_with_the_list_that_has_them(kept: Kept) -> None:
    """Neither look-ups nor a complaint of one are left."""
    kept.configure("pools: {p: {endpoints: ['a.example:8000']}}")
    await kept.keeper.names_known(5.0)
    assert kept.keeper.names_degraded
    kept.configure(f"pools: {{p: {{endpoints: ['{A}']}}}}")
    assert not kept.keeper.names_degraded
    assert kept.keeper._names._tasks == {}


async def test_a_configuration_that_fails_half_way_keeps_envoy_from_no_later_change(kept: Kept) -> None:
    """Whoever hears of a change may fail; the file is written with the next one all the same."""

    def broken(_: object) -> None:
        raise ZeroDivisionError

    hears, kept.keeper._on_change = kept.keeper._on_change, broken
    with pytest.raises(ZeroDivisionError):
        kept.configure(f"pools: {{p: {{endpoints: ['{A}']}}}}")
    kept.keeper._on_change = hears
    kept.keeper.write_eds()
    assert set(kept.hosts()) == {A}
