"""The health and reflection services, over a channel and by themselves."""

from __future__ import annotations

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2

from ext_proc.wire.health import Health
from ext_proc.wire.reflection import SERVICE, reflection_method
from tests.unit.wire.serving import TRANSPORTS, serving

on_each = pytest.mark.parametrize("transport", TRANSPORTS)


@on_each
async def test_name_nobody_set_is_not_found(transport: str) -> None:
    """A check of an unknown name is NOT_FOUND, as the health protocol says."""
    async with serving([], transport) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(service="nope"))
        assert error.value.code() is grpc.StatusCode.NOT_FOUND


@on_each
async def test_watch_is_unimplemented(transport: str) -> None:
    """Watching is refused in the way that tells a client to ask again and again instead."""
    async with serving([], transport) as channel:
        call = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())
        assert await call.code() is grpc.StatusCode.UNIMPLEMENTED


@on_each
@pytest.mark.parametrize("method", ["/grpc.health.v1.Health/Check", f"/{SERVICE}/ServerReflectionInfo"])
async def test_bytes_that_are_no_question_are_an_invalid_argument(transport: str, method: str) -> None:
    """Garbage ends the call with INVALID_ARGUMENT."""
    async with serving([], transport) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await channel.stream_unary(method)(iter([b"\xff"]))
        assert error.value.code() is grpc.StatusCode.INVALID_ARGUMENT


def test_status_of_a_name_changes() -> None:
    """The last status that was set is told."""
    health = Health()
    question = health_pb2.HealthCheckRequest(service="a").SerializeToString()
    told = []
    for serving_ in (True, False):
        health.set("a", serving=serving_)
        told.append(health_pb2.HealthCheckResponse.FromString(health.receive(question).message or b"").status)
    assert told == [health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING]


def test_reflection_answers_every_question_of_a_stream() -> None:
    """Services are listed, files are found by a symbol, and an unknown symbol is an answer too."""
    session = reflection_method(["grpc.health.v1.Health"]).open()
    questions = [
        reflection_pb2.ServerReflectionRequest(list_services=""),
        reflection_pb2.ServerReflectionRequest(file_containing_symbol="grpc.health.v1.Health"),
        reflection_pb2.ServerReflectionRequest(file_containing_symbol="no.such.Thing"),
    ]
    replies = [session.receive(question.SerializeToString()) for question in questions]
    answers = [reflection_pb2.ServerReflectionResponse.FromString(reply.message) for reply in replies]
    kinds = [answer.WhichOneof("message_response") for answer in answers]
    assert kinds == ["list_services_response", "file_descriptor_response", "error_response"]
    assert {entry.name for entry in answers[0].list_services_response.service} == {"grpc.health.v1.Health", SERVICE}
