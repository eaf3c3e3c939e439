"""What an API server keeps: objects, and the history of their changes that it has not forgotten yet."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

Object = dict[str, Any]


class Item(dict[str, Any]):
    """An object with its text, which is made once and not for each who asks."""

    text = b""


def text_of(item: Object) -> bytes:
    """Return an object as JSON."""
    return item.text if isinstance(item, Item) else json.dumps(item).encode()


class Gone(Exception):
    """What was asked for has been forgotten."""


class Change(NamedTuple):
    """One change of one object: as it was before and as it is after; None where there is none."""

    version: int
    before: Object | None
    after: Object | None


class Query(NamedTuple):
    """Which objects count: requirements on their labels, and a name."""

    labels: tuple[str, ...]
    name: str | None = None

    def matches(self, item: Object | None) -> bool:
        """Tell whether an object counts."""
        if item is None or (self.name is not None and item["metadata"]["name"] != self.name):
            return False
        has = item["metadata"].get("labels", {})
        return all(_meets(has, requirement) for requirement in self.labels)


EVERYTHING = Query(())


def requirements(selector: str) -> tuple[str, ...]:
    """Take a selector apart, at the commas that stand outside parentheses."""
    return tuple(part.strip() for part in re.split(r",(?![^(]*\))", selector) if part.strip())


def _meets(has: Mapping[str, str], requirement: str) -> bool:
    """Tell whether labels meet a requirement, in the forms that API servers know."""
    if found := re.fullmatch(r"(\S+)\s+(in|notin)\s*\((.*)\)", requirement):
        values = {value.strip() for value in found[3].split(",")}
        return (has.get(found[1]) in values) == (found[2] == "in")
    if found := re.fullmatch(r"(\S+?)\s*(==|=|!=)\s*(\S*)", requirement):
        return (has.get(found[1]) == found[3]) == (found[2] != "!=")
    return requirement[1:].strip() not in has if requirement.startswith("!") else requirement in has


class Store:
    """One collection, with a version that all collections of a server share.

    Args:
        clock: counts versions; shared by the collections of a server.
    """

    def __init__(self, clock: Clock) -> None:
        self.objects: dict[str, Object] = {}
        self.changes: list[Change] = []
        self.forgotten = 0
        self._clock = clock
        self._snapshots: dict[str, list[Object]] = {}

    def put(self, item: Object) -> Object:
        """Create or replace an object by its name."""
        return self._set(item["metadata"]["name"], Item(item | {"metadata": dict(item["metadata"])}))

    def delete(self, name: str) -> None:
        """Delete an object."""
        self._set(name, None)

    def compact(self) -> None:
        """Forget all changes and all lists that were not read to their end."""
        self.changes.clear()
        self._snapshots.clear()
        self.forgotten = self._clock.tick()

    def page(self, query: Query, limit: int | None, token: str) -> Object:
        """Return a list or a part of one; all parts show the same moment.

        Raises Gone if the token is forgotten.
        """
        if token:
            if token not in self._snapshots:
                raise Gone
            items, version = self._snapshots.pop(token), token.partition("-")[0]
        else:
            items = [item for _, item in sorted(self.objects.items()) if query.matches(item)]
            version = str(self._clock.now)
        metadata = {"resourceVersion": version}
        if limit is not None and len(items) > limit:
            rest = items[limit:]
            following = f"{version}-{len(rest)}-{self._clock.unique()}"
            self._snapshots[following] = rest
            metadata |= {"continue": following, "remainingItemCount": str(len(rest))}
            items = items[:limit]
        return {"kind": "List", "metadata": metadata, "items": items or None}

    def since(self, version: int, query: Query) -> list[Object]:
        """Return the events after a version.

        Raises Gone if some of them are forgotten.
        """
        if version < self.forgotten:
            raise Gone
        seen = (self._event(change, query) for change in self.changes if change.version > version)
        return [event for event in seen if event is not None]

    def _event(self, change: Change, query: Query) -> Object | None:
        """Return what a watcher with this query sees of a change."""
        was, now = query.matches(change.before), query.matches(change.after)
        if now:
            return {"type": "MODIFIED" if was else "ADDED", "object": change.after}
        if not was or change.before is None:
            return None
        last = change.after or change.before
        gone = last | {"metadata": last["metadata"] | {"resourceVersion": str(change.version)}}
        return {"type": "DELETED", "object": gone}

    def _set(self, name: str, item: Item | None) -> Object:
        version = self._clock.tick()
        before = self.objects.pop(name, None)
        if item is not None:
            item["metadata"]["resourceVersion"] = str(version)
            item.text = json.dumps(item).encode()
            self.objects[name] = item
        self.changes.append(Change(version, before, item))
        return item or {}


class Clock:
    """Counts versions over all collections."""

    def __init__(self) -> None:
        self.now = 100
        self._unique = 0

    def tick(self) -> int:
        """Return the next version."""
        self.now += 1
        return self.now

    def unique(self) -> int:
        """Return a number that was not given before."""
        self._unique += 1
        return self._unique
