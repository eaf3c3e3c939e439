"""The settings of pools whose endpoints a Kubernetes cluster knows."""

from __future__ import annotations

import re
from typing import Annotated

from msgspec import Meta, field

from ext_proc.config.section import Port, Section

ObjectName = Annotated[str, Meta(pattern=r"^[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?$")]
Namespace = Annotated[str, Meta(pattern=r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$")]
PortName = Annotated[str, Meta(min_length=1, max_length=63)]
LabelName = Annotated[str, Meta(pattern=r"^([a-z0-9.-]{1,253}/)?[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?$")]


class KubernetesPoolConfig(Section, frozen=True, kw_only=True):
    """Endpoints of a pool that a cluster knows: the pods of an InferencePool, or of a Service.

    They need `kvpicker[kubernetes]` and the rights in `deploy/kubernetes.md`.

    Attributes:
        namespace: Namespace of the InferencePool or Service, and of its pods.
        inference_pool: Name of an InferencePool (`inference.networking.k8s.io/v1`). Each of its target ports is an
            endpoint at each of its pods that is ready.
        service: Name of a Service, in place of `inference_pool`. Its EndpointSlices are followed.
        port: Name of the Service's port, or number of the pods' port; unset takes the only one.
        labels: Labels of endpoints, each with the label of pods that it is taken from, such as
            `gpu: nvidia.com/gpu.product`. For a Service this needs the right to read it and its pods.
    """

    namespace: Namespace
    inference_pool: ObjectName | None = None
    service: ObjectName | None = None
    port: Port | PortName | None = None
    labels: dict[str, LabelName] = field(default_factory=dict)

    def problem(self) -> tuple[str, str] | None:
        """Return a field and what is wrong with it; None if all is well."""
        if self.inference_pool is None and self.service is None:
            return "inference_pool", "missing; write the name of an InferencePool, or of a Service as `service`"
        if self.inference_pool is not None and self.service is not None:
            return "service", "a pool follows an InferencePool or a Service, not both; remove one"
        if self.port is not None and self.service is None:
            return "port", "an InferencePool says its ports itself; remove this"
        if isinstance(self.port, str) and not re.fullmatch(r"[a-z0-9-]+", self.port):
            return "port", f"`{self.port}` is neither the name of a port, as in `http`, nor a number, as in 8000"
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

    kubeconfig: str | None = None
    context: str | None = None
    inactivity_s: Annotated[float, Meta(ge=1, le=3_600)] = 90.0
