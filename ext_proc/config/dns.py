"""The settings of endpoints that are listed by host name."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from msgspec import Meta

from ext_proc.config.section import Seconds, Section

Family: TypeAlias = Literal["auto", "ipv4", "ipv6", "both"]
Answers: TypeAlias = Literal["all", "one"]


class DnsConfig(Section, frozen=True, kw_only=True):
    """How host names in lists of endpoints become addresses, since Envoy is told `ip:port`.

    Attributes:
        interval_s: Seconds between two look-ups of a name, a fifth more or less.
        answers: `all` makes an endpoint of each address of a name; `one` keeps to one as long as the name has it.
        family: `ipv4`, `ipv6` or `both`; `auto` takes IPv4 where a name has it and else IPv6, since an engine with
            both would be two endpoints.
        forget_s: Seconds until the addresses of a name are given up that does not exist any more. While nobody
            answers, they are kept without end.
    """

    interval_s: Seconds = 30.0
    answers: Answers = "all"
    family: Family = "auto"
    forget_s: Annotated[float, Meta(ge=0, le=86_400)] = 300.0
