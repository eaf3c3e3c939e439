"""The admin server, over real connections."""

import gzip
from collections.abc import AsyncIterator, Callable

import aiohttp
import msgspec
import pytest
from aiohttp import web

from ext_proc.config import parse
from ext_proc.core.errors import ConfigError
from ext_proc.core.kv_state import Disbelief, PublisherState
from ext_proc.core.model import Decision, Endpoint, Outcome
from ext_proc.core.rehearsal import Asked
from ext_proc.core.signals import EngineSignals, Interval, Times
from ext_proc.ops import admin
from ext_proc.ops.admin import Admin, serve
from ext_proc.ops.collector import EndpointStatus, Gauges, registry
from ext_proc.ops.decisions import DecisionRing
from ext_proc.ops.metrics import Metrics

PAGES = [
    *("/metrics", "/healthz", "/readyz"),
    *("/debug/endpoints", "/debug/decisions", "/debug/config", "/debug/state"),
]


class Running:
    """A running admin server and what it shows."""

    def __init__(self, decision: Decision, outcome: Outcome, *, local: bool = False) -> None:
        self.not_ready: str | None = None
        self.asked: list[Asked] = []
        self.impossible = ""
        ring = DecisionRing()
        ring.decided(decision, 0.001)
        ring.finished(decision, outcome)
        self.statuses = [EndpointStatus(endpoint=endpoint, queue=0.5) for endpoint in decision.endpoints]
        gauges = Gauges(
            endpoints=lambda: self.statuses,
            leases=lambda: 0,
            degraded=dict,
            panics=dict,
            reuse=lambda: None,
            version="0.1.0",
        )
        config = parse("pools: {chat: {endpoints: ['10.0.0.11:8000']}}")
        self.app = Admin(
            registry=registry(Metrics(frozenset), gauges),
            decisions=ring,
            endpoints=lambda: self.statuses,
            config=lambda: config,
            not_ready=lambda: self.not_ready,
            explain=self._explain,
            state=lambda blocks: {"blocks": blocks},
            local=local,
        ).app()

    async def _explain(self, asked: Asked) -> dict[str, str]:
        self.asked.append(asked)
        if self.impossible:
            raise ConfigError(self.impossible)
        return {"verdict": "passed"}


@pytest.fixture
def running(decision: Decision, outcome_of: Callable[..., Outcome]) -> Running:
    """One decision has been made and finished."""
    return Running(decision, outcome_of())


@pytest.fixture
async def client(running: Running) -> AsyncIterator[aiohttp.ClientSession]:
    """A client of the server."""
    async with (
        serve(running.app, "127.0.0.1:0") as address,
        aiohttp.ClientSession(f"http://{address}") as session,
    ):
        yield session


@pytest.mark.parametrize("path", PAGES)
async def test_every_page_answers(client: aiohttp.ClientSession, path: str) -> None:
    """Each page is there, and the start page names it."""
    async with client.get(path) as page, client.get("/") as index:
        assert page.status == 200
        assert path in (await index.text()).splitlines()


@pytest.mark.parametrize("path", PAGES)
@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE"])
async def test_nothing_can_be_changed(client: aiohttp.ClientSession, path: str, method: str) -> None:
    """The admin server only shows."""
    async with client.request(method, path) as response:
        assert response.status == 405


@pytest.mark.parametrize("path", PAGES)
async def test_no_page_shows_a_prompt(client: aiohttp.ClientSession, path: str) -> None:
    """Prompts, salts and sessions are on no page."""
    async with client.get(path) as response:
        assert "SECRET" not in await response.text()


async def test_readiness_gives_its_reason(running: Running, client: aiohttp.ClientSession) -> None:
    """While kvpicker cannot take requests, readiness is 503 and says why; liveness stays 200."""
    running.not_ready = "no endpoint is ready"
    async with client.get("/readyz") as ready, client.get("/healthz") as alive:
        assert (ready.status, await ready.text()) == (503, "not ready: no endpoint is ready\n")
        assert alive.status == 200


@pytest.mark.parametrize(
    ("accept", "content_type"),
    [("text/plain", "text/plain"), ("application/openmetrics-text; version=1.0.0", "application/openmetrics-text")],
    ids=["text", "openmetrics"],
)
async def test_metrics_come_in_the_format_asked_for(
    client: aiohttp.ClientSession, accept: str, content_type: str
) -> None:
    """Prometheus and OpenMetrics scrapers are both served."""
    async with client.get("/metrics", headers={"Accept": accept}) as response:
        assert response.content_type == content_type
        assert "kvpicker_build_info" in await response.text()


async def test_endpoints_are_shown_with_their_load(client: aiohttp.ClientSession) -> None:
    """The page lists each endpoint with its models, labels, state and queue."""
    async with client.get("/debug/endpoints") as response:
        first, second = (await response.json())["endpoints"]
    assert (first["address"], first["models"], first["queue_ms"]) == ("10.0.0.11:8000", ["acme/chat-8b"], 500.0)
    assert second["labels"] == {"gpu": "h100"}


