"""`kvpicker epp`: its flags, which are those that the charts of gateways pass to their endpoint pickers."""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

from ext_proc.config import Config, parse
from ext_proc.core.addresses import listening
from ext_proc.core.errors import ConfigError
from ext_proc.epp.preset import (
    ALL_ADDRESSES,
    DRAIN_S,
    GRPC_PORT,
    HEALTH_PORT,
    METRICS_PORT,
    ONE_ADDRESS,
    Flags,
    layered,
    overrides,
    preset,
)

HELP: Final = "run the picker as a gateway's endpoint picker"

GROUP: Final = "inference.networking.k8s.io"
NO_FILE: Final = "kvpicker epp"
"""Stands in messages for the configuration file that there is not."""

IGNORED: Final = {
    "allow-experimental-plugins": "kvpicker has no such plugins",
    "cache-info-metric": "the engine is told by its page of metrics; see `pools.*.engine`",
    "config-text": "it configures another picker",
    "disable-endpoint-subset-filter": "a subset that a gateway asks for is always obeyed",
    "emit-endpoint-scores": "ask `kvpicker explain`",
    "enable-cert-reload": "certificates are always read again when they change",
    "enable-grpc-stream-metrics": "see the metrics of kvpicker",
    "enable-pprof": "there is none",
    "grpc-max-recv-msg-size": "there is no limit; see `prompts`",
    "grpc-max-send-msg-size": "there is no limit",
    "ha-enable-leader-election": "all kvpickers serve at once, none leads",
    "health-checking": "health is always served",
    "kv-cache-usage-percentage-metric": "the engine is told by its page of metrics; see `pools.*.engine`",
    "lora-info-metric": "the engine is told by its page of metrics; see `pools.*.engine`",
    "metrics-cert-dir": "the metrics are not encrypted",
    "metrics-client-ca-file": "the metrics are not encrypted",
    "metrics-endpoint-auth": "the metrics are open; all other pages are for callers on the same host",
    "metrics-staleness-threshold": "see `scrape`",
    "model-server-metrics-https-insecure-skip-verify": "see `scrape`",
    "model-server-metrics-path": "see `pools.*.metrics_path`",
    "model-server-metrics-port": "see `pools.*.metrics_port`",
    "model-server-metrics-scheme": "metrics are read by plain HTTP",
    "refresh-metrics-interval": "see `scrape.interval_s`",
    "refresh-prometheus-metrics-interval": "metrics are made when they are asked for",
    "total-queued-requests-metric": "the engine is told by its page of metrics; see `pools.*.engine`",
    "total-running-requests-metric": "the engine is told by its page of metrics; see `pools.*.engine`",
    "tracing": "there is none",
    "v": "see `log.level`",
    "zap-encoder": "see `log.format`",
    "zap-log-level": "see `log.level`",
}
"""Flags of other endpoint pickers that change nothing here, with the reason."""

