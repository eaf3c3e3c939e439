"""Finds strategies by entry point and makes them from their parameters; kvpicker's own come through the same door."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from importlib.metadata import EntryPoint, entry_points
from typing import Any, cast

import msgspec

from ext_proc.config.convert import problems
from ext_proc.config.document import dotted
from ext_proc.core.errors import UNSTOPPABLE, ConfigError
from ext_proc.core.strategies import GROUP, Strategy
from ext_proc.core.strategies.nested import StrategyChoice

OWN = "kvpicker"
"""The distribution whose strategies' names are reserved."""

_PLACE = re.compile(r" - at `(?:key` in `)?\$(?P<path>[^`]*)`$")
"""Where msgspec says a value stands, at the end of its messages."""


def strategy_names() -> list[str]:
    """Return the names of all installed strategies."""
    return sorted({entry.name for entry in entry_points(group=GROUP)})


def load_strategy(name: str, parameters: dict[str, Any], path: str = "strategy") -> Strategy:
    """Make the strategy of that name, and before it those that its parameters name.

    Args:
        name: as in the configuration.
        parameters: its parameters, validated against the strategy's own struct.
        path: where in the configuration it is named, for error messages.

    Raises:
        ConfigError: no such strategy is installed, it cannot be imported, or its parameters are wrong.
    """
    loaded = _load(_find(name, path), path)
    wanted = getattr(loaded, "Parameters", None)
    inside = f"{path}.parameters"
    if wanted is None and parameters:
        raise ConfigError(f"strategy {name} takes no parameters; remove them", path=inside)
    converted = None if wanted is None else _convert(name, parameters, wanted, inside)
    nested = _nested(converted, inside)
    try:
        made = loaded() if wanted is None else loaded(converted, **nested)
    except UNSTOPPABLE:
        raise
    except BaseException as error:  # a third party's constructor may raise anything, even SystemExit
        raise ConfigError(f"strategy {name} cannot be made: {error!r}", path=path) from error
    if not callable(getattr(made, "rank", None)):
        raise ConfigError(f"strategy {name} has no method `rank`", path=path)
    return cast("Strategy", made)


def _convert(name: str, parameters: dict[str, Any], wanted: type, path: str) -> Any:
    try:
        return msgspec.convert(parameters, wanted)
    except msgspec.ValidationError as error:
        for problem in problems(parameters, wanted, ()):
            message, place = problem.message, dotted(problem.path)
            break
        else:
            found = _PLACE.search(str(error))
            message, place = _PLACE.sub("", str(error)), found["path"].strip(".") if found else ""
        whole = f"{path}.{place}" if place else path
        raise ConfigError(f"{message} (parameters of strategy {name})", path=whole) from error


def _nested(parameters: Any, path: str) -> dict[str, Strategy]:
    if not isinstance(parameters, msgspec.Struct):
        return {}
    choices = {name: getattr(parameters, name) for name in parameters.__struct_fields__}
    return {
        name: load_strategy(choice.name, choice.parameters, f"{path}.{name}")
        for name, choice in choices.items()
        if isinstance(choice, StrategyChoice)
    }


def _find(name: str, path: str) -> EntryPoint:
    found = {entry.value: entry for entry in entry_points(group=GROUP, name=name)}
    if len(found) > 1:
        raise ConfigError(_ambiguous(name, found.values()), path=f"{path}.name")
    for entry in found.values():
        return entry
    names = strategy_names()
    near = difflib.get_close_matches(name, names, n=1)
    hint = f"did you mean {near[0]}?" if near else f"installed are {', '.join(names)}"
    raise ConfigError(f"no strategy is called `{name}`; {hint}", path=f"{path}.name")


def _ambiguous(name: str, found: Iterable[EntryPoint]) -> str:
    """Say whose strategies share a name; kvpicker's own names are nobody else's to take."""
    whose = {_distribution(entry): entry for entry in found}
    listed = " and ".join(f"{owner} ({entry.value})" for owner, entry in sorted(whose.items()))
    strangers = sorted(set(whose) - {OWN})
    if OWN in whose and strangers:
        return f"`{name}` is kvpicker's own name, yet installed by {listed}; rename or remove that of {strangers[0]}"
    return f"several strategies are called `{name}`, installed by {listed}; remove all but one"


def _distribution(entry: EntryPoint) -> str:
    return "an unknown distribution" if entry.dist is None else entry.dist.name


def _load(entry: EntryPoint, path: str) -> Any:
    try:
        return entry.load()
    except UNSTOPPABLE:
        raise
    except BaseException as error:  # a third party's module may raise anything, even SystemExit
        reason = str(error) if isinstance(error, Exception) else repr(error)
        raise ConfigError(f"strategy {entry.name} ({entry.value}) cannot be imported: {reason}", path=path) from error
