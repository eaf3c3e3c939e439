"""The settings of what a gateway may say of a request, beside whose it is."""

from __future__ import annotations

from ext_proc.config.section import Section


class GatewayConfig(Section, frozen=True, kw_only=True):
    """What the gateway says of requests in headers of the Endpoint Picker protocol is obeyed, each by either name.

    The gateway must set these headers, or remove them from what clients send. Tenant and priority: `tenants`.

    Attributes:
        model_rewrite: Whether `x-llm-d-model-name-rewrite` (`x-gateway-model-name-rewrite`) names the model that is to
            answer, in place of the body's, and is written into the body. A body that is compressed, no JSON object, or
            buffered in part only goes on as it is (`exchange_failed` with `model_not_rewritten`). Where
            answers pass in full duplex they name the model that the client asked for, elsewhere as the engine does.
        targets: Whether `x-llm-d-slo-ttft-ms` (`x-slo-ttft-ms`) and `x-llm-d-slo-tpot-ms` (`x-slo-tpot-ms`), the
            milliseconds until the first token and for each further one that are wanted, are handed to strategies and
            shown in explanations, with whether they were kept.
        objectives: Whether a priority (`tenants.priority_header`) may be the name of an InferenceObjective, whose
            `priority` it then is: those of `llm-d.ai/v1alpha2`, and before it `inference.networking.x-k8s.io/v1alpha2`,
            that refer to a pool's InferencePool. `tenants.priorities` goes before them, and a number is no priority any
            more: clients may choose among names, but make up no rank. Needs the right to list and watch them; where a
            cluster does not have them they are looked for once a minute.
    """

    model_rewrite: bool = False
    targets: bool = False
    objectives: bool = False
