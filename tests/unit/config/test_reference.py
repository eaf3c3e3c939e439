"""The generated documentation of the configuration."""

from collections.abc import Iterator
from typing import Any

import msgspec

from ext_proc.config import reference, schema
from ext_proc.config.reference import attributes, rows
from ext_proc.config.settings import Section
from ext_proc.core.strategies.chain import ChainParameters


def _properties() -> Iterator[tuple[str, dict[str, Any]]]:
    for name, definition in schema()["$defs"].items():
        for field, prop in definition["properties"].items():
            yield f"{name}.{field}", prop


def test_every_field_says_what_it_means() -> None:
    """Each setting, and nothing else, is explained in the docstring of its section."""
    for section in Section.__subclasses__():
        assert attributes(section).keys() == {f.name for f in msgspec.structs.fields(section)}


def test_the_schema_explains_every_field() -> None:
    """The JSON schema carries the meaning of each field and no markup of docstrings."""
    meanings = {name: prop["description"] for name, prop in _properties()}
    assert meanings["LeasesConfig.timeout_s"].startswith("Seconds until a lease ends")
    assert all("\n" not in meaning for meaning in meanings.values())


def test_the_schema_forbids_unknown_fields() -> None:
    """An editor that knows the schema marks misspelt fields."""
    assert all(d["additionalProperties"] is False for d in schema()["$defs"].values())


def test_the_schema_is_json() -> None:
    """The schema can be printed and read back."""
    assert msgspec.json.decode(msgspec.json.encode(schema()))["$ref"] == "#/$defs/Config"


def test_the_reference_has_a_line_for_every_setting() -> None:
    """The table lists nested fields by their path, with default and meaning."""
    lines = dict(line.strip("| ").split(" | ", 1) for line in reference().splitlines()[2:])
    assert lines["`leases.timeout_s`"].startswith("`900.0` | Seconds")
    assert lines["`pools.NAME.endpoints[].address`"].startswith("required | ")
    assert len(lines) > 30


def test_what_may_stand_several_times_is_told_by_brackets() -> None:
    """Also where there must be one at least."""
    lines = list(rows(ChainParameters, ""))
    assert any(line.startswith("| `filters[].labels` |") for line in lines)


def test_units_are_in_the_names_of_fields() -> None:
    """A number of seconds or bytes says so in its name."""
    for name, prop in _properties():
        if prop["description"].startswith("Seconds"):
            assert name.endswith("_s"), name
        if prop["description"].startswith("Bytes"):
            assert name.endswith("_bytes"), name
