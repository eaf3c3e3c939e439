"""The settings of health: when an endpoint is left alone, how it comes back, how it is probed."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from ext_proc.config.section import Seconds, Section
from ext_proc.core.health_states import HealthPolicy

Share = Annotated[float, Meta(ge=0, le=1)]
UrlPath = Annotated[str, Meta(min_length=1, max_length=256)]


class ProbesConfig(Section, frozen=True, kw_only=True):
    """Active probes: kvpicker asks each engine whether it is well.

    An engine without such a page (404 and the like) is not taken to be ill; that it answers at all is what counts then.

    Attributes:
        enabled: Whether it is done. Without it new endpoints get requests at once, if few at first, and an engine
            that hangs is found out by its requests only.
        interval_s: Seconds between two probes of an engine that is well.
        unwell_interval_s: The same for one that warms up, is ejected or has just failed.
        timeout_s: Seconds until an answer is overdue.
        path: Path to ask. Unset takes the engine's own: `/v2/health/ready` for `triton`, `/api/version` for `ollama`,
            `/health` for all others.
        successes: Good probes in a row that let a new endpoint join, or one return whose failure probes saw.
        failures: Failed probes in a row that eject an endpoint which has answered no request meanwhile.
        generate: Whether a probe also has one token generated, which finds an engine whose server answers while its
            core hangs. It costs every engine one short request per probe.
    """

    enabled: bool = True
    interval_s: Seconds = 5.0
    unwell_interval_s: Seconds = 1.0
    timeout_s: Seconds = 2.0
    path: UrlPath | None = None
    successes: Annotated[int, Meta(ge=1, le=100)] = 2
    failures: Annotated[int, Meta(ge=1, le=100)] = 2
    generate: bool = False


class HealthConfig(Section, frozen=True, kw_only=True):
    """When an endpoint is left alone, and how it comes back.

    What counts are refused and reset connections, streams that are cut or end in an error, timeouts and 5xx; neither
    4xx, which are the client's, nor the 429 and 503 of a busy engine.

    Attributes:
        failures: Failures in a row that eject an endpoint; a refused connection does at once.
        failure_ratio: Share of its last ten or so requests that failed which ejects it as well; half of that makes it
            `degraded`, which only is shown.
        least_requests: Requests without which that share says nothing.
        ejection_s: Seconds of the first ejection; each further one lasts twice as long. Then one request at a time is
            sent for a trial.
        max_ejection_s: Seconds of the longest ejection; failing probes prolong it, up to six times.
        max_ejected: Share of a pool that may be ejected at one time, of several endpoints one in any case. Endpoints
            that are drained, cordoned, unready or asleep do not count, since nothing is left to take away. Endpoints
            that fail beyond that get a small share of the requests, and `kvpicker_health_panic` is 1.
        forgive_s: Seconds of health after which one ejection no longer makes the next one longer.
        slow_start_s: Seconds in which a new or returning endpoint comes to its full share; 0 gives it at once.
            Endpoints that come to an empty pool, as all do when kvpicker starts, get theirs at once.
        slow_factor: Times as long for a token as its peers, from which on an endpoint is `degraded`. Strategies that
            know of time send it less by themselves.
        probes: Active probes.
    """

    failures: Annotated[int, Meta(ge=1, le=1_000)] = 2
    failure_ratio: Annotated[float, Meta(gt=0, le=1)] = 0.2
    least_requests: Annotated[int, Meta(ge=1, le=1_000)] = 10
    ejection_s: Seconds = 2.5
    max_ejection_s: Seconds = 10.0
    max_ejected: Share = 0.5
    forgive_s: Seconds = 60.0
    slow_start_s: Annotated[float, Meta(ge=0, le=3_600)] = 15.0
    slow_factor: Annotated[float, Meta(ge=1.1, le=1_000)] = 3.0
    probes: ProbesConfig = ProbesConfig()

    @property
    def policy(self) -> HealthPolicy:
        """By what endpoints are judged."""
        return HealthPolicy(
            failures=self.failures,
            failure_ratio=self.failure_ratio,
            least_samples=self.least_requests,
            ejection=self.ejection_s,
            max_ejection=self.max_ejection_s,
            max_ejected=self.max_ejected,
            forgiveness=self.forgive_s,
            slow_start=self.slow_start_s,
            good_probes=self.probes.successes,
            failed_probes=self.probes.failures,
            slow=self.slow_factor,
        )
