"""The settings of what a gateway may say of a request, beside whose it is."""

from __future__ import annotations

from ext_proc.config.section import Section
from ext_proc.core.names import OBJECTIVE


class GatewayConfig(Section, frozen=True, kw_only=True):
    """What the gateway says of requests in headers of the Endpoint Picker protocol is obeyed, each by either name.

    The gateway must set these headers, or remove them from what clients send. Tenant and priority: `tenants`.

    Attributes:
        model_rewrite: Whether `x-llm-d-model-name-rewrite` (`x-gateway-model-name-rewrite`) names the model that is to
            answer, in place of the body's, and is written into the body. A body goes on as it is (`exchange_failed`
            with `model_not_rewritten`) that is compressed, no JSON object, buffered in part only, or in full duplex
            names its model behind the first `prompts.collect_bytes`; one that names none on a path that is not known,
            too. Where answers pass in full duplex they name the model that the client asked for, elsewhere as the
            engine does.
        targets: Whether `x-llm-d-slo-ttft-ms` (`x-slo-ttft-ms`) and `x-llm-d-slo-tpot-ms` (`x-slo-tpot-ms`), the
            milliseconds until the first token and for each further one that are wanted, are handed to strategies and
            shown in explanations, with whether they were kept.
        objectives: Whether a priority (`tenants.priority_header`) may be the name of an InferenceObjective, whose
            `priority` it then is: those of `llm-d.ai/v1alpha2`, and before it `inference.networking.x-k8s.io/v1alpha2`,
            that refer to a pool's InferencePool. `tenants.priorities` goes before them, and a number is no priority any
            more: clients may choose among names, but make up no rank. Where no pool follows an InferencePool there are
            no objectives, and all that `tenants.priorities` does not name is 0. Needs the right to list and watch them;
            where a cluster does not have them they are looked for once a minute.
    """

    model_rewrite: bool = False
    targets: bool = False
    objectives: bool = False

    def problem(self, priority_header: str | None) -> tuple[str, str] | None:
        """Return a field and what is wrong with it; None if all is well."""
        if self.objectives and priority_header is None:
            return "objectives", (
                "no header says by which objective a request goes; name it in `tenants.priority_header`, as in"
                f" {OBJECTIVE}, or leave this out"
            )
        return None
