"""What the picker that can be broken does to its answers."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Sequence

from envoy_data_plane.envoy.config.core import v3 as core
from envoy_data_plane.envoy.service.ext_proc import v3 as ext_proc

from ext_proc.conformance.messages import DESTINATION, DROPPED
from tests.conformance import replies

Has = Callable[[str], bool]


@dataclasses.dataclass
class Draft:
    """An answer with a pick that is to be broken."""

    answer: ext_proc.ProcessingResponse
    kind: str
    client: Sequence[tuple[str, bytes]]
    before: list[ext_proc.ProcessingResponse] = dataclasses.field(default_factory=list)

    @property
    def common(self) -> ext_proc.CommonResponse:
        """What it says about the message."""
        common: ext_proc.CommonResponse = getattr(self.answer, self.kind).response
        return common

    @property
    def headers(self) -> list[core.HeaderValueOption]:
        """The headers that it sets, the pick first."""
        assert self.common.header_mutation is not None
        return self.common.header_mutation.set_headers

    @property
    def header(self) -> core.HeaderValue:
        """The header with the pick."""
        assert self.headers[0].header is not None
        return self.headers[0].header


def _names_no_metadata(draft: Draft) -> None:
    draft.answer.dynamic_metadata = None


def _names_no_header(draft: Draft) -> None:
    draft.common.header_mutation = None


def _names_two_endpoints(draft: Draft) -> None:
    first, second = b"10.0.0.21:8000", b"10.0.0.22:8000"
    draft.header.raw_value = second if draft.header.raw_value == first else first


def _appends(draft: Draft) -> None:
    draft.headers[0].append = True


def _sets_it_twice(draft: Draft) -> None:
    draft.headers.append(replies.setter(DESTINATION, draft.header.raw_value))


def _sets_content_length(draft: Draft) -> None:
    draft.headers.append(replies.setter("content-length", b"5"))


def _writes_headers_again(draft: Draft) -> None:
    draft.headers.extend(replies.setter(*pair) for pair in draft.client if pair[0] in ("x-tag", "cookie"))


def _breaks_lines(draft: Draft) -> None:
    draft.headers.append(replies.setter("x-why", b"a\r\nb"))


def _fills_both_values(draft: Draft) -> None:
    draft.header.value = draft.header.raw_value.decode()


def _replaces_the_message(draft: Draft) -> None:
    draft.common.status = ext_proc.CommonResponseResponseStatus.CONTINUE_AND_REPLACE


def _overrides_late(draft: Draft) -> None:
    if draft.kind == "request_body":
        draft.answer.mode_override = replies.override(2)


def _asks_for_buffered_answers(draft: Draft) -> None:
    if draft.kind == "request_headers":
        draft.answer.mode_override = replies.override(0, 2)


def _asks_twice_for_patience(draft: Draft) -> None:
    draft.before.extend((replies.patience(1), replies.patience(2)))


def _asks_for_no_time(draft: Draft) -> None:
    draft.before.append(replies.patience(0.0001))


_CHANGES: dict[str, Callable[[Draft], None]] = {
    "names-no-metadata": _names_no_metadata,
    "names-no-header": _names_no_header,
    "names-two-endpoints": _names_two_endpoints,
    "appends": _appends,
    "sets-it-twice": _sets_it_twice,
    "sets-content-length": _sets_content_length,
    "writes-headers-again": _writes_headers_again,
    "breaks-lines": _breaks_lines,
    "fills-both-values": _fills_both_values,
    "replaces-the-message": _replaces_the_message,
    "overrides-late": _overrides_late,
    "asks-for-buffered-answers": _asks_for_buffered_answers,
    "asks-twice-for-patience": _asks_twice_for_patience,
    "asks-for-no-time": _asks_for_no_time,
}


def decorated(broken: str, draft: Draft) -> list[ext_proc.ProcessingResponse]:
    """Return the answers that carry a pick, with what is broken in them."""
    change = _CHANGES.get(broken)
    if change is not None:
        change(draft)
    return [*draft.before, draft.answer]


def refusal(has: Has, status: int, body: bytes) -> list[ext_proc.ProcessingResponse]:
    """Return the answer to a client for which there is no endpoint."""
    said = b"no endpoint" if has("refuses-in-plain-text") else None
    if has("quotes-the-prompt"):
        said = json.dumps({"error": {"message": f"no endpoint for {body.decode('utf-8', 'replace')}"}}).encode()
    answer = replies.refused(status, said)
    immediate = answer.immediate_response
    assert immediate is not None
    assert immediate.headers is not None
    headers = immediate.headers.set_headers
    if has("refuses-without-a-reason"):
        immediate.headers.set_headers = [one for one in headers if one.header and one.header.key != DROPPED]
    if has("frames-refusals"):
        headers.append(replies.setter("content-length", b"3"))
    if has("goes-on-after-refusal"):
        return [answer, replies.answer("request_body")]
    return [answer]
