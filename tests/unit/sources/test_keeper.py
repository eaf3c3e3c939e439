"""A change of endpoints takes effect everywhere at once."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ext_proc.assembly import Core, build_core
from ext_proc.config import parse
from ext_proc.core.model import Ending
from ext_proc.core.observer import NoObserver
from ext_proc.sources.eds import EdsWriter
from ext_proc.sources.keeper import EndpointKeeper
from tests.waiting import until

A, B = "10.0.0.11:8000", "10.0.0.12:8000"


class Kept:
    """A keeper with all that it keeps, and what it reported."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.eds = directory / "eds.json"
        self.core: Core = build_core(parse(f"pools: {{p: {{endpoints: ['{A}']}}}}"), NoObserver())
        self.reports: list[tuple[str, bool]] = []
        self.keeper = EndpointKeeper(
            registry=self.core.registry,
            follow=self.core.follow,
            eds=EdsWriter(self.eds, "engines"),
            on_change=lambda _: None,
            on_source=lambda source, error: self.reports.append((source, error is None)),
        )

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
    kept.eds.rmdir()
    kept.keeper.write_eds()
    kept.keeper.write_eds()
    assert [report for report in kept.reports if report[0] == "eds"] == [("eds", False), ("eds", True)]
    assert set(kept.hosts()) == {A}
