"""How full the bounded structures of a running kvpicker are."""

from __future__ import annotations

from ext_proc import admitting
from ext_proc.assembly import Core
from ext_proc.ops.collector import Fills
from ext_proc.ops.decisions import DecisionRing
from ext_proc.ops.metrics import Metrics
from ext_proc.sources.token_lookup import TokenLookup


def fills(core: Core, ring: DecisionRing, metrics: Metrics, tokens: TokenLookup | None) -> Fills:
    """Return how full waiting rooms are, and the share of its bound that each structure takes."""
    ratios = {
        "prefix_index": core.index.fill,
        "leases": core.ledger.fill,
        "sessions": core.picker.sessions.fill,
        "responses": core.picker.responses.fill,
        "decisions": ring.fill,
        "model_labels": metrics.models.fill,
        **(tokens.fills if tokens is not None else {}),
        **admitting.ratios(core.admission.fills),
    }
    return Fills(core.admission.fills, ratios)
