"""The memory of which endpoint a name was tied to."""

from __future__ import annotations

from ext_proc.core.affinity import Affinity


def test_a_name_leads_to_its_last_address() -> None:
    """The latest tie of a name counts, and an unknown name leads nowhere."""
    affinity = Affinity()
    affinity.tie("s", "a:1", 0.0)
    affinity.tie("s", "b:1", 1.0)
    assert affinity.address("s", 2.0) == "b:1"
    assert affinity.address("t", 2.0) is None


def test_a_tie_ends_after_its_time() -> None:
    """A name that was not tied again for `ttl` seconds is forgotten."""
    affinity = Affinity(ttl=10.0)
    affinity.tie("s", "a:1", 0.0)
    assert affinity.address("s", 10.0) == "a:1"
    assert affinity.address("s", 10.1) is None
    assert len(affinity) == 0


def test_a53_the_memory_is_bounded() -> None:
    """Beyond the limit the names used longest ago go first; asking for a name is a use."""
    affinity = Affinity(limit=2)
    affinity.tie("a", "a:1", 0.0)
    affinity.tie("b", "b:1", 0.0)
    affinity.address("a", 1.0)
    affinity.tie("c", "c:1", 1.0)
    assert [affinity.address(name, 2.0) for name in "abc"] == ["a:1", None, "c:1"]
