"""Reads the configuration file and the files of endpoints, and checks what no single field can tell."""

from __future__ import annotations

import difflib
import re
from contextlib import contextmanager
from pathlib import Path as FilePath
from typing import TYPE_CHECKING, Any

import msgspec

from ext_proc.config.convert import Problem, convert, refuse
from ext_proc.config.document import Path, read
from ext_proc.config.listen import taken_twice
from ext_proc.config.overload import longest_wait
from ext_proc.config.settings import Config, EndpointConfig, EndpointsFile, spec
from ext_proc.core import addresses
from ext_proc.core.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from ext_proc.config.tls import TlsConfig
    from ext_proc.core.pool import EndpointSpec

SMALLEST = "pools: {main: {endpoints: ['10.0.0.11:8000']}}"


def load(path: str | FilePath) -> Config:
    """Read the configuration file.

    Raises ConfigError if it cannot be read or used.
    """
    try:
        text = FilePath(path).read_text(encoding="utf-8-sig")
    except OSError as error:
        raise ConfigError(f"cannot be read: {error.strerror}", where=str(path)) from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"is not UTF-8 text: byte {error.start}", where=str(path)) from None
    return parse(text, str(path))


@contextmanager
def located(path: FilePath | None) -> Iterator[None]:
    """Add file and line to an error that only names a field of a configuration file; None adds nothing."""
    try:
        yield
    except ConfigError as error:
        where = "" if path is None or error.where else _where(error.path, path)
        if not where:
            raise
        raise ConfigError(error.message, path=error.path, where=where) from error


def _where(field: str, path: FilePath) -> str:
    try:
        document = read(path.read_text(encoding="utf-8-sig"), str(path))
    except (OSError, ValueError, ConfigError):  # it changed meanwhile
        return ""
    found = document.find(field)
    return document.where(found) if found else ""


def parse(text: str, source: str = "config", complete: Callable[[Any], Any] | None = None) -> Config:
    """Read a configuration; `source` names it in messages, `complete` may add to what was read.

    Addresses come back in canonical notation.

    Raises ConfigError that names file, line and field of every mistake.
    """
    document = read(text, source)
    if complete is not None:
        document = msgspec.structs.replace(document, data=complete(document.data))
    if document.data is None:
        raise ConfigError(f"the file is empty; the smallest configuration is: {SMALLEST}", where=source)
    config = convert(document, Config)
    refuse(document, _config_problems(config))
    return _canonical(config)


def parse_endpoints(text: str, source: str = "endpoints", models: Sequence[str] = ()) -> tuple[EndpointSpec, ...]:
    """Read a file of endpoints; `models` are for entries that declare none.

    Raises ConfigError like `parse`.
    """
    document = read(text, source)
    if document.data is None:
        raise ConfigError("the file is empty; for no endpoints write: endpoints: []", where=source)
    entries = convert(document, EndpointsFile).endpoints
    refuse(document, _entries_problems(entries, ("endpoints",), {}))
    return tuple(spec(_canonical_entry(entry), tuple(models)) for entry in entries)


def _config_problems(config: Config) -> Iterator[Problem]:
    yield from _listen_problems(config)
    if not config.pools:
        yield Problem(("pools",), f"there is no pool; the smallest configuration is: {SMALLEST}")
    elif config.default_pool is not None and config.default_pool not in config.pools:
        known = ", ".join(config.pools)
        yield Problem(("default_pool",), f"there is no pool `{config.default_pool}`; known are {known}")
    yield from _pool_problems(config)
    yield from _model_problems(config)
    yield from _waiting_problems(config)
    first, last = config.index.first_block_bytes, config.index.last_block_bytes
    if last < first:
        yield Problem(("index", "last_block_bytes"), f"{last} is smaller than first_block_bytes, {first}")
    shortest, longest = config.health.ejection_s, config.health.max_ejection_s
    if longest < shortest:
        yield Problem(("health", "max_ejection_s"), f"{longest:g} is smaller than ejection_s, {shortest:g}")
    if config.health.probes.path is not None:
        yield from _problems(_url_path, config.health.probes.path, ("health", "probes", "path"))
    if not re.fullmatch(r"[A-Za-z_]\w*", config.scrape.token_env or "_", re.ASCII):
        # The text is not quoted, since it may be the token itself.
        yield Problem(("scrape", "token_env"), "not the name of an environment variable; the token must not stand here")
    sections = (
        ("admin", config.admin.problem()),
        ("tenants", config.tenants.problem()),
        ("gateway", config.gateway.problem(config.tenants.priority_header)),
    )
    for section, problem in sections:
        if problem is not None:
            yield Problem((section, problem[0]), problem[1])
    for index, text in enumerate(config.explain.networks):
        yield from _problems(addresses.network, text, ("explain", "networks", index))


def _listen_problems(config: Config) -> Iterator[Problem]:
    if not config.listen:
        yield Problem(("listen",), "there is no address; write at least one, as in [127.0.0.1:9002]")
    for index, text in enumerate(config.listen):
        yield from _problems(addresses.listening, text, ("listen", index))
    for index, text in enumerate(config.health_listen):
        yield from _problems(addresses.listening, text, ("health_listen", index))
    if config.tls is not None:
        yield from _tls_problems(config.tls)
    if config.admin.listen.startswith("unix:"):
        yield Problem(("admin", "listen"), "the admin server listens on ip:port only")
    else:
        yield from _problems(addresses.listening, config.admin.listen, ("admin", "listen"))
    yield from (Problem(path, what) for path, what in taken_twice(config))


