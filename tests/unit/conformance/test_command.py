"""The command `kvpicker conformance`: what it prints, writes and returns."""

from __future__ import annotations

import asyncio
import json
import xml.etree.ElementTree as ET
from pathlib import Path

import grpc
import pytest

from ext_proc.cli import main
from ext_proc.conformance.suite import CHECKS
from tests import certificates
from tests.conformance.choosing import POOL
from tests.conformance.picker import Picker
from tests.kube.certificates import Authority

KNOWN = [f"--endpoint={endpoint}" for endpoint in POOL]


async def run(*arguments: str) -> int:
    """Run the command beside the picker that it checks."""
    return await asyncio.to_thread(main, ["conformance", *arguments, "--timeout", "3"])


async def test_a_good_picker_is_told_so(capsys: pytest.CaptureFixture[str]) -> None:
    """One line for each check, with the modes in which it passed, and 0."""
    async with Picker().serving() as where:
        assert await run(where, *KNOWN, "--only=subset.*", "--mode=lean", "--mode=duplex") == 0
    lines = capsys.readouterr().out.splitlines()
    (line,) = (line for line in lines if line.startswith("subset.list"))
    assert line.split()[:5] == ["subset.list", "MUST", "passed", "lean", "duplex"]
    assert "18 passed, 0 failed, 0 skipped" in lines[-1]


async def test_a_fault_is_shown_with_what_is_required(capsys: pytest.CaptureFixture[str]) -> None:
    """The evidence, the requirement and its source stand together, and the status is 1."""
    async with Picker("names-no-metadata").serving() as where:
        assert await run(where, *KNOWN, "--only=pick.both", "--mode=buffered") == 1
    text = " ".join(capsys.readouterr().out.split())
    assert "failed buffered header 10.0.0.2" in text or "failed buffered header [2001:db8::21]" in text
    assert "metadata nothing required: The endpoint is named in the header and in the metadata" in text


@pytest.mark.parametrize(("extra", "status"), [((), 0), (("--strict",), 1)])
async def test_what_should_be_met_binds_on_request(extra: tuple[str, ...], status: int) -> None:
    """A SHOULD that is not met is shown, and is an error only with --strict."""
    async with Picker("no-server-health").serving() as where:
        assert await run(where, *KNOWN, "--only=health.*", *extra) == status


async def test_results_for_programs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """JSON and JUnit XML say the same, evidence included."""
    report = tmp_path / "report.xml"
    async with Picker("no-liveness").serving(address=f"unix:{tmp_path}/picker.sock") as where:
        assert await run(where, *KNOWN, "--only=health.*", "--json", "--junit", str(report)) == 1
    found = json.loads(capsys.readouterr().out)
    assert (found["passed"], found["failed"], found["skipped"]) == (4, 1, 0)
    (failed,) = (result for result in found["results"] if result["verdict"] == "failed")
    assert (failed["id"], failed["level"], failed["evidence"]) == ("health.liveness", "MUST", "liveness: NOT_FOUND")
    suite = ET.parse(report).getroot().find("testsuite")  # noqa: S314  our own
    assert suite is not None
    assert (suite.get("tests"), suite.get("failures"), suite.get("skipped")) == ("5", "1", "0")
    failure = suite.find("testcase[@name='health.liveness[any]']/failure")
    assert failure is not None
    assert failure.get("message") == "liveness: NOT_FOUND"


async def test_endpoints_are_learnt_where_none_are_given(capsys: pytest.CaptureFixture[str]) -> None:
    """Without --endpoint hints are made of what was picked, and membership cannot be checked."""
    async with Picker().serving() as where:
        assert await run(where, "--only=subset.list", "--only=pick.member", "--mode=duplex", "--json") == 0
    results = {result["id"]: result for result in json.loads(capsys.readouterr().out)["results"]}
    assert results["subset.list"]["evidence"].startswith("3 endpoints")
    assert results["pick.member"]["verdict"] == "skipped"


async def test_a_picker_that_picks_nothing_is_seen_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    """It is said before the checks fail one by one."""
    async with Picker("fails-on-strange-paths").serving() as where:
        assert await run(where, "--path=/strange", "--only=pick.both", "--mode=lean") == 1
    assert "a plain request gets no pick" in capsys.readouterr().err


def signed_by(authority: Authority) -> grpc.ServerCredentials:
    """Make the credentials of a server that an authority knows."""
    authority.server()
    both = authority.path.with_name("ca-server.pem").read_bytes()
    at = both.index(b"-----BEGIN CERTIFICATE")
    return grpc.ssl_server_credentials([(both[:at], both[at:])])


async def test_health_checks_may_be_plaintext_beside_tls(tmp_path: Path) -> None:
    """So gateways' endpoint pickers serve them, on a port of their own."""
    async with Picker().serving(signed_by(Authority(tmp_path, "ca"))) as where, Picker().serving() as health:
        arguments = (where, *KNOWN, "--tls", "--insecure", "--health", health, "--only=health.*", "--only=pick.both")
        assert await run(*arguments, "--health-plaintext") == 0


