"""The generated code is what the .proto files say, and the .proto files agree with Envoy's."""

from __future__ import annotations

import filecmp
from pathlib import Path

import pytest
from google.protobuf.descriptor import Descriptor
from grpc_tools import protoc

from ext_proc.wire._pb import access_log_entry_pb2, ext_proc_pb2

ROOT = Path(__file__).parents[3]
GENERATED = Path("ext_proc/wire/_pb")


@pytest.fixture(scope="module")
def regenerated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Generate the code anew."""
    target = tmp_path_factory.mktemp("pb")
    protos = [str(path) for path in sorted((ROOT / "protos" / GENERATED).glob("*.proto"))]
    options = ["protoc", f"-I{ROOT / 'protos'}", f"--python_out={target}", f"--pyi_out={target}"]
    include = Path(protoc.__file__).parent / "_proto"
    assert protoc.main([*options, f"-I{include}", *protos]) == 0
    return target / GENERATED


def test_checked_in_code_is_generated_from_the_protos(regenerated: Path) -> None:
    """Nobody edited the generated modules, and nobody forgot `make protos`."""
    names = sorted(path.name for path in regenerated.iterdir())
    assert names == sorted(path.name for path in (ROOT / GENERATED).glob("*_pb2.py*"))
    assert filecmp.cmpfiles(regenerated, ROOT / GENERATED, names, shallow=False)[0] == names


TYPED = {
    ext_proc_pb2: "envoy_data_plane.envoy.service.ext_proc.v3",
    access_log_entry_pb2: "envoy_data_plane.envoy.data.accesslog.v3",
}
RENAMED = {"HTTPAccessLogEntry": "HttpAccessLogEntry"}


def numbers(message: Descriptor) -> dict[str, int]:
    """Return the field numbers of one of our messages."""
    return {field.name: field.number for field in message.fields}


@pytest.mark.parametrize("module", TYPED, ids=lambda module: module.__name__.rpartition(".")[2])
def test_field_numbers_are_those_of_envoy(module: object) -> None:
    """Every field has the number that an independent package of Envoy's API gives it."""
    typed = pytest.importorskip(TYPED[module])
    for name, message in module.DESCRIPTOR.message_types_by_name.items():
        theirs = getattr(typed, RENAMED.get(name, name)).__dataclass_fields__
        for field, number in numbers(message).items():
            assert theirs[field].metadata["betterproto"].number == number, f"{name}.{field}"
