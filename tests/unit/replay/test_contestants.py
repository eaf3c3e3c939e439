"""The options --strategies and --view."""

from __future__ import annotations

import pytest

from ext_proc.core.errors import ConfigError
from ext_proc.replay.contestants import PEERS, contestants
from ext_proc.sim.fleet.conditions import View


def test_every_strategy_is_tried_under_every_view() -> None:
    """With one view the label is the strategy as it was written."""
    (one,) = contestants("least-wait", "observed")
    assert (one.label, one.view) == ("least-wait", View.OBSERVED)
    labels = [each.label for each in contestants("least-wait,random", "events,oracle")]
    assert labels == ["least-wait (events)", "least-wait (oracle)", "random (events)", "random (oracle)"]


def test_parameters_are_read_by_their_kind() -> None:
    """Numbers are numbers, and several parameters stand behind each other."""
    (one,) = contestants("least-wait:prefill_rate=4000:attention_tokens=2e4", "observed")
    assert one.parameters == {"prefill_rate": 4000, "attention_tokens": 2e4}


def test_parameters_may_be_json() -> None:
    """Its commas and colons separate nothing."""
    text = 'least-wait:{"prefill_rate": 4000, "attention_tokens": 30000},random'
    one, other = contestants(text, "observed")
    assert one.parameters == {"prefill_rate": 4000, "attention_tokens": 30000}
    assert (one.label, other.name) == (text.removesuffix(",random"), "random")


def test_peers_need_no_entry_point() -> None:
    """They can be compared with, not served with."""
    assert [one.name for one in contestants(",".join(PEERS), "oracle")] == list(PEERS)


@pytest.mark.parametrize(
    ("strategies", "views", "message"),
    [
        (
            "least-wiat",
            "observed",
            r"--strategies\.name: no strategy is called `least-wiat`; did you mean least-wait\?",
        ),
        ("least-wait:prefil_rate=1", "observed", r"--strategies\.parameters\.prefil_rate: "),
        ("least-wait:prefill_rate", "observed", r"`prefill_rate` is no parameter.*write least-wait:key=value"),
        ("least-wait:{x}", "observed", "the parameters of `least-wait` are no JSON object"),
        ("random:x=1", "observed", "takes no parameters"),
        ("gie:x=1", "observed", "`gie` takes no parameters"),
        ("random,random", "observed", "`random` stands twice"),
        ("random", "exact", "--view: no view is called `exact`; there are observed, events, oracle"),
        ("random", "oracle,oracle", r"`random \(oracle\)` stands twice"),
        (" ,", "observed", "--strategies: name at least one"),
    ],
)
def test_what_cannot_be_is_refused_with_a_way_out(strategies: str, views: str, message: str) -> None:
    """Before anything runs."""
    with pytest.raises(ConfigError, match=message):
        contestants(strategies, views)