@pytest.mark.parametrize("way", ["ca", "insecure"])
async def test_tls_is_spoken(tmp_path: Path, way: str) -> None:
    """The target's certificate is trusted by its authority, or as it is."""
    authority = Authority(tmp_path, "ca")
    trust = ["--ca", str(authority.path)] if way == "ca" else ["--insecure"]
    async with Picker().serving(signed_by(authority)) as where:
        assert await run(where, *KNOWN, "--tls", *trust, "--only=health.*", "--only=pick.both") == 0


async def test_a_picker_that_asks_for_a_certificate_gets_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Mutual TLS; without one of ours nobody is reached, and it is said what to add."""
    authority = certificates.Authority()
    server, trusted = authority.issue("server"), authority.certificate
    authority.issue("client").write(tmp_path / "own")
    (tmp_path / "ca.crt").write_bytes(trusted)
    asking = grpc.ssl_server_credentials([(server.key, server.certificate)], trusted, require_client_auth=True)
    async with Picker().serving(asking) as where:
        arguments = (where, *KNOWN, "--tls", "--ca", str(tmp_path / "ca.crt"), "--only=health.*", "--timeout", "2")
        assert await run(*arguments, "--client", str(tmp_path / "own")) == 0
        assert await asyncio.to_thread(main, ["conformance", *arguments]) == 2
    assert "--client FOLDER" in capsys.readouterr().err


async def test_a_stranger_is_not_trusted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """TLS without a way to trust the target reaches nobody."""
    async with Picker().serving(signed_by(Authority(tmp_path, "ca"))) as where:
        arguments = [where, "--tls", "--only=health.*", "--timeout", "0.5"]
        assert await asyncio.to_thread(main, ["conformance", *arguments]) == 2
    told = capsys.readouterr().err
    assert "no connection to 127.0.0.1:" in told
    assert "add --ca FILE or --insecure" in told


async def test_the_wrong_way_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Who speaks plaintext with a picker that speaks TLS is told of --tls."""
    async with Picker().serving(signed_by(Authority(tmp_path, "ca"))) as where:
        assert await asyncio.to_thread(main, ["conformance", where, "--timeout", "0.5"]) == 2
    assert "somebody listens there: if it is gRPC with TLS, add --tls" in capsys.readouterr().err


@pytest.mark.parametrize("trusting", [("--insecure",), ()])
async def test_tls_with_a_picker_without_is_named(
    capsys: pytest.CaptureFixture[str], trusting: tuple[str, ...]
) -> None:
    """However the certificate was to be checked, which there is not."""
    async with Picker().serving() as where:
        arguments = [where, "--tls", *trusting, "--timeout", "0.5"]
        assert await asyncio.to_thread(main, ["conformance", *arguments]) == 2
    assert "what listens there speaks no TLS; leave --tls out" in capsys.readouterr().err


async def test_a_server_of_http_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    """The port of metrics and that of gRPC are easily taken for each other."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        arguments = [f"127.0.0.1:{port}", "--timeout", "0.3"]
        assert await asyncio.to_thread(main, ["conformance", *arguments]) == 2
    assert "an HTTP/1.1 server listens there, and no gRPC server" in capsys.readouterr().err


def test_modes_are_listed_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    """As they are written."""
    with pytest.raises(SystemExit):
        main(["conformance", "127.0.0.1:1", "--mode", "fancy"])
    assert "choose from 'lean', 'buffered'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("http://127.0.0.1:9002",), "a TARGET is host:port or unix:/path"),
        ((), "no TARGET is given"),
        (("127.0.0.1:1", "--timeout", "0.2"), "no connection to 127.0.0.1:1 (plaintext) in 0.2 s; nobody listens"),
        (("unix:/nowhere", "--timeout", "0.2"), "nobody listens there: [Errno 2] No such file"),
        (("127.0.0.1",), "a TARGET is host:port or unix:/path"),
        (("127.0.0.1:1", "--health", "health"), "a TARGET is host:port or unix:/path"),
        (("127.0.0.1:1", "--junit", "/nowhere/report.xml"), "--junit /nowhere/report.xml: there is no such folder"),
        (("127.0.0.1:1", "--insecure", "--tls", "--timeout", "0.2"), "no certificate from 127.0.0.1:1"),
        (("127.0.0.1:1", "--insecure"), "--ca, --insecure, --client and --server-name go with --tls"),
        (("127.0.0.1:1", "--tls", "--client", "/nowhere"), "--client /nowhere/tls.key: No such file or directory"),
        (("127.0.0.1:1", "--tls", "--health-plaintext"), "--health-plaintext goes with --tls and --health"),
        (("unix:/nowhere", "--tls", "--insecure"), "--insecure cannot be used with a Unix socket"),
        (("127.0.0.1:1", "--endpoint", "engine:8000"), "--endpoint engine:8000: not an ip:port"),
        (("127.0.0.1:1", "--only", "nothing.*"), "no check matches nothing.*"),
        (("127.0.0.1:1", "--timeout", "0"), "--timeout and --limit are 0.05 s at least"),
        (("127.0.0.1:1", "--tls", "--ca", "/nowhere/ca.pem"), "--ca /nowhere/ca.pem: No such file or directory"),
    ],
)
def test_what_cannot_be_used_is_named(
    arguments: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The status is 2, and the line says what to mend."""
    assert main(["conformance", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_the_checks_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    """--list needs no target and names each check."""
    assert main(["conformance", "--list"]) == 0
    text = capsys.readouterr().out
    assert [check.id for check in CHECKS if check.id not in text] == []
