"""The gRPC reflection service, by which tools ask what is served here and of which messages it is made."""

from __future__ import annotations

from collections.abc import Iterable

import grpc
from google.protobuf.message import DecodeError
from grpc_reflection.v1alpha import reflection, reflection_pb2

from ext_proc.wire.transport import Method, Reply

SERVICE: str = reflection.SERVICE_NAME


class ReflectionSession:
    """Answers each question by the library's servicer, which keeps nothing between two of them."""

    def __init__(self, servicer: reflection.ReflectionServicer) -> None:
        self._servicer = servicer

    def receive(self, message: bytes) -> Reply:
        """Answer one ServerReflectionRequest."""
        try:
            question = reflection_pb2.ServerReflectionRequest.FromString(message)
        except DecodeError:
            return Reply(None, True, grpc.StatusCode.INVALID_ARGUMENT, "not a ServerReflectionRequest")
        (answer,) = self._servicer.ServerReflectionInfo([question], None)
        return Reply(answer.SerializeToString())

    def close(self, *, delivered: bool) -> Reply:  # noqa: ARG002
        """Do nothing."""
        return Reply()


def reflection_method(services: Iterable[str]) -> Method:
    """Make the method `ServerReflectionInfo` of a server with these services; it names itself too."""
    session = ReflectionSession(reflection.ReflectionServicer({*services, SERVICE}))
    return Method(SERVICE, "ServerReflectionInfo", lambda: session)
