"""Whatever is lost and whenever, a reflection ends up with what the server has, and never goes back."""

from __future__ import annotations

import json

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from ext_proc.sources.kubernetes import reflection as module
from ext_proc.sources.kubernetes.objects import Kind, Pod, UnusableAnswerError
from ext_proc.sources.kubernetes.reflection import ExpiredError, Lines, Reflection, RefusedError
from tests.kube.objects import pod
from tests.kube.store import Clock, Gone, Object, Query, Store

KIND = Kind(Pod)
CHAT = Query(("app=chat",))
NAMES = st.sampled_from("abcdef")
LABELS = st.sampled_from(["chat", "web"])


class Following(RuleBasedStateMachine):
    """A server that changes and forgets, and a client that lists page by page and watches event by event."""

    def __init__(self) -> None:
        super().__init__()
        self.store = Store(Clock())
        self.reflection: Reflection[Pod] = Reflection()
        self.token: str | None = None
        self.uids = 0

    @rule(name=NAMES, label=LABELS, same=st.booleans())
    def put(self, name: str, label: str, same: bool) -> None:
        """Create, change, relabel or replace a pod, perhaps by another one of its name."""
        before = self.store.objects.get(name)
        self.uids += 1
        uid = before["metadata"]["uid"] if before is not None and same else f"u{self.uids}"
        if before is not None and not same:
            self.store.delete(name)
        self.store.put(pod(name, "10.0.0.1", uid=uid, labels={"app": label}))

    @rule(name=NAMES)
    def delete(self, name: str) -> None:
        """Delete a pod."""
        if name in self.store.objects:
            self.store.delete(name)

    @rule()
    def compact(self) -> None:
        """Forget the history, and lists half read."""
        self.store.compact()

    @precondition(lambda self: not self.reflection.version)
    @rule(limit=st.integers(1, 3))
    def read_page(self, limit: int) -> None:
        """Read a page of a list."""
        if self.token is None:
            self.reflection.begin_list()
        try:
            page = self.store.page(CHAT, limit if self.reflection.is_paged else None, self.token or "")
        except Gone:
            self.token = None
            self.reflection.expired()
            return
        self.token = self.reflection.page(KIND.page(json.dumps(page).encode())) or None

    @precondition(lambda self: not self.reflection.version)
    @rule()
    def lose_list(self) -> None:
        """Lose the connection between two pages."""
        self.token = None

    @precondition(lambda self: self.reflection.version)
    @rule(count=st.integers(0, 5), cut=st.integers(0, 200), pieces=st.integers(1, 400))
    def watch(self, count: int, cut: int, pieces: int) -> None:
        """Watch some events in pieces, and lose the connection in the middle of the next one."""
        try:
            events = self.store.since(int(self.reflection.version), CHAT)
        except Gone:
            self.reflection.expired()
            return
        lines = [json.dumps(event).encode() + b"\n" for event in events]
        stream, cutter = b"".join(lines[:count]) + b"".join(lines[count : count + 1])[:cut], Lines()
        for place in range(0, len(stream), pieces):
            for line in cutter.feed(stream[place : place + pieces]):
                self.reflection.take(KIND.event(line))

    @precondition(lambda self: self.reflection.version)
    @rule()
    def bookmark(self) -> None:
        """See all events, and then a bookmark."""
        self._catch_up()
        version = str(self.store._clock.now)
        self.reflection.take(KIND.event(_line("BOOKMARK", {"metadata": {"resourceVersion": version}})))

    @precondition(lambda self: self.reflection.version)
    @rule()
    def silence(self) -> None:
        """Hear nothing; after some of that a list is due."""
        self.reflection.watch_failed()

    @invariant()
    def knows_what_the_server_said_last(self) -> None:
        """With nothing left to watch the objects are the server's."""
        if not self.reflection.version:
            return
        try:
            left = self.store.since(int(self.reflection.version), CHAT)
        except Gone:
            return
        if not left:
            self._agree()

    def teardown(self) -> None:
        """Follow to the end: the reflection is the truth."""
        for _ in range(3):
            try:
                self._catch_up()
            except Gone:
                self.reflection.expired()
        self._agree()

    def _catch_up(self) -> None:
        while not self.reflection.version:
            self.read_page(2)
        try:
            events = self.store.since(int(self.reflection.version), CHAT)
        except Gone:
            self.reflection.expired()
            self._catch_up()
            return
        for event in events:
            self.reflection.take(KIND.event(json.dumps(event).encode()))

    def _agree(self) -> None:
        has = {uid: item.metadata.resource_version for uid, item in self.reflection.objects.items()}
        truth = [item["metadata"] for item in self.store.objects.values() if CHAT.matches(item)]
        assert has == {item["uid"]: item["resourceVersion"] for item in truth}