async def test_endpoints_are_shown_with_what_their_engines_say(running: Running, client: aiohttp.ClientSession) -> None:
    """Engine, age and signals are there, means of the latest interval too, and what is not known is null."""
    signals = EngineSignals(at=1.0, waiting=2.0, running=4.0, kv_tokens=5000)
    interval = Interval(seconds=1.0, ttft=Times(3.0, 2.0), itl=Times(0.0, 0.0))
    running.statuses[0] = msgspec.structs.replace(
        running.statuses[0], engine="vllm", signals=signals, signals_age=0.25, interval=interval
    )
    running.statuses[1] = msgspec.structs.replace(running.statuses[1], metrics_problem="timeout")
    async with client.get("/debug/endpoints") as response:
        first, second = (each["metrics"] for each in (await response.json())["endpoints"])
    assert (first["engine"], first["problem"], first["age_s"]) == ("vllm", None, 0.25)
    assert (first["waiting"], first["running"], first["kv_usage"], first["kv_tokens"]) == (2.0, 4.0, None, 5000)
    assert (first["ttft_ms"], first["itl_ms"], first["queue_ms"]) == (1500.0, None, None)
    assert second == dict.fromkeys(first) | {"problem": "timeout"}


async def test_endpoints_are_shown_with_how_their_kv_events_are_heard(
    running: Running, client: aiohttp.ClientSession
) -> None:
    """Each publisher with why it is not believed, if it is not; none where nobody listens."""
    state = PublisherState(
        address="tcp://10.0.0.11:5557", connected=True, disbelief=Disbelief.SILENT, complete=False, blocks=12,
        block_tokens=16, messages=3, age_s=1.23456, lag_s=None, gaps=2, lost=1, restarts=0,
    )  # fmt: skip
    running.statuses[0] = msgspec.structs.replace(running.statuses[0], publishers=(state,))
    async with client.get("/debug/endpoints") as response:
        first, second = (each["kv_events"] for each in (await response.json())["endpoints"])
    assert first == [
        {
            "address": "tcp://10.0.0.11:5557", "connected": True, "disbelief": "silent", "complete": False,
            "blocks": 12, "block_tokens": 16, "messages": 3, "age_s": 1.235, "lag_s": None, "gaps": 2, "lost": 1,
            "restarts": 0, "believed": False,
        }
    ]  # fmt: skip
    assert second == []


async def test_a_decision_is_found_by_request_id(client: aiohttp.ClientSession) -> None:
    """One request can be explained; an unknown id is 404."""
    async with client.get("/debug/decisions?request_id=r-1") as response:
        (told,) = (await response.json())["decisions"]
    assert told["decision_id"] == "d-1"
    async with client.get("/debug/decisions?request_id=r-2") as response:
        assert response.status == 404


@pytest.mark.parametrize("limit", ["0", "257", "-1", "x", "٣", "9" * 5_000])
async def test_a_bad_limit_is_explained(client: aiohttp.ClientSession, limit: str) -> None:
    """A limit that is no number from 1 to 256 is the client's error."""
    async with client.get("/debug/decisions", params={"limit": limit}) as response:
        assert response.status == 400
        assert "from 1 to 256" in (await response.json())["error"]


@pytest.mark.parametrize(
    ("query", "known"),
    [
        ("/debug/decisions?requestid=r-1", "`requestid`; known are limit, request_id"),
        ("/debug/state?block=1", "`block`; known are blocks"),
        ("/debug/endpoints?pool=chat", "`pool`; this page knows none"),
    ],
)
async def test_an_unknown_query_parameter_is_refused(client: aiohttp.ClientSession, query: str, known: str) -> None:
    """A misspelt name is not taken for none."""
    async with client.get(query) as response:
        assert response.status == 400
        assert (await response.json())["error"] == f"unknown query parameter {known}"


async def test_the_configuration_is_shown_with_its_defaults(client: aiohttp.ClientSession) -> None:
    """What is in force can be read, defaults included."""
    async with client.get("/debug/config") as response:
        config = await response.json()
    assert config["pools"]["chat"]["strategy"]["name"] == "least-wait"


async def test_a_request_to_explain_comes_as_it_was_sent(running: Running, client: aiohttp.ClientSession) -> None:
    """Path, method, headers and the bytes of the body, compressed ones too, reach the explanation untouched."""
    body = gzip.compress(b'{"model": "m"}')
    headers = {"Content-Encoding": "gzip", "X-Session-Id": "s"}
    query = {"path": "/v1/messages?beta=true", "method": "PUT"}
    async with client.post("/debug/explain", params=query, data=body, headers=headers) as response:
        assert await response.json() == {"verdict": "passed"}
    (asked,) = running.asked
    assert (asked.path, asked.method, asked.body) == ("/v1/messages?beta=true", "PUT", body)
    assert (asked.headers["content-encoding"], asked.headers["x-session-id"]) == ("gzip", "s")


