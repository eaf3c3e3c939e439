"""deploy/explain.md names what the code says."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ext_proc.core.explanation import header
from ext_proc.core.model import Decision, Ending, Outcome
from ext_proc.core.rehearsal import Rehearsal
from ext_proc.core.state import EndpointState, State
from ext_proc.core.strategies import Ranking
from ext_proc.core.strategies.least_request import LeastRequest
from ext_proc.core.strategies.weighted import Weighted
from ext_proc.local.report import REASONS
from ext_proc.ops.admin import QUERIES, _endpoint
from ext_proc.ops.collector import EndpointStatus
from ext_proc.ops.explanations import explain, explain_rehearsal
from tests.unit.core.builders import Fleet, request

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "deploy" / "explain.md").read_text("utf-8")
CORE = ROOT / "ext_proc" / "core"


def _section(title: str) -> str:
    return PAGE.partition(f"## {title}\n")[2].partition("\n## ")[0]


def _codes(path: Path) -> Iterator[str]:
    """Find reason codes: texts that `_best` and `reason_of` return, and those that strategies give a ranking."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.FunctionDef) and node.name in {"_best", "reason_of"}:
            returned = [inner for part in ast.walk(node) if isinstance(part, ast.Return) for inner in ast.walk(part)]
            yield from (one.value for one in returned if isinstance(one, ast.Constant) and isinstance(one.value, str))
        if isinstance(node, ast.keyword) and node.arg == "reason" and isinstance(node.value, ast.Constant):
            yield str(node.value.value)


def test_every_reason_code_is_listed() -> None:
    """The table has the codes that the picker and kvpicker's own strategies give, and no others; so has the report."""
    listed = re.findall(r"^\| `(\w+)` \|", _section("Reason codes"), re.MULTILINE)
    given = {Ranking([]).reason, *_codes(CORE / "picker.py"), *_codes(CORE / "choosing.py")}
    for path in (CORE / "strategies").glob("*.py"):
        given |= set(_codes(path))
    assert len(given) > 5
    assert set(listed) == given == REASONS.keys()


def _keys(content: Any) -> set[str]:
    if isinstance(content, list):
        return set().union(*map(_keys, content))
    return set(content).union(*map(_keys, content.values())) if isinstance(content, dict) else set()


def _told() -> Iterator[dict[str, Any]]:
    for strategy in (None, LeastRequest()):
        decision = msgspec.structs.replace(Fleet(2, strategy).pick(request()), inside="x", replaced="y")
        outcome = Outcome(decision_id=decision.id, ending=Ending.OK, served=decision.chosen.address)
        yield explain(decision, outcome)
        yield explain_rehearsal(Rehearsal(decision, decision.request))


def test_every_field_of_a_decision_is_listed() -> None:
    """Whatever the page of decisions and a dry run show is explained."""
    named = set(re.findall(r"[`.](\w+)`", _section("A decision")))
    assert set().union(*map(_keys, _told())) <= named


def test_scores_are_explained() -> None:
    """A weighted decision has its scores under the listed name."""
    (row, *_) = explain(Fleet(2, Weighted()).pick(), None)["candidates"]
    assert row["scores"].keys() == {"prefix", "queue", "kv_usage", "in_flight"}
    assert "`scores`" in _section("A decision")


def test_every_field_of_an_endpoint_is_listed() -> None:
    """The same for the page of endpoints."""
    shown = _endpoint(EndpointStatus(endpoint=Fleet(1).endpoints[0]))
    assert _keys(shown) <= set(re.findall(r"`(\w+)`", _section("An endpoint")))


def test_every_field_of_a_state_is_listed() -> None:
    """The same for the state."""
    fields = {*State.__struct_fields__, *EndpointState.__struct_fields__}
    assert fields <= set(re.findall(r"`(\w+)`", _section("A state")))


def test_every_key_of_the_header_is_listed() -> None:
    """The same for what clients are told."""
    decision = Fleet(2).pick()
    assert isinstance(decision, Decision)
    assert msgspec.json.decode(header(decision)).keys() <= set(re.findall(r"`(\w+)`", _section("For clients")))


@pytest.mark.parametrize(("path", "names"), QUERIES.items())
def test_every_query_parameter_is_listed(path: str, names: tuple[str, ...]) -> None:
    """Each page stands there with the parameters it knows."""
    (line,) = (line for line in _section("Pages").splitlines() if f" {path}`" in line)
    assert all(f"`{name}`" in line for name in names)