TestFollowing = Following.TestCase
TestFollowing.settings = settings(max_examples=120, stateful_step_count=30, deadline=None)


def _line(kind: str, item: Object) -> bytes:
    return json.dumps({"type": kind, "object": item}).encode()


def _list(*items: Object, version: str = "7") -> bytes:
    return json.dumps({"metadata": {"resourceVersion": version}, "items": list(items)}).encode()


def test_objects_stay_while_a_list_is_read() -> None:
    """Half a list changes nothing; one that is begun again has nothing of the half."""
    reflection: Reflection[Pod] = Reflection()
    store = Store(Clock())
    for name in "abc":
        store.put(pod(name, "10.0.0.1", labels={"app": "chat"}))
    page = store.page(CHAT, 2, "")
    assert reflection.page(KIND.page(json.dumps(page).encode()))
    assert not reflection.objects
    assert not reflection.listed
    reflection.begin_list()
    store.delete("a")
    assert not reflection.page(KIND.page(json.dumps(store.page(CHAT, None, "")).encode()))
    assert sorted(reflection.objects) == ["uid-b", "uid-c"]


@pytest.mark.parametrize(
    ("status", "error"),
    [
        ({"code": 410, "reason": "Expired"}, ExpiredError),
        ({"code": 410, "reason": "Gone"}, ExpiredError),
        ({"reason": "Expired"}, ExpiredError),
        ({"code": 500, "reason": "InternalError"}, RefusedError),
        ({}, RefusedError),
    ],
)
def test_errors_of_a_stream(status: Object, error: type[Exception]) -> None:
    """A version that is gone means a new list, any other error only a new watch."""
    reflection: Reflection[Pod] = Reflection()
    reflection.page(KIND.page(_list()))
    with pytest.raises(error):
        reflection.take(KIND.event(_line("ERROR", {"kind": "Status"} | status)))
    assert reflection.version == "7"


def test_version_that_always_fails_is_given_up() -> None:
    """After three watches that brought nothing a list is made; one that brought something counts anew."""
    reflection: Reflection[Pod] = Reflection()
    reflection.page(KIND.page(_list()))
    reflection.watch_failed()
    reflection.watch_failed()
    reflection.take(KIND.event(_line("BOOKMARK", {"metadata": {"resourceVersion": "8"}})))
    reflection.watch_failed()
    reflection.watch_failed()
    assert reflection.version == "8"
    reflection.watch_failed()
    assert reflection.version == ""
    assert reflection.is_paged


def test_numbers_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a list nor a watch nor a line can grow without end; what was known stays."""
    monkeypatch.setattr(module, "MAX_OBJECTS", 2)
    monkeypatch.setattr(module, "MAX_LINE", 100)
    reflection: Reflection[Pod] = Reflection()
    with pytest.raises(UnusableAnswerError, match="more than 2 objects"):
        reflection.page(KIND.page(_list(pod("a", None), pod("b", None), pod("c", None))))
    reflection.begin_list()
    reflection.page(KIND.page(_list(pod("a", None), pod("b", None))))
    with pytest.raises(UnusableAnswerError, match="more than 2 objects"):
        reflection.take(KIND.event(_line("ADDED", pod("c", None))))
    assert reflection.take(KIND.event(_line("MODIFIED", pod("a", "10.0.0.1"))))
    assert list(reflection.objects) == ["uid-b", "uid-a"]
    with pytest.raises(UnusableAnswerError, match="a line of more than 100 bytes"):
        Lines().feed(b"x" * 101)


def test_late_delete_of_another_pod_of_the_name() -> None:
    """A pod is known by its uid, so that the end of an earlier one of its name is not its own (E04)."""
    reflection: Reflection[Pod] = Reflection()
    reflection.page(KIND.page(_list(pod("a", "10.0.0.1", uid="u9"))))
    assert not reflection.take(KIND.event(_line("DELETED", pod("a", "10.0.0.1", uid="u1"))))
    assert list(reflection.objects) == ["u9"]


def test_list_without_a_version_is_none() -> None:
    """A list that no watch can follow is refused."""
    with pytest.raises(UnusableAnswerError, match="without a version"):
        Reflection[Pod]().page(KIND.page(b'{"metadata": {}, "items": []}'))