_DURATION: Final = re.compile(r"(\d+(?:\.\d+)?)(h|ms|m|s)")
_UNITS: Final = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags."""
    parser.allow_abbrev = False
    add = parser.add_argument
    add("--pool-name", metavar="NAME", help="InferencePool whose endpoints are picked from")
    add("--pool-namespace", metavar="NAMESPACE", help="its namespace ($NAMESPACE, or `default`)")
    add(
        "--endpoint-selector",
        metavar="LABELS",
        help="labels of the engines' pods in place of an InferencePool, as `app=vllm,tier in (a, b)`",
    )
    add("--endpoint-target-ports", type=_ports, default=(), metavar="PORTS", help="ports of these pods: `8000,8001`")
    add("--pool-group", metavar="GROUP", default=GROUP, help=f"its API group; {GROUP} is the only one")
    add(
        "--config",
        "--config-file",
        type=Path,
        metavar="FILE",
        help="kvpicker's configuration file, which is watched; what it leaves out is as said here. The"
        " EndpointPickerConfig of another picker is ignored",
    )
    add(
        "--address",
        metavar="IP",
        help=f"address to listen on ({ALL_ADDRESSES}; or [::])",
    )
    add("--grpc-port", type=_port, metavar="PORT", help=f"port of ext_proc ({GRPC_PORT}); 0 takes a free one")
    add("--grpc-health-port", type=_port, metavar="PORT", help=f"port of health checks, not encrypted ({HEALTH_PORT})")
    add("--metrics-port", type=_port, metavar="PORT", help=f"port of metrics ({METRICS_PORT})")
    add("--plaintext", action="store_true", help="do not encrypt ext_proc; the same as --secure-serving=false")
    add("--secure-serving", nargs="?", const=True, type=_truth, metavar="BOOL", help="encrypt ext_proc (true)")
    add(
        "--cert-path",
        type=Path,
        metavar="FOLDER",
        help="folder with tls.crt and tls.key, which are watched; without it a self-signed certificate is made",
    )
    add("--client-ca", type=Path, metavar="FILE", help="let only clients in that this authority knows (mutual TLS)")
    add(
        "--data-plane",
        choices=("auto", "override-host", "original-dst", "subset"),
        help=f"as `envoy.data_plane` ({ONE_ADDRESS}: one endpoint per pick, which every gateway takes)",
    )
    add(
        "--drain-timeout",
        type=_duration,
        metavar="TIME",
        help=f"how long it serves on when it is to stop ({DRAIN_S:g}s)",
    )
    add("--check", action="store_true", help="check flags and configuration and end")
    for name in IGNORED:
        add(*(("-v", "--v") if name == "v" else (f"--{name}",)), nargs="?", help=argparse.SUPPRESS)


def run(arguments: argparse.Namespace) -> int:
    """Run the picker, or check what it would run with.

    Raises:
        ConfigError: flags or configuration cannot be used.
    """
    config, path, read = configured(arguments, os.environ.get("NAMESPACE", ""))
    for name, why in (IGNORED | _idle(arguments, config)).items():
        if getattr(arguments, name.replace("-", "_")) is not None:
            sys.stderr.write(f"kvpicker: --{name} changes nothing: {why}\n")
    if arguments.check:
        from ext_proc.assembly import check_config  # noqa: PLC0415  as below

        check_config(config, path)
        sys.stdout.write("good\n")
        return 0
    from ext_proc.serving import run as serve  # noqa: PLC0415  gRPC takes a moment to import; other commands do without

    asyncio.run(serve(config, path, sys.stdout.buffer, read))
    return 0


def configured(
    arguments: argparse.Namespace, namespace: str
) -> tuple[Config, Path | None, Callable[[str, str], Config]]:
    """Return the configuration that flags and file make, the file to watch, and what reads it anew.

    Args:
        arguments: the flags.
        namespace: namespace of the InferencePool where no flag tells; empty takes `default`.

    Raises:
        ConfigError: flags or file cannot be used.
    """
    if arguments.pool_group != GROUP:
        raise ConfigError(f"kvpicker reads InferencePools of the group {GROUP} only", path="--pool-group")
    flags = _flags(arguments, namespace)
    read = partial(_parse, flags)
    text = None if arguments.config is None else _text(arguments.config)
    if text is None:
        if flags.pool_name is None and flags.selector is None:
            raise ConfigError("missing; name the InferencePool, or give pools in --config", path="--pool-name")
        return read("{}", NO_FILE), None, read
    return read(text, str(arguments.config)), arguments.config, read


def _idle(arguments: argparse.Namespace, config: Config) -> dict[str, str]:
    """Name the flags that others, or the file, leave nothing to do, with the reason; charts may pass them all."""
    idle: dict[str, str] = {}
    if arguments.secure_serving is False:
        idle |= dict.fromkeys(("cert-path", "client-ca"), "--secure-serving=false encrypts nothing")
    if arguments.pool_name is None and arguments.endpoint_selector is None:
        idle["pool-namespace"] = "no flag names a pool, and those of the file say their namespace themselves"
    listening_at = (*config.listen, *config.health_listen, config.admin.listen)
    if not any(address.rpartition(":")[0] == arguments.address for address in listening_at):
        idle["address"] = "the file says where to listen"
    return idle


def _flags(arguments: argparse.Namespace, namespace: str) -> Flags:
    address = arguments.address or ALL_ADDRESSES
    try:
        listening(f"{address}:0")
    except ValueError:
        raise ConfigError(f"{address!r} is not an IP address; IPv6 in brackets", path="--address") from None
    secure = arguments.secure_serving
    if arguments.plaintext and (arguments.cert_path or arguments.client_ca or secure):
        raise ConfigError("this goes with no other flag of encryption; remove one", path="--plaintext")
    if arguments.endpoint_selector is not None and arguments.pool_name is not None:
        raise ConfigError("an InferencePool has a selector of its own; remove one", path="--endpoint-selector")
    if (arguments.endpoint_selector is None) != (not arguments.endpoint_target_ports):
        missing = "target-ports" if arguments.endpoint_selector is not None else "selector"
        raise ConfigError(
            "missing; --endpoint-selector and --endpoint-target-ports go together", path=f"--endpoint-{missing}"
        )
    return Flags(
        pool_name=arguments.pool_name,
        pool_namespace=arguments.pool_namespace or namespace or "default",
        selector=arguments.endpoint_selector,
        target_ports=arguments.endpoint_target_ports,
        address=address,
        grpc_port=arguments.grpc_port,
        health_port=arguments.grpc_health_port,
        metrics_port=arguments.metrics_port,
        plaintext=True if arguments.plaintext else None if secure is None else not secure,
        cert_path=arguments.cert_path,
        client_ca=arguments.client_ca,
        data_plane=arguments.data_plane,
        drain_s=arguments.drain_timeout,
    )


def _parse(flags: Flags, text: str, source: str) -> Config:
    def complete(data: Any) -> Any:
        said = {} if data is None else data
        return layered(preset(flags), said, overrides(flags)) if isinstance(said, dict) else data

    return parse(text, source, complete)


def _text(path: Path) -> str | None:
    """Read the configuration file; None if it is that of another picker."""
    try:
        text = path.read_text("utf-8-sig")
    except OSError as error:
        raise ConfigError(f"cannot be read: {error.strerror}", where=str(path)) from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"is not UTF-8 text: byte {error.start}", where=str(path)) from None
    if re.search(r"^\s*kind:\s*[\"']?EndpointPickerConfig\b", text, re.MULTILINE):
        sys.stderr.write(f"kvpicker: {path} changes nothing: it configures another picker\n")
        return None
    return text


def _port(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text) <= 65_535):  # noqa: PLR2004  the largest port
        raise argparse.ArgumentTypeError(f"{text!r} is no port")
    return int(text)


def _ports(text: str) -> tuple[int, ...]:
    """Read ports with commas between them; one that stands twice counts once."""
    return tuple(dict.fromkeys(_port(part.strip()) for part in text.split(",")))


def _truth(text: str) -> bool:
    known = {"true": True, "t": True, "1": True, "false": False, "f": False, "0": False}
    if text.lower() not in known:
        raise argparse.ArgumentTypeError(f"{text!r} is neither true nor false")
    return known[text.lower()]


def _duration(text: str) -> float:
    """Read a time as Go writes it, as in `1m30s`; a bare number is seconds."""
    if re.fullmatch(r"\d+(\.\d+)?", text):
        return float(text)
    found = _DURATION.findall(text)
    if not found or "".join(number + unit for number, unit in found) != text:
        raise argparse.ArgumentTypeError(f"{text!r} is no time; write one as in 30s")
    return sum(float(number) * _UNITS[unit] for number, unit in found)
