"""The configuration file."""

import contextlib
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import inspect

from ext_proc.config import Config, EndpointConfig, load, located, parse, parse_endpoints
from ext_proc.config.settings import PoolConfig
from ext_proc.core.errors import ConfigError
from ext_proc.core.model import MetricsSource
from ext_proc.core.pool import EndpointSpec

BAD_CONFIGS = sorted((Path(__file__).parents[2] / "data" / "bad_configs").glob("*.yaml"))
SMALL = "pools: {chat: {endpoints: ['10.0.0.11:8000']}}\n"


@pytest.mark.parametrize("path", BAD_CONFIGS, ids=lambda path: path.stem)
def test_a_bad_configuration_gets_its_message(path: Path) -> None:
    """Each mistake of the corpus is answered by exactly the message beside it."""
    with pytest.raises(ConfigError) as caught:
        parse(path.read_text(), path.name)
    assert f"{caught.value}\n" == path.with_suffix(".txt").read_text()


@pytest.mark.parametrize(
    "text",
    ["callbacks: os.system\n", "plugin: 'evil.mod:fn'\n", "admin: !!python/object/apply:os.system [id]\n"],
    ids=["callback", "plugin", "tag"],
)
def test_a_configuration_cannot_run_code(text: str) -> None:
    """Nothing in the file is imported or called; what looks like it is refused (H13)."""
    with pytest.raises(ConfigError, match=r"unknown field[;,]|is not accepted; plain YAML only"):
        parse(SMALL + text)


MODELS_TWICE = """
models:
  acme/chat-8b:
    endpoints: [10.0.0.11:8000]
  acme/embed-1:
    endpoints: [10.0.0.17:8000]
  acme/chat-8b:
    endpoints: [10.0.0.12:8000]
""".lstrip()


@pytest.mark.parametrize(
    ("text", "field", "lines"),
    [
        (MODELS_TWICE, "models.acme/chat-8b", "2 and 6"),
        (SMALL + "log: {level: info}\nlog: {format: json}\n", "log", "2 and 3"),
        ("pools:\n  p:\n    strategy: {name: random,\n      'name': random}\n", "pools.p.strategy.name", "3 and 4"),
        (SMALL + 'tenants:\n  priorities:\n    a: 1\n    "a": 2\n', "tenants.priorities.a", "4 and 5"),
    ],
    ids=["names of models", "sections", "quoted or not", "names of priorities"],
)
def test_a_key_that_stands_twice_is_named_with_both_lines(text: str, field: str, lines: str) -> None:
    """No entry vanishes silently, at whatever depth and however it is written (I03)."""
    with pytest.raises(ConfigError, match=f": {field}: the key stands twice, on lines {lines}; remove one"):
        parse(text)


@pytest.mark.parametrize(
    ("text", "field", "lines"),
    [
        ("endpoints: ['10.0.0.11:8000']\nendpoints: ['10.0.0.12:8000']\n", "endpoints", "1 and 2"),
        (
            "endpoints:\n- address: 10.0.0.11:8000\n  models: [a]\n  models: [b]\n",
            r"endpoints\[0\].models",
            "3 and 4",
        ),
        (
            "endpoints:\n- {address: 10.0.0.11:8000, labels: {gpu: a, gpu: b}}\n",
            r"endpoints\[0\].labels.gpu",
            "2 and 2",
        ),
    ],
    ids=["lists", "fields", "labels"],
)
def test_a_key_that_stands_twice_in_a_file_of_endpoints_is_named_too(text: str, field: str, lines: str) -> None:
    """An endpoint is not dropped because a list was begun anew (I03)."""
    with pytest.raises(ConfigError, match=f": {field}: the key stands twice, on lines {lines}; remove one"):
        parse_endpoints(text)


