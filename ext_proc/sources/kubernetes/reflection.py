"""What an API server says of a collection, list by list and event by event: the state of list, watch and list again.

Lists ask for the newest state, so they never go back behind what is known. A watch begins at the version of the list
or of the last event, so no change falls between the two. A version that the server has forgotten (410) means a new
list, which replaces everything at its end: until then the objects stay as they were.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Generic

from ext_proc.sources.kubernetes.objects import Event, Page, T, UnusableAnswerError, key_of

MAX_OBJECTS = 50_000
"""Objects of one collection at most; what selects more than that is a mistake."""

MAX_LINE = 16 * 1024 * 1024
"""Bytes of one event at most; etcd holds objects of 1.5 MB."""

MAX_FAILED_WATCHES = 3
"""Watches in a row that bring nothing and fail, after which a new list is made: the version may be one of another
server's history."""

_GONE = 410
_EXPIRED = frozenset({"Expired", "Gone"})


class ExpiredError(Exception):
    """The server has forgotten the version that was asked for, or where a list goes on."""


class RefusedError(Exception):
    """The server ended a watch by an error.

    Attributes:
        code: as of an HTTP status.
    """

    def __init__(self, code: int) -> None:
        super().__init__(f"code {code}")
        self.code = code


class Reflection(Generic[T]):
    """The objects of a collection, as far as the server has told.

    Attributes:
        objects: by uid; those that changed last come last.
        listed: whether a list was ever complete.
        version: where a watch is to begin; empty while a list is needed.
    """

    def __init__(self) -> None:
        self.objects: Mapping[str, T] = {}
        self.listed = False
        self.version = ""
        self._objects: dict[str, T] = {}
        self._listing: dict[str, T] = {}
        self._failures = 0
        self._whole = False

    @property
    def is_paged(self) -> bool:
        """Whether lists are to come in pages; not after one whose continuation was forgotten meanwhile."""
        return not self._whole

    def begin_list(self) -> None:
        """Forget the pages of a list that was not completed."""
        self._listing = {}

    def page(self, page: Page[T]) -> str:
        """Take a page of a list; return where it goes on, empty once it is complete.

        Raises UnusableAnswerError if the list has no version or too many objects.
        """
        for item in page.items or ():
            self._listing[key_of(item.metadata)] = item
        if len(self._listing) > MAX_OBJECTS:
            self._listing = {}
            raise UnusableAnswerError(f"more than {MAX_OBJECTS} objects")
        if page.metadata.continues:
            return page.metadata.continues
        if not page.metadata.resource_version:
            raise UnusableAnswerError("a list without a version")
        self._objects, self._listing = self._listing, {}
        self.objects = self._objects
        self.version = page.metadata.resource_version
        self.listed, self._failures, self._whole = True, 0, False
        return ""

    def take(self, event: Event[T]) -> bool:
        """Take an event of a watch; tell whether an object came, changed or went.

        Raises:
            ExpiredError: the server has forgotten the version.
            RefusedError: the server ends the watch.
            UnusableAnswerError: there are too many objects.
        """
        if event.status is not None:
            if event.status.code == _GONE or event.status.reason in _EXPIRED:
                raise ExpiredError
            raise RefusedError(event.status.code)
        changed = self._apply(event)
        if event.version:
            self.version = event.version
            self._failures = 0
        return changed

    def expired(self) -> None:
        """The server has forgotten where the watch or the list was to go on."""
        self._whole = not self.version
        self.version = ""
        self._listing = {}

    def watch_failed(self) -> None:
        """A watch ended by a failure; after some that brought nothing, a list is made."""
        self._failures += 1
        if self._failures >= MAX_FAILED_WATCHES:
            self._failures = 0
            self.version = ""

    def _apply(self, event: Event[T]) -> bool:
        if event.type in {"ADDED", "MODIFIED"} and event.object is not None:
            self._objects.pop(event.key, None)  # what changed last comes last
            if len(self._objects) >= MAX_OBJECTS:
                raise UnusableAnswerError(f"more than {MAX_OBJECTS} objects")
            self._objects[event.key] = event.object
            return True
        return event.type == "DELETED" and self._objects.pop(event.key, None) is not None


class Lines:
    """Cuts a stream of bytes into lines; the beginning of one that was cut off is never seen."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, chunk: bytes) -> list[bytes]:
        """Return the lines that are complete now, blank ones left out.

        Raises UnusableAnswerError if a line is too long.
        """
        self._rest += chunk
        *lines, rest = self._rest.split(b"\n") if b"\n" in chunk else [self._rest]
        if len(rest) > MAX_LINE:
            raise UnusableAnswerError(f"a line of more than {MAX_LINE} bytes")
        self._rest = rest
        return [bytes(line) for line in lines if line.strip()]