def _tls_problems(tls: TlsConfig) -> Iterator[Problem]:
    problem = tls.problem()
    if problem is not None:
        yield Problem(("tls", problem[0]), problem[1])
    for index, text in enumerate(tls.plaintext):
        yield from _problems(addresses.listening, text, ("tls", "plaintext", index))


def _problems(read_as: Callable[[str], object], text: str, path: Path) -> Iterator[Problem]:
    try:
        read_as(text)
    except ValueError as error:
        yield Problem(path, str(error))


def _pool_problems(config: Config) -> Iterator[Problem]:
    owners: dict[str, str] = {}
    for name, pool in config.pools.items():
        path: Path = ("pools", name)
        if not pool.endpoints and pool.endpoints_file is None and pool.kubernetes is None:
            yield Problem(path, "the pool has no endpoints; write `endpoints`, `endpoints_file` or `kubernetes`")
        if pool.metrics_path is not None:
            yield from _problems(_url_path, pool.metrics_path, (*path, "metrics_path"))
        if pool.tokens is not None and (pool.tokens.source == "local") != (pool.tokens.tokenizer is not None):
            what = (
                "missing; `source: local` needs the folder of the engines' tokenizer"
                if pool.tokens.tokenizer is None
                else "the folder of a tokenizer goes with `source: local` alone"
            )
            yield Problem((*path, "tokens", "tokenizer"), what)
        for section, settings in (("kv_events", pool.kv_events), ("kubernetes", pool.kubernetes)):
            problem = settings.problem() if settings is not None else None
            if problem is not None:
                yield Problem((*path, section, problem[0]), problem[1])
        yield from _entries_problems(pool.endpoints, (*path, "endpoints"), owners)


def _waiting_problems(config: Config) -> Iterator[Problem]:
    """Find waits that Envoy has not the patience for."""
    longest = longest_wait(config.envoy.message_timeout_s, config.envoy.max_message_timeout_s)
    for name, pool in config.pools.items():
        for field in ("wait_s", "scale_from_zero_s", "wake_s"):
            if (getattr(pool.queue, field) or 0) > longest:
                yield Problem(
                    ("pools", name, "queue", field),
                    f"Envoy waits {longest:g} s at most; shorten it, or raise `envoy.max_message_timeout_s` here and"
                    " max_message_timeout in Envoy (envoy-config --max-message-timeout)",
                )


def _model_problems(config: Config) -> Iterator[Problem]:
    """Find models that nobody serves; only where all endpoints are listed here and declare what they serve."""
    pools = config.pools.values()
    declared = [spec.models for pool in pools for spec in pool.specs]
    if not declared or not all(declared) or any(pool.endpoints_file or pool.kubernetes for pool in pools):
        return
    served = sorted(frozenset[str]().union(*declared))
    for name in config.models:
        if name not in served:
            near = difflib.get_close_matches(name, served, n=1)
            hint = f"did you mean `{near[0]}`?" if near else f"known are {', '.join(served[:10])}"
            yield Problem(("models", name), f"no endpoint serves this model; {hint}")


def _entries_problems(entries: Sequence[EndpointConfig | str], path: Path, owners: dict[str, str]) -> Iterator[Problem]:
    for index, entry in enumerate(entries):
        where = (*path, index)
        if isinstance(entry, EndpointConfig) and entry.metrics_path is not None:
            yield from _problems(_url_path, entry.metrics_path, (*where, "metrics_path"))
        try:
            address = _address(entry)
        except ValueError as error:
            yield Problem(where, str(error))
            continue
        if address in owners:
            yield Problem(where, f"the endpoint {address} is listed already, at {owners[address]}")
        owners.setdefault(address, f"{'.'.join(map(str, path))}[{index}]")


def _url_path(text: str | None) -> str | None:
    """Write a path with one leading slash; blanks around it are an accident."""
    if text is None:
        return None
    path = text.strip()
    if "://" in path or not path.isascii() or not path.isprintable() or " " in path:
        raise ValueError(f"`{text}` is not a path; write the path alone, as in /metrics")
    return path if path.startswith("/") else f"/{path}"


def _address(entry: EndpointConfig | str) -> str:
    if isinstance(entry, str):
        return addresses.named(entry)
    if entry.port is None:
        return addresses.named(entry.address)
    if _has_port(entry.address):
        raise ValueError("the port stands in `address` and in `port`; remove one")
    return addresses.join_named(entry.address, entry.port)


def _has_port(text: str) -> bool:
    try:
        addresses.named(text)
    except ValueError:
        return False
    return True


def _canonical(config: Config) -> Config:
    pools = {
        name: msgspec.structs.replace(
            pool,
            endpoints=tuple(map(_canonical_entry, pool.endpoints)),
            metrics_path=_url_path(pool.metrics_path),
        )
        for name, pool in config.pools.items()
    }
    return msgspec.structs.replace(
        config,
        pools=pools,
        listen=tuple(map(addresses.listening, config.listen)),
    )


def _canonical_entry(entry: EndpointConfig | str) -> EndpointConfig:
    if isinstance(entry, str):
        return EndpointConfig(address=addresses.named(entry))
    metrics_path = _url_path(entry.metrics_path)
    return msgspec.structs.replace(entry, address=_address(entry), port=None, metrics_path=metrics_path)