def test_every_mistake_is_reported_at_once() -> None:
    """Several mistakes give one error with a line for each, in the order of the file."""
    with pytest.raises(ConfigError) as caught:
        parse("log: {level: loud}\nhealth: {failure: 2}\n" + SMALL, "k.yaml")
    assert [line.split(": ")[:2] for line in str(caught.value).splitlines()] == [
        ["k.yaml:1", "log.level"],
        ["k.yaml:2", "health.failure"],
    ]


def test_an_error_names_its_field_and_line() -> None:
    """The parts of an error can be read without taking the message apart."""
    with pytest.raises(ConfigError) as caught:
        parse(SMALL + "log:\n  level: loud\n", "k.yaml")
    assert (caught.value.path, caught.value.where) == ("log.level", "k.yaml:3")


@pytest.mark.parametrize(
    ("field", "where"),
    [
        ("pools.chat.strategy.name", ":3: "),
        ("pools.chat", ":2: "),
        ("models.acme/m-1.5.strategy.parameters", ":5: "),
        ("nowhere", ""),
        ("/run/pools", ""),
    ],
)
def test_an_error_that_names_a_field_is_given_its_place(tmp_path: Path, field: str, where: str) -> None:
    """The nearest field around it counts, dots in names do not mislead, and what is no field stays as it is."""
    path = tmp_path / "k.yaml"
    path.write_text("pools:\n  chat:\n    strategy: {}\nmodels:\n  acme/m-1.5: {strategy: {}}\n")
    with pytest.raises(ConfigError) as caught, located(path):
        raise ConfigError("wrong", path=field)
    assert str(caught.value) == (f"{path}{where}{field}: wrong" if where else f"{field}: wrong")


def test_an_error_that_has_its_place_keeps_it(tmp_path: Path) -> None:
    """Neither is a place replaced, nor one given where there is no file."""
    for path, error in ((tmp_path, ConfigError("wrong", where="k:1")), (None, ConfigError("wrong", path="pools"))):
        with pytest.raises(ConfigError) as caught, located(path):
            raise error
        assert caught.value is error


def test_everything_but_the_endpoints_has_a_default() -> None:
    """The smallest configuration is one pool with one endpoint."""
    config = parse(SMALL)
    assert config.listen == ("127.0.0.1:9002",)
    assert config.pools["chat"].strategy.name == "least-wait"
    assert config.pools["chat"].specs == (EndpointSpec(address="10.0.0.11:8000"),)


def test_servers_listen_on_loopback_unless_told() -> None:
    """Neither prompts nor debug pages are shown to the network by default."""
    config = parse(SMALL)
    assert all(address.startswith("127.0.0.1:") for address in (*config.listen, config.admin.listen))


def test_of_several_pools_none_is_the_default_unless_named() -> None:
    """Kvpicker does not guess which model stray requests are meant for."""
    two = "pools: {a: {endpoints: ['10.0.0.1:80']}, b: {endpoints: ['10.0.0.2:80']}}\n"
    assert parse(two).default_pool is None
    assert parse(two + "default_pool: b").default_pool == "b"


@pytest.mark.parametrize(
    "entry",
    ["'[fd00:0::12]:8000'", "{address: '[FD00::12]:8000'}", "{address: 'fd00::12', port: 8000}"],
    ids=["text", "mapping", "port apart"],
)
def test_addresses_become_canonical(entry: str) -> None:
    """Every way to write an endpoint gives the same address."""
    config = parse(f"pools: {{chat: {{endpoints: [{entry}]}}}}")
    assert config.pools["chat"].endpoints == (EndpointConfig(address="[fd00::12]:8000"),)


def test_endpoints_inherit_the_models_of_their_pool() -> None:
    """A pool's models are those of every endpoint that declares none."""
    config = parse("pools: {chat: {models: [a], endpoints: ['10.0.0.1:80', {address: '10.0.0.2:80', models: [b]}]}}")
    assert [spec.models for spec in config.pools["chat"].specs] == [frozenset("a"), frozenset("b")]


