"""The gRPC health service: one status per name, asked for by Check; Watch is not served, as its protocol allows."""

from __future__ import annotations

import grpc
from google.protobuf.message import DecodeError
from grpc_health.v1 import health_pb2

from ext_proc.wire.transport import Method, Reply

SERVICE: str = health_pb2.DESCRIPTOR.services_by_name["Health"].full_name

_STATUS = health_pb2.HealthCheckResponse.ServingStatus


class Health:
    """What each name is told; a name that was never set is unknown (grpc/health/v1/health.proto)."""

    def __init__(self) -> None:
        self._replies: dict[str, Reply] = {}

    def set(self, name: str, *, serving: bool) -> None:
        """Change the status of a name."""
        status = _STATUS.SERVING if serving else _STATUS.NOT_SERVING
        answer = health_pb2.HealthCheckResponse(status=status)
        self._replies[name] = Reply(answer.SerializeToString(), finished=True)

    def receive(self, message: bytes) -> Reply:
        """Answer one HealthCheckRequest."""
        try:
            name = health_pb2.HealthCheckRequest.FromString(message).service
        except DecodeError:
            return Reply(None, True, grpc.StatusCode.INVALID_ARGUMENT, "not a HealthCheckRequest")
        unknown = Reply(None, True, grpc.StatusCode.NOT_FOUND, "unknown service")
        return self._replies.get(name, unknown)

    def close(self, *, delivered: bool) -> Reply:  # noqa: ARG002
        """Do nothing: no check leaves anything behind, so that one session serves them all."""
        return Reply()

    def method(self) -> Method:
        """Make the method `Check`."""
        return Method(SERVICE, "Check", lambda: self)
