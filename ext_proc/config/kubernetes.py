"""The settings of pools whose endpoints a Kubernetes cluster knows."""

from __future__ import annotations

import re
from typing import Annotated

from msgspec import Meta, field

from ext_proc.config.section import Port, Section, Text

ObjectName = Annotated[str, Meta(pattern=r"^[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?$")]
Namespace = Annotated[str, Meta(pattern=r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$")]
PortName = Annotated[str, Meta(min_length=1, max_length=63)]
TargetPort = Annotated[int, Meta(ge=1, le=65_535)]
TargetPorts = Annotated[tuple[TargetPort, ...], Meta(max_length=8)]
LabelName = Annotated[str, Meta(pattern=r"^([a-z0-9.-]{1,253}/)?[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?$")]

_KEY = r"(?:[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?/)?[A-Za-z0-9](?:[A-Za-z0-9._-]{0,61}[A-Za-z0-9])?"
_VALUE = r"(?:[A-Za-z0-9](?:[A-Za-z0-9._-]{0,61}[A-Za-z0-9])?)?"
_ONE_OF = rf"\(\s*{_VALUE}(?:\s*,\s*{_VALUE})*\s*\)"
_REQUIREMENT = rf"\s*(?:!\s*{_KEY}|{_KEY}(?:\s*(?:==?|!=)\s*{_VALUE}|\s+(?:in|notin)\s*{_ONE_OF})?)\s*"
_SELECTOR = re.compile(rf"{_REQUIREMENT}(?:,{_REQUIREMENT})*")
"""Labels that are asked for, as `kubectl --selector` takes them; API servers refuse everything else."""


class KubernetesPoolConfig(Section, frozen=True, kw_only=True):
    """Endpoints of a pool that a cluster knows: the pods of an InferencePool, of a selector, or of a Service.

    They need `kvpicker[kubernetes]` and the rights in `deploy/kubernetes.md`.

    Attributes:
        namespace: Namespace of the InferencePool or Service, and of the pods.
        inference_pool: Name of an InferencePool (`inference.networking.k8s.io/v1`). Each of its target ports is an
            endpoint at each of its pods that is ready.
        selector: Labels of pods, in place of `inference_pool`, as `kubectl --selector` takes them: `app=vllm`,
            `tier in (a, b)`, `!canary`, with commas between them.
        target_ports: Ports of the pods of `selector`, each of which is an endpoint at each pod that is ready.
        service: Name of a Service, in place of `inference_pool`. Its EndpointSlices are followed.
        port: Name of the Service's port, or number of the pods' port; unset takes the only one.
        labels: Labels of endpoints, each with the label of pods that it is taken from, such as
            `gpu: nvidia.com/gpu.product`. For a Service this needs the right to read it and its pods.
    """

    namespace: Namespace
    inference_pool: ObjectName | None = None
    selector: Annotated[str, Meta(max_length=4_096)] | None = None
    target_ports: TargetPorts = ()
    service: ObjectName | None = None
    port: Port | PortName | None = None
    labels: dict[str, LabelName] = field(default_factory=dict)

    def problem(self) -> tuple[str, str] | None:
        """Return a field and what is wrong with it; None if all is well."""
        sources = [name for name in ("inference_pool", "selector", "service") if getattr(self, name) is not None]
        if not sources:
            return "inference_pool", "missing; write the name of an InferencePool, or of a Service as `service`"
        if len(sources) > 1:
            return sources[-1], "a pool follows an InferencePool, a selector or a Service; remove all but one"
        problem = self._selector_problem()
        if problem is not None:
            return problem
        if self.port is not None and self.service is None:
            return "port", "it is the port of a Service; remove this, for pods of a selector write `target_ports`"
        if isinstance(self.port, str) and not re.fullmatch(r"[a-z0-9-]+", self.port):
            return "port", f"`{self.port}` is neither the name of a port, as in `http`, nor a number, as in 8000"
        return None

    def _selector_problem(self) -> tuple[str, str] | None:
        if self.selector is None:
            wrong = "an InferencePool or Service says its ports itself; remove this"
            return ("target_ports", wrong) if self.target_ports else None
        if not _SELECTOR.fullmatch(self.selector):
            return "selector", f"`{self.selector}` selects no pods; write labels, as in app=vllm,tier in (a, b)"
        if not self.target_ports:
            return "target_ports", "missing; write the ports of the pods, as in [8000]"
        if len(set(self.target_ports)) < len(self.target_ports):
            return "target_ports", "a port stands twice"
        return None


class KubernetesConfig(Section, frozen=True, kw_only=True):
    """How the API server of the cluster is reached; for pools with `kubernetes`.

    Attributes:
        kubeconfig: Path of a kubeconfig. Unset takes the service account of the pod that kvpicker runs in. Credentials
            are read anew for each connection, so that they may change.
        context: Context of the kubeconfig; unset takes its current one.
        inactivity_s: Seconds of silence after which a connection is made anew. API servers speak about once a
            minute even if nothing changes.
    """

    kubeconfig: Text | None = None
    context: Text | None = None
    inactivity_s: Annotated[float, Meta(ge=1, le=3_600)] = 90.0
