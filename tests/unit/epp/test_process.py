"""The command as a process: it says where it listens, answers health in the clear, and ends in good order."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from ext_proc.core.names import EXT_PROC_SERVICE

FREE = ("--address", "127.0.0.1", "--grpc-port", "0", "--grpc-health-port", "0", "--metrics-port", "0")


def test_it_serves_until_it_is_told_to_stop(tmp_path: Path) -> None:
    """With a file and free ports, encrypted by a certificate of its own making."""
    path = tmp_path / "kvpicker.yaml"
    path.write_text("pools: {p: {endpoints: ['127.0.0.1:1'], models: [m]}}\nscrape: {enabled: false}\ndrain_s: 0\n")
    command = [sys.executable, "-m", "ext_proc.cli", "epp", "--config", str(path), *FREE]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            lines = (json.loads(line) for line in process.stdout)
            started = next(line for line in lines if line["event"] == "server_started")
            assert started["tls"] is True
            with grpc.insecure_channel(started["health"][0]) as channel:
                asked = health_pb2.HealthCheckRequest(service=EXT_PROC_SERVICE)
                answer = health_pb2_grpc.HealthStub(channel).Check(asked, timeout=10)
            assert answer.status == health_pb2.HealthCheckResponse.SERVING
            process.send_signal(signal.SIGTERM)
            assert process.wait(20) == 0
        finally:
            process.kill()
