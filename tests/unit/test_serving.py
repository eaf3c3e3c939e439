"""A kvpicker process whose ports strangers find."""

from __future__ import annotations

import json
import socket
import ssl
import subprocess
import sys
from pathlib import Path

CONFIG = """
listen: ["127.0.0.1:0"]
admin: {listen: "127.0.0.1:0"}
tls: {}
drain_s: 0
scrape: {enabled: false}
pools:
  main: {endpoints: ["127.0.0.1:1"], models: [acme/chat-8b]}
"""
JUNK = (
    b"GET / HTTP/1.1\r\nauthorization: Bearer SECRET\r\n\r\n",
    b"GET /%zz%\xff HTTP/9.9\r\n\r\nSECRET",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\xff\xff\xff\xffSECRET",
    b"\x16\x03\x01\x00\xa5SECRET",
)


def test_bytes_of_strangers_fill_no_log(tmp_path: Path) -> None:
    """Neither gRPC's C library nor the HTTP server writes traces, nor what the bytes were (I14)."""
    path = tmp_path / "kvpicker.yaml"
    path.write_text(CONFIG)
    command = [sys.executable, "-m", "ext_proc.cli", "serve", str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            started = next(line for line in process.stdout if b"server_started" in line)
            told = json.loads(started)
            for address in (told["grpc"][0], told["admin"]):
                for junk in JUNK * 3:
                    _send(address, junk)
            for _ in range(3):
                _greet(told["grpc"][0])
            process.terminate()
            output, errors = process.communicate(timeout=20)
        finally:
            process.kill()
    assert errors == b""
    assert b"SECRET" not in output
    lines = [line for line in map(json.loads, output.splitlines()) if line["event"] == "library_complained"]
    assert 0 < len(lines) <= 9
    assert all(line["error"] in {"BadHttpMessage", "InvalidURLError"} for line in lines)


def _greet(address: str) -> None:
    """Shake hands by another name than the certificate's."""
    host, _, port = address.rpartition(":")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    with socket.create_connection((host, int(port))) as plain, context.wrap_socket(plain, server_hostname="x.example"):
        pass


def _send(address: str, junk: bytes) -> None:
    """Write bytes and wait until the other side has done with them."""
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port))) as stranger:
        stranger.settimeout(0.1)
        stranger.sendall(junk)
        stranger.shutdown(socket.SHUT_WR)
        try:
            while stranger.recv(4096):
                pass
        except OSError:
            return