async def test_a_dry_run_that_is_not_possible_says_why(running: Running, client: aiohttp.ClientSession) -> None:
    """An installed strategy may stand in the way; the page tells what to mend."""
    running.impossible = "a strategy cannot be copied"
    async with client.post("/debug/explain", data=b"{}") as response:
        assert (response.status, await response.json()) == (501, {"error": "a strategy cannot be copied"})


async def test_explaining_needs_a_post(client: aiohttp.ClientSession) -> None:
    """The page is listed, but there is nothing to get."""
    async with client.get("/debug/explain") as response, client.get("/") as index:
        assert response.status == 405
        assert "/debug/explain" in (await index.text()).splitlines()


async def test_a_body_that_is_too_long_is_told(running: Running) -> None:
    """Beyond the bound the answer is an error that names it."""
    running.app._client_max_size = 10
    async with (
        serve(running.app, "127.0.0.1:0") as address,
        aiohttp.ClientSession(f"http://{address}") as session,
        session.post("/debug/explain", data=b"x" * 11) as response,
    ):
        assert (response.status, "longer than" in (await response.json())["error"]) == (413, True)


@pytest.mark.parametrize(("query", "blocks"), [("", 20_000), ("?blocks=0", 0), ("?blocks=7", 7)])
async def test_the_state_holds_as_many_blocks_as_wanted(client: aiohttp.ClientSession, query: str, blocks: int) -> None:
    """The number of blocks is bounded unless one asks for more."""
    async with client.get(f"/debug/state{query}") as response:
        assert await response.json() == {"blocks": blocks}


@pytest.mark.parametrize("blocks", ["-1", "x", "10000001", "9" * 5000])
async def test_a_bad_number_of_blocks_is_explained(client: aiohttp.ClientSession, blocks: str) -> None:
    """What is no number of blocks is the client's error."""
    async with client.get("/debug/state", params={"blocks": blocks}) as response:
        assert (response.status, "from 0 to" in (await response.json())["error"]) == (400, True)


async def test_an_address_in_use_is_a_clear_error(running: Running) -> None:
    """A busy port is told as a mistake in the configuration, with the address."""
    async with serve(running.app, "127.0.0.1:0") as address:
        with pytest.raises(ConfigError, match=rf"admin.listen: cannot listen on {address}: address already in use$"):
            async with serve(web.Application(), address):
                pass


@pytest.mark.parametrize("page", ["/metrics", "/debug/endpoints"])
async def test_hundreds_of_endpoints_fit_on_a_page(running: Running, client: aiohttp.ClientSession, page: str) -> None:
    """A large fleet is shown whole."""
    running.statuses[:] = [
        EndpointStatus(endpoint=Endpoint(address=f"10.0.{n // 250}.{n % 250 + 1}:8000", pool="p", slot=n))
        for n in range(500)
    ]
    async with client.get(page) as response:
        assert (await response.text()).count("10.0.1.250:8000") >= 1


async def test_what_was_learnt_of_an_endpoint_is_shown(running: Running, client: aiohttp.ClientSession) -> None:
    """Its prefill rate with its source and what is believed to fit; before anything is learnt the rate is null."""
    learnt = {"prefill_rate": 8123.456, "rate_source": "scrape", "index_tokens": 42}
    running.statuses[0] = msgspec.structs.replace(running.statuses[0], **learnt)
    async with client.get("/debug/endpoints") as response:
        first, second, *_ = (await response.json())["endpoints"]
    assert (first["prefill_rate"], first["rate_source"], first["index_tokens"]) == (8123.5, "scrape", 42)
    assert (second["prefill_rate"], second["rate_source"]) == (None, None)


async def test_pages_may_be_for_this_host_only(
    decision: Decision, outcome_of: Callable[..., Outcome], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Strangers see metrics and health then, a mesh's sidecar is a stranger, and callers on the host see all (H15)."""
    app = Running(decision, outcome_of(), local=True).app
    async with (
        serve(app, "127.0.0.1:0") as address,
        aiohttp.ClientSession(f"http://{address}") as client,
    ):
        for here in (frozenset({"127.0.0.1"}), frozenset({"127.0.0.9"})):
            monkeypatch.setattr(admin, "LOCAL", here)
            statuses = {}
            for path in PAGES:
                async with client.get(path) as answer:
                    statuses[path] = answer.status
            shown = {path for path, status in statuses.items() if status == 200}
            assert shown == (set(PAGES) if "127.0.0.1" in here else admin.OPEN)
            assert set(statuses.values()) <= {200, 403}