@pytest.mark.parametrize(
    "pools",
    [
        "{chat: {endpoints: ['10.0.0.1:80']}}",
        "{chat: {models: [a], endpoints: ['10.0.0.1:80']}, more: {endpoints_file: more.yaml}}",
        "{chat: {endpoints: [{address: '10.0.0.1:80', models: [a, acme/chat-8b]}]}}",
    ],
    ids=["learnt", "in a file", "declared"],
)
def test_a_model_may_have_a_strategy_of_its_own(pools: str) -> None:
    """It may be any model that is served, or that may turn out to be."""
    config = parse(f"models: {{acme/chat-8b: {{strategy: {{name: least-tokens}}}}}}\npools: {pools}\n")
    assert config.models["acme/chat-8b"].strategy.name == "least-tokens"


def test_an_endpoint_carries_what_is_known_of_it() -> None:
    """Capacity, speed and labels reach the endpoint."""
    (spec,) = parse_endpoints(
        "endpoints: [{address: '10.0.0.1:80', kv_tokens: 9, prefill_rate: 8000, labels: {gpu: h100}}]"
    )
    assert (spec.kv_tokens, spec.prefill_rate, spec.labels) == (9, 8000.0, {"gpu": "h100"})


@pytest.mark.parametrize("text", ["/metrics ", "metrics", " /metrics"])
def test_c14_a_metrics_path_is_mended(text: str) -> None:
    """Blanks around it and a missing slash do not lead every reading astray."""
    config = parse(
        f"pools: {{chat: {{metrics_path: '{text}', endpoints: [{{address: '10.0.0.1:80', metrics_path: '{text}'}}]}}}}"
    )
    assert config.pools["chat"].metrics_path == "/metrics"
    assert config.pools["chat"].specs[0].metrics == MetricsSource(path="/metrics")


def test_an_endpoint_says_how_its_metrics_are_read() -> None:
    """Engine and port reach the endpoint, from a file of endpoints too."""
    (spec,) = parse_endpoints("endpoints: [{address: '10.0.0.1:80', engine: triton, metrics_port: 8002}]")
    assert spec.metrics == MetricsSource("triton", None, 8002)


def test_readings_are_believed_for_longer_than_the_longest_interval() -> None:
    """An idle engine that is read on time is never stale, whatever the intervals are."""
    for intervals in ("{}", "{interval_s: 30}", "{idle_interval_s: 60}"):
        scrape = parse(SMALL + f"scrape: {intervals}\n").scrape
        assert scrape.fresh_s >= max(scrape.interval_s, scrape.idle_interval_s) + 2 * scrape.interval_s


def test_a_token_in_the_file_is_not_repeated() -> None:
    """Who writes the token in place of a variable's name does not find it in the log."""
    with pytest.raises(ConfigError) as caught:
        parse(SMALL + "scrape: {token_env: 'Bearer s3cret'}\n")
    assert "s3cret" not in str(caught.value)
    assert caught.value.path == "scrape.token_env"


def test_a_file_of_endpoints_may_be_empty_only_on_purpose() -> None:
    """`endpoints: []` empties a pool; an empty file, as a half-written one is, does not."""
    assert parse_endpoints("endpoints: []") == ()
    with pytest.raises(ConfigError, match=r"the file is empty; for no endpoints write: endpoints: \[\]"):
        parse_endpoints("", "chat.yaml")


def test_a_file_of_endpoints_names_its_mistakes() -> None:
    """Errors of a file of endpoints have path and line too."""
    with pytest.raises(ConfigError, match=r"^chat.yaml:3: endpoints\[1\]: the endpoint 10.0.0.1:80 is listed"):
        parse_endpoints("endpoints:\n- 10.0.0.1:80\n- 10.0.0.1:80\n", "chat.yaml")


