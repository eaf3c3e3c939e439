"""The file from which Envoy learns its hosts."""

from __future__ import annotations

import json
import stat
from typing import TYPE_CHECKING, Any

import pytest

from ext_proc.core.errors import ConfigError
from ext_proc.core.health import HealthState
from ext_proc.core.lifecycle import Stage
from ext_proc.core.pool import EndpointSpec, Registry
from ext_proc.core.snapshot import Snapshot
from ext_proc.sources.eds import EdsWriter, HostHealth, Offer, offered, render

if TYPE_CHECKING:
    from pathlib import Path

V4, V6, OTHER = "10.0.0.11:8000", "[fd00::10]:8001", "10.0.0.17:8000"


def _snapshot(default_pool: str | None = "chat", **pools: list[str]) -> Snapshot:
    registry = Registry(default_pool)
    for pool, addresses in pools.items():
        registry.replace(pool, [EndpointSpec(address=address) for address in addresses])
    return registry.snapshot


def _hosts(text: bytes) -> dict[tuple[str, int], str]:
    (assignment,) = json.loads(text)["resources"]
    found: list[Any] = [host for locality in assignment["endpoints"] for host in locality["lb_endpoints"]]
    sockets = [host["endpoint"]["address"]["socket_address"] for host in found]
    return {
        (socket["address"], socket["port_value"]): host["health_status"]
        for socket, host in zip(sockets, found, strict=True)
    }


def test_every_endpoint_is_a_host_by_its_ip_and_port() -> None:
    """IPv6 addresses go without brackets, as socket addresses do (E07)."""
    hosts = _hosts(render(_snapshot(chat=[V4, V6]), "engines", 1))
    assert hosts == {("10.0.0.11", 8000): "HEALTHY", ("fd00::10", 8001): "HEALTHY"}


@pytest.mark.parametrize(
    ("default_pool", "healthy"),
    [("chat", {("10.0.0.11", 8000)}), ("embed", {("10.0.0.17", 8000)}), (None, set())],
    ids=["first pool", "second pool", "no default pool"],
)
def test_only_the_default_pool_is_offered_to_the_fallback_policy(
    default_pool: str | None, healthy: set[tuple[str, int]]
) -> None:
    """Traffic nobody steers never meets an engine of another pool, and none at all without a default pool."""
    hosts = _hosts(render(_snapshot(default_pool, chat=[V4], embed=[OTHER]), "engines", 1))
    assert len(hosts) == 2
    assert {host for host, health in hosts.items() if health == "HEALTHY"} == healthy


def test_the_only_pool_is_the_default() -> None:
    """With one pool nothing needs to be configured for the fallback policy."""
    assert set(_hosts(render(_snapshot(None, chat=[V4, V6]), "engines", 1)).values()) == {"HEALTHY"}


def test_an_empty_pool_is_an_empty_assignment() -> None:
    """Envoy is told that there are no hosts, not left with the old ones."""
    (assignment,) = json.loads(render(_snapshot(chat=[]), "engines", 1))["resources"]
    assert (assignment["cluster_name"], assignment["endpoints"]) == ("engines", [])


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # the codec's own, on import
def test_the_message_is_one_that_an_independent_codec_accepts() -> None:
    """Field names and values are those of Envoy's own protos."""
    from envoy_data_plane.envoy.config.core.v3 import Address, SocketAddress  # noqa: PLC0415 - slow import
    from envoy_data_plane.envoy.config.endpoint.v3 import ClusterLoadAssignment, Endpoint  # noqa: PLC0415

    (resource,) = json.loads(render(_snapshot(chat=[V4]), "engines", 1))["resources"]
    del resource["@type"]
    assignment = ClusterLoadAssignment.from_dict(resource)
    (host,) = assignment.endpoints[0].lb_endpoints
    assert assignment.cluster_name == "engines"
    assert host.endpoint == Endpoint(
        address=Address(socket_address=SocketAddress(address="10.0.0.11", port_value=8000))
    )


def test_the_file_is_replaced_as_a_whole_and_readable_by_all(tmp_path: Path) -> None:
    """A rename is what Envoy watches for, nothing else is left in the directory, and another user can read it."""
    writer = EdsWriter(tmp_path / "eds.json", "engines")
    assert writer.write(_snapshot(chat=[V4]))
    before = writer.path.stat()
    assert writer.write(_snapshot(chat=[V4, V6]))
    assert writer.path.stat().st_ino != before.st_ino
    assert stat.S_IMODE(writer.path.stat().st_mode) == 0o644
    assert [path.name for path in tmp_path.iterdir()] == ["eds.json"]


def test_the_same_endpoints_are_not_written_again(tmp_path: Path) -> None:
    """A snapshot that differs in order or labels only leaves the file alone."""
    writer = EdsWriter(tmp_path / "eds.json", "engines")
    writer.write(_snapshot(chat=[V4, V6]))
    before = writer.path.stat()
    assert not writer.write(_snapshot(chat=[V6, V4]))
    assert writer.path.stat() == before


def test_a_file_that_was_taken_away_is_written_again(tmp_path: Path) -> None:
    """An Envoy that starts would have no endpoints, and the one that runs has them in memory only."""
    path = tmp_path / "eds.json"
    writer = EdsWriter(path, "engines")
    writer.write(_snapshot(chat=[V4, V6]))
    path.unlink()
    assert writer.write(_snapshot(chat=[V4, V6]))
    assert path.exists()


def test_the_version_grows_over_restarts(tmp_path: Path) -> None:
    """A writer goes on where the last process stopped, and does not touch what is right already."""
    path = tmp_path / "eds.json"
    for snapshot in (_snapshot(chat=[V4]), _snapshot(chat=[V4]), _snapshot(chat=[V6])):
        EdsWriter(path, "engines").write(snapshot)
    assert json.loads(path.read_bytes())["version_info"] == "2"


