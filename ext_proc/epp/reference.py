"""Tables of the page on endpoint pickers: the protocol, the flags, and how requests are refused."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Final

from ext_proc.core import errors
from ext_proc.core.names import (
    DESTINATION,
    DROPPED_HEADER,
    FAIRNESS_ID,
    LB_NAMESPACE,
    LEGACY_NAMES,
    MODEL_REWRITE,
    OBJECTIVE,
    SERVED,
    SUBSET,
    SUBSET_NAMESPACE,
    TPOT_TARGET,
    TTFT_TARGET,
)
from ext_proc.epp.command import IGNORED, add_arguments
from ext_proc.wire.server import LIVENESS_NAMES, READINESS_NAMES


def tables() -> dict[str, str]:
    """Return each table by the name that its markers use."""
    return {"protocol": protocol(), "flags": flags(), "ignored": ignored(), "refusals": refusals()}


def protocol() -> str:
    """Return what is exchanged with a gateway."""
    return _table(("what", "name", "what kvpicker does"), _ROWS)


def flags() -> str:
    """Return the flags with their meanings."""
    parser = argparse.ArgumentParser(add_help=False)
    add_arguments(parser)
    shown = [action for action in parser._actions if action.help != argparse.SUPPRESS]  # noqa: SLF001  argparse shows them nowhere else
    return _table(("flag", "meaning"), ((_coded(*action.option_strings), action.help or "") for action in shown))


def ignored() -> str:
    """Return the flags that change nothing, with the reasons."""
    return _table(
        ("flag of other pickers", "changes nothing, because"), ((_coded(f"--{n}"), w) for n, w in IGNORED.items())
    )


def refusals() -> str:
    """Return the answers that kvpicker gives in place of an engine."""
    found = sorted(_leaves(errors.Refusal), key=lambda each: (each.status, each.reason))
    rows = (
        (str(each.status), _coded(each.reason), _coded(each.dropped) if each.dropped else "", _first_line(each))
        for each in found
    )
    return _table(("status", "reason", f"`{DROPPED_HEADER}`", "when"), rows)


def _leaves(kind: type[errors.Refusal]) -> Iterator[type[errors.Refusal]]:
    for each in kind.__subclasses__():
        if each.__subclasses__():
            yield from _leaves(each)
        else:
            yield each


def _first_line(kind: type) -> str:
    return (kind.__doc__ or "").partition("\n")[0]


def _coded(*names: str) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _either(name: str) -> str:
    return _coded(name, LEGACY_NAMES[name])


def _table(head: tuple[str, ...], rows: Iterator[tuple[str, ...]] | tuple[tuple[str, ...], ...]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines).replace("| --- ", "|---").replace("|--- |", "|---|")


_HEALTH: Final = _coded(*LIVENESS_NAMES, *(name for name in READINESS_NAMES if name))

_ROWS: Final = (
    (
        "the pick",
        f"request header and metadata `{LB_NAMESPACE}`: {_coded(DESTINATION)}",
        (
            "Sends both, with equal values: `ip:port`, IPv6 in brackets. A list, in the order of preference, only where"
            " `envoy.data_plane` allows it. A client's header is overwritten or removed on every path."
        ),
    ),
    (
        "the subset",
        f"metadata `{SUBSET_NAMESPACE}` (or `{LB_NAMESPACE}`): {_coded(SUBSET)}",
        (
            "Picks from it only: a list, or a text with commas, of `ip:port`, or IPs with any port. Empty, or without"
            " an endpoint that can serve the request: 503. A header of that name means nothing."
        ),
    ),
    (
        "who served",
        f"metadata `{LB_NAMESPACE}`: {_coded(SERVED)}, with the answer",
        (
            "Load and prefix move to that endpoint at once if it is another than the chosen one, and the chosen one"
            " gets a mark. Gateways that report nothing: an access log does the same."
        ),
    ),
    ("on whose behalf", f"request header {_either(FAIRNESS_ID)}", "Tenants that wait get equal shares (`tenants`)."),
    (
        "objective",
        f"request header {_either(OBJECTIVE)}",
        (
            "Priority by `tenants.priorities` or by the InferenceObjective of that name (`gateway.objectives`; without"
            " it also a whole number); negative goes last."
        ),
    ),
    (
        "model",
        f"request header {_either(MODEL_REWRITE)}",
        (
            "Is picked for in place of the body's model, and written into the body (`gateway.model_rewrite`). Where"
            " answers pass in full duplex the model that the client asked for is put back."
        ),
    ),
    (
        "targets",
        f"request headers {_either(TTFT_TARGET)}, {_either(TPOT_TARGET)}",
        (
            "Handed to strategies, shown in explanations with whether they were kept (`gateway.targets`). No request is"
            " refused for them: the default strategy picks who answers soonest anyway."
        ),
    ),
    ("why refused", f"response header {_coded(DROPPED_HEADER)}", "See the refusals below."),
    (
        "health",
        f"gRPC health: {_HEALTH}",
        (
            f"{_coded(*LIVENESS_NAMES)} serves while the process runs, the others from the moment that the endpoints"
            " are known until the stop begins."
        ),
    ),
    (
        "bodies",
        "`protocol_config` of the first message",
        "Every mode but GRPC, told by each stream itself; in full duplex bodies go on byte for byte, trailers too.",
    ),
)
