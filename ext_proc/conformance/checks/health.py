"""The names by which gateways and Kubernetes ask for health."""

from __future__ import annotations

from typing import Final

from ext_proc.conformance.check import PROTOCOL, Case, Level, check, demand
from ext_proc.conformance.modes import NONE

_SERVING: Final = "SERVING"


async def _serving(case: Case, service: str) -> str:
    found = await case.target.health(service)
    demand(found == _SERVING, f"{service or 'the empty name'}: {found}")
    return found


@check("health.liveness", f"{PROTOCOL}: MUST", modes=NONE)
async def liveness(case: Case) -> str:
    """The gRPC health service knows `liveness`, and it serves."""
    return await _serving(case, "liveness")


@check("health.readiness", f"{PROTOCOL}: MUST", modes=NONE)
async def readiness(case: Case) -> str:
    """The gRPC health service knows `readiness`, and it serves."""
    return await _serving(case, "readiness")


@check("health.ext-proc", f"{PROTOCOL}: MUST; Envoy's health check asks for it", modes=NONE)
async def ext_proc(case: Case) -> str:
    """The gRPC health service knows `envoy.service.ext_proc.v3.ExternalProcessor`, and it serves."""
    return await _serving(case, "envoy.service.ext_proc.v3.ExternalProcessor")


@check("health.server", "gRPC health protocol: the empty name is the whole server", level=Level.SHOULD, modes=NONE)
async def server(case: Case) -> str:
    """The gRPC health service knows the empty name, and it serves."""
    return await _serving(case, "")


@check("health.unknown", "gRPC health protocol: NOT_FOUND", level=Level.SHOULD, modes=NONE)
async def unknown(case: Case) -> str:
    """A service that is not known is not found, rather than well."""
    found = await case.target.health("no.such.Service")
    demand(found in ("NOT_FOUND", "SERVICE_UNKNOWN"), found)
    return found


CHECKS: Final = (liveness, readiness, ext_proc, server, unknown)