@pytest.mark.parametrize("left", [b"", b"[]", b'{"version_info": "x", "resources": 1}', b"\xff"])
def test_a_file_of_another_kind_is_replaced(tmp_path: Path, left: bytes) -> None:
    """Whatever lies there does not keep the endpoints from being written."""
    path = tmp_path / "eds.json"
    path.write_bytes(left)
    assert EdsWriter(path, "engines").write(_snapshot(chat=[V4]))
    assert len(_hosts(path.read_bytes())) == 1


def test_a_missing_directory_is_a_configuration_error(tmp_path: Path) -> None:
    """The path is named, since Envoy watches the directory and it has to be there before."""
    with pytest.raises(ConfigError, match=r"missing/eds\.json: the directory .*missing does not exist"):
        EdsWriter(tmp_path / "missing" / "eds.json", "engines")


def test_a_write_that_fails_is_tried_again_and_leaves_no_rest(tmp_path: Path) -> None:
    """A failed write names the path, and the same snapshot is written once it is possible."""
    path = tmp_path / "eds.json"
    writer = EdsWriter(path, "engines")
    path.mkdir()
    with pytest.raises(ConfigError, match=r"eds\.json: cannot be written: Is a directory"):
        writer.write(_snapshot(chat=[V4]))
    path.rmdir()
    assert writer.write(_snapshot(chat=[V4]))
    assert [entry.name for entry in tmp_path.iterdir()] == ["eds.json"]


W4, X4 = "10.0.0.12:8000", "10.0.0.13:8000"


@pytest.mark.parametrize(
    ("offers", "expected"),
    [
        ({V4: "UNHEALTHY"}, ["UNHEALTHY", "HEALTHY", "HEALTHY"]),
        ({V4: "DRAINING", W4: "DEGRADED"}, ["DRAINING", "DEGRADED", "HEALTHY"]),
        ({V4: "UNHEALTHY", W4: "UNHEALTHY", X4: "UNHEALTHY"}, ["HEALTHY", "HEALTHY", "HEALTHY"]),
        ({V4: "UNHEALTHY", W4: "DRAINING", X4: "UNHEALTHY"}, ["HEALTHY", "DRAINING", "HEALTHY"]),
        ({V4: "DRAINING", W4: "DRAINING", X4: "DRAINING"}, ["DRAINING", "DRAINING", "DRAINING"]),
        ({V4: "UNHEALTHY", W4: "UNHEALTHY", X4: "DEGRADED"}, ["UNHEALTHY", "UNHEALTHY", "DEGRADED"]),
    ],
    ids=["one ill", "mixed", "all ill", "all ill or out", "all out", "one slow left"],
)
def test_the_fallback_policy_is_told_who_is_fit(offers: dict[str, str], expected: list[str]) -> None:
    """As the picker does: the ill are left out as long as somebody else is there, those taken out always."""
    snapshot = _snapshot("chat", chat=[V4, W4, X4], embed=[OTHER])
    text = render(snapshot, "engines", 1, lambda each: Offer(HostHealth(offers.get(each.address, "HEALTHY"))))
    hosts = _hosts(text)
    assert [hosts[address, 8000] for address in ("10.0.0.11", "10.0.0.12", "10.0.0.13")] == expected
    assert hosts["10.0.0.17", 8000] == "UNHEALTHY"


@pytest.mark.parametrize(
    ("share", "weights"),
    [(1.0, [None, None]), (0.32, [3, 10]), (0.001, [1, 10])],
    ids=["full", "third", "least"],
)
def test_a_slow_start_is_a_weight(share: float, weights: list[int | None]) -> None:
    """In tenths of what others get, under the name of Envoy's proto; nothing where all get the same."""
    shares = {V4: share}
    text = render(_snapshot(chat=[V4, W4]), "engines", 1, lambda each: Offer(share=shares.get(each.address, 1.0)))
    (assignment,) = json.loads(text)["resources"]
    assert [host.get("load_balancing_weight") for host in assignment["endpoints"][0]["lb_endpoints"]] == weights


def test_another_state_is_written(tmp_path: Path) -> None:
    """With the same endpoints; and not again."""
    writer = EdsWriter(tmp_path / "eds.json", "engines")
    snapshot = _snapshot(chat=[V4, W4])
    assert writer.write(snapshot)
    ill: Any = lambda each: Offer(HostHealth.UNHEALTHY if each.address == V4 else HostHealth.HEALTHY)  # noqa: E731
    assert writer.write(snapshot, ill)
    assert not writer.write(snapshot, ill)
    assert set(_hosts(writer.path.read_bytes()).values()) == {"UNHEALTHY", "HEALTHY"}


def test_an_operators_word_goes_before_health() -> None:
    """Whoever is taken out, or sleeps, is draining for Envoy, in whichever health; ready is healthy."""
    assert offered(HealthState.READY, Stage.ACTIVE).health is HostHealth.HEALTHY
    assert offered(HealthState.EJECTED, Stage.ACTIVE).health is HostHealth.UNHEALTHY
    for stage in (Stage.CORDONED, Stage.DRAINING, Stage.DRAINED, Stage.ASLEEP):
        for state in HealthState:
            assert offered(state, stage).health is HostHealth.DRAINING


def test_unready_by_its_source_is_unhealthy() -> None:
    """Whom the source calls unready the fallback policy leaves alone, unless there is nobody else."""
    assert {offered(state, Stage.UNREADY).health for state in HealthState} == {HostHealth.UNHEALTHY}
