"""The settings of what a gateway may say of a request, beside whose it is."""

from __future__ import annotations

from ext_proc.config.section import Section


class GatewayConfig(Section, frozen=True, kw_only=True):
    """What the gateway says of requests in headers of the Endpoint Picker protocol is obeyed, each by either name.

    The gateway must set these headers, or remove them from what clients send. Tenant and priority: `tenants`.

    Attributes:
        model_rewrite: Whether `x-llm-d-model-name-rewrite` (`x-gateway-model-name-rewrite`) names the model that is to
            answer, in place of the body's, and is written into the body. A body that is compressed, no JSON object, or
            buffered in part only goes on as it is (`exchange_failed` with `model_not_rewritten`). Answers name the
            model as the engine does.
        targets: Whether `x-llm-d-slo-ttft-ms` (`x-slo-ttft-ms`) and `x-llm-d-slo-tpot-ms` (`x-slo-tpot-ms`), the
            milliseconds until the first token and for each further one that are wanted, are handed to strategies and
            shown in explanations, with whether they were kept.
    """

    model_rewrite: bool = False
    targets: bool = False
