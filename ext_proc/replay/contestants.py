"""Who is compared: strategies by name, with parameters, and what other pickers do, for comparison."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import msgspec

from ext_proc.core.errors import ConfigError
from ext_proc.core.strategies import Strategy
from ext_proc.plugins import load_strategy
from ext_proc.sim.fleet.conditions import View
from ext_proc.sim.fleet.kvpickers import Site
from ext_proc.sim.fleet.oracle import TtftOracle
from ext_proc.sim.fleet.peers import CacheAware, NewTokensTimesBatch, WeightedScrapes

PATH: Final = "--strategies"

PEERS: Final[Mapping[str, Callable[[Site], Strategy]]] = {
    "gie": lambda _: WeightedScrapes(),
    "lmetric": lambda _: NewTokensTimesBatch(),
    "sglang": lambda _: CacheAware(),
    "ttft-oracle": lambda site: TtftOracle(site.engines, site.hasher.chain),
}
"""What can be compared with but not served with: other pickers, and one that foresees everything."""

_OPENING, _CLOSING = "{[", "}]"


class Contestant(msgspec.Struct, frozen=True):
    """A strategy under a view.

    Attributes:
        name: of the strategy.
        parameters: its parameters.
        view: where knowledge of caches comes from.
        label: what tables call it; tells it from the others.
    """

    name: str
    parameters: dict[str, Any]
    view: View
    label: str

    def strategy(self, site: Site) -> Strategy:
        """Make the strategy; for each kvpicker a new one.

        Raises:
            ConfigError: it is not installed, or its parameters are wrong.
        """
        peer = PEERS.get(self.name)
        return load_strategy(self.name, self.parameters, PATH) if peer is None else peer(site)

    def check(self) -> None:
        """Raise ConfigError if the strategy could not be made."""
        if self.name not in PEERS:
            load_strategy(self.name, self.parameters, PATH)
        elif self.parameters:
            raise ConfigError(f"`{self.name}` takes no parameters; remove them", path=PATH)


def contestants(strategies: str, views: str) -> tuple[Contestant, ...]:
    """Read the options `--strategies` and `--view`: every strategy is tried under every view.

    Args:
        strategies: `name`, `name:key=value:key=value` or `name:{JSON}`, by comma.
        views: names of views, by comma.

    Raises:
        ConfigError: a strategy or a view is unknown, stands twice, or a parameter cannot be read.
    """
    chosen = [_view(name.strip()) for name in views.split(",")]
    found: list[Contestant] = []
    for text in _split(strategies, ","):
        name, *settings = _split(text, ":")
        parameters = _parameters(name, settings)
        for view in chosen:
            label = text if len(chosen) == 1 else f"{text} ({view})"
            found.append(Contestant(name, parameters, view, label))
    if not found:
        raise ConfigError("name at least one strategy", path=PATH)
    labels = [contestant.label for contestant in found]
    twice = next((label for label in labels if labels.count(label) > 1), None)
    if twice is not None:
        raise ConfigError(f"`{twice}` stands twice", path=PATH)
    for contestant in found:
        contestant.check()
    return tuple(found)


def _view(name: str) -> View:
    try:
        return View(name)
    except ValueError:
        raise ConfigError(f"no view is called `{name}`; there are {', '.join(View)}", path="--view") from None


def _parameters(name: str, settings: list[str]) -> dict[str, Any]:
    if len(settings) == 1 and settings[0].startswith("{"):
        try:
            return msgspec.json.decode(settings[0], type=dict[str, Any])
        except (msgspec.DecodeError, RecursionError) as error:
            raise ConfigError(f"the parameters of `{name}` are no JSON object: {error}", path=PATH) from error
    parameters = {}
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not equals or not key:
            raise ConfigError(f"`{setting}` is no parameter of `{name}`; write {name}:key=value", path=PATH)
        parameters[key.strip()] = _value(value.strip())
    return parameters


def _value(text: str) -> Any:
    """Read a value as JSON where it is JSON, else as text."""
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return text


def _split(text: str, separator: str) -> list[str]:
    """Split at separators outside of JSON; empty parts are left out."""
    return [part.strip() for part in _parts(text, separator) if part.strip()]


def _parts(text: str, separator: str) -> Iterator[str]:
    depth, start, quoted = 0, 0, False
    for place, character in enumerate(text):
        if character == '"':
            quoted = not quoted
        elif quoted:
            continue
        elif character in _OPENING:
            depth += 1
        elif character in _CLOSING:
            depth -= 1
        elif character == separator and depth == 0:
            yield text[start:place]
            start = place + 1
    yield text[start:]