def test_load_reads_a_file(tmp_path: Path) -> None:
    """A file with a byte order mark is read like one without."""
    path = tmp_path / "k.yaml"
    path.write_text("﻿" + SMALL, encoding="utf-8")
    assert load(path) == parse(SMALL)


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "cannot be read: No such file"), (b"\xff\xfe\x00", "is not UTF-8 text: byte 0")],
    ids=["missing", "not text"],
)
def test_a_file_that_cannot_be_read_is_a_config_error(tmp_path: Path, content: bytes | None, message: str) -> None:
    """Whatever is wrong with the file, the caller sees one kind of error that names the file."""
    path = tmp_path / "k.yaml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match=message) as caught:
        load(path)
    assert caught.value.where == str(path)


@given(st.text(alphabet=" \n-:[]{}?!&*#'\"|>,%@a1.~", max_size=60))
def test_any_text_gives_a_configuration_or_a_config_error(text: str) -> None:
    """No text makes the reader raise anything else."""
    with contextlib.suppress(ConfigError):
        assert isinstance(parse(text), Config)


@pytest.mark.parametrize("text", ["- " * 50_000, "{a: " * 5_000, "a: " + "1" * 5_000], ids=["list", "map", "int"])
def test_hostile_yaml_is_refused_in_few_words(text: str) -> None:
    """Deep nesting and endless numbers neither crash the reader nor fill the log."""
    with pytest.raises(ConfigError) as caught:
        parse(text)
    assert len(str(caught.value)) < 300


def test_h13_long_files_that_are_no_yaml_are_refused_at_once() -> None:
    """Looking for the cause takes no longer with the length of the file, and requests do not wait for it."""
    began = time.process_time()
    for text in ("a: b\n" * 20_000, "a: [0:" + ":" * 100_000 + "\n", "[0:" * 50_000 + "\n"):
        with pytest.raises(ConfigError, match="not valid YAML"):
            parse(SMALL + "x: {\n" + text + "]")
    assert time.process_time() - began < 2


def test_endpoints_may_be_listed_by_name() -> None:
    """In small letters, with the port beside the name or behind it, in the configuration and in files (E09)."""
    text = "endpoints: ['Engine-0.engines:8000', {address: engine-1.Engines, port: 8001}, '[FD00::1]:80']"
    expected = ["engine-0.engines:8000", "engine-1.engines:8001", "[fd00::1]:80"]
    assert [spec.address for spec in parse(f"pools: {{chat: {{{text}}}}}").pools["chat"].specs] == expected
    assert [spec.address for spec in parse_endpoints(text)] == expected


def _texts(section: Any, path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """Find the fields of a section, and of those within it, that may be left out and are text otherwise."""
    for field in inspect.type_info(section).fields:  # type: ignore[attr-defined]
        kinds = field.type.types if isinstance(field.type, inspect.UnionType) else (field.type,)
        for kind in kinds:
            if isinstance(kind, inspect.StructType):
                yield from _texts(kind.cls, (*path, field.encode_name))
            elif isinstance(kind, inspect.StrType) and any(isinstance(each, inspect.NoneType) for each in kinds):
                yield (*path, field.encode_name)


@pytest.mark.parametrize("path", [*_texts(Config, ()), *_texts(PoolConfig, ("pools", "p"))], ids=".".join)
def test_what_may_be_left_out_may_not_be_empty(path: tuple[str, ...]) -> None:
    """An empty path or name would switch a file, a key or mutual TLS off without a word."""
    value: Any = ""
    for name in reversed(path):
        value = {name: value}
    value.setdefault("pools", {}).setdefault("p", {}).setdefault("endpoints", ["10.0.0.11:8000"])
    if path[-2:-1] == ("kubernetes",) and path[0] == "pools":
        value["pools"]["p"]["kubernetes"]["namespace"] = "n"
    with pytest.raises(ConfigError) as caught:
        parse(json.dumps(value))
    assert caught.value.path == ".".join(path)
