"""The only place that wires: core, wire, sources and ops become one running service."""

from __future__ import annotations

import asyncio
import random
import signal
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from importlib.metadata import version
from pathlib import Path
from typing import Any, BinaryIO, Self

import aiohttp
import msgspec

from ext_proc import admitting
from ext_proc.assembly import (
    build_core,
    build_model_strategies,
    build_strategies,
    exchange_policy,
    message_encoder,
    scrape_token,
)
from ext_proc.background import follow_up, repeat, run_beside
from ext_proc.collecting import Collecting
from ext_proc.config import Config, located, parse
from ext_proc.config.restart import waiting_for_restart
from ext_proc.continuing import Continuing
from ext_proc.core.exchange import Exchange
from ext_proc.core.exchange_policy import ExchangePolicy
from ext_proc.core.rehearsal import Asked, rehearse
from ext_proc.core.state import State, take
from ext_proc.draining import Draining
from ext_proc.endpoint_news import EndpointNews
from ext_proc.filling import fills
from ext_proc.fitting import Fitting
from ext_proc.listening import Listening
from ext_proc.log_watch import LogWatch
from ext_proc.ops import admin
from ext_proc.ops.admin_endpoints import EndpointPages
from ext_proc.ops.admin_token import read_token
from ext_proc.ops.collector import EndpointStatus, Gauges
from ext_proc.ops.collector import registry as metrics_registry
from ext_proc.ops.decisions import DecisionRing
from ext_proc.ops.events import Event
from ext_proc.ops.explanations import explain_rehearsal
from ext_proc.ops.fan_out import FanOut
from ext_proc.ops.limited_log import LimitedLog
from ext_proc.ops.log_observer import LogObserver
from ext_proc.ops.logs import LineWriter, configure
from ext_proc.ops.metrics import Metrics
from ext_proc.ops.room import Rooms
from ext_proc.probing import Probing
from ext_proc.readiness import Readiness
from ext_proc.scraping import ScrapeNews
from ext_proc.securing import Securing
from ext_proc.sleeping import Sleeping
from ext_proc.sources.eds import EdsWriter
from ext_proc.sources.files import FileWatcher
from ext_proc.sources.keeper import EndpointKeeper
from ext_proc.sources.kv_publishers import check_installed
from ext_proc.sources.models import ModelLearner
from ext_proc.sources.scrape import Scraper
from ext_proc.statuses import endpoint_offer, endpoint_statuses, pace
from ext_proc.stopping import linger
from ext_proc.token_pools import TokenPools
from ext_proc.warming import warm_up
from ext_proc.watching import Watching
from ext_proc.wire.access_log import access_log_method
from ext_proc.wire.ext_proc import ext_proc_method
from ext_proc.wire.server import GrpcServer

HOUSEKEEPING_INTERVAL_S = 1.0
FLUSH_INTERVAL_S = 0.2
STOP_GRACE_S = 1.0
"""Exchanges take milliseconds; what is open longer is the access log, which never ends by itself."""

NAMES_WITHIN_S = 2.0
"""How long the start waits for host names to be looked up."""


class Service:
    """One kvpicker process: `async with Service(...) as service: await service.run()`.

    Args:
        config: what it runs with.
        path: the file the configuration came from, watched for changes; None watches nothing.
        output: where log lines go.
        read: makes a configuration of the text of that file and its name.
    """

    def __init__(
        self, config: Config, path: Path | None, output: BinaryIO, read: Callable[[str, str], Config] = parse
    ) -> None:
        self.grpc_addresses: tuple[str, ...] = ()
        self.admin_address = ""
        self._config = config
        self._path = path
        self._read = read
        self._stopping = asyncio.Event()
        self._stack = AsyncExitStack()
        self._output = LineWriter(output)
        self._metrics = Metrics(lambda: self._core.registry.snapshot.models)
        log, limits = config.log, (config.log.max_per_second, config.log.max_requests_per_second)
        self.log = LimitedLog(configure(log.level, log.format, self._output), *limits, self._metrics.line_held_back)
        self._say = self.log.say
        direct = self._output if log.format == "json" else None
        self._ring = DecisionRing(pace=lambda decision, address: pace(self._core, decision, address))
        self._observer = FanOut(self._metrics, self._ring, LogObserver(self.log, direct))
        self._core = build_core(config, self._observer)
        self._generator = random.Random()  # noqa: S311  breaks ties
        core = self._core
        self._tokens = TokenPools(core.registry, core.resident, self._metrics.token_lookup, core.signals.block_tokens)
        self._news = EndpointNews(core.registry, self._metrics, self._say)
        self._keeper = self._make_keeper(config)
        self._draining = Draining(core, config, self._keeper.write_eds, self._say)
        keys, metrics = self._tokens.keys, self._metrics
        sleeping = Sleeping(config, core, keys.headers, metrics.wake_called, self._say)
        self._probing = Probing(config, core, lambda at: self._scraper.status(at).engine, metrics, keys, sleeping)
        self._watching = Watching(self._keeper, core.registry, core.lifecycle, self._say)
        self._exchange_policy = self._make_policy(config)
        self._scraper = self._make_scraper(config)
        self._listening = Listening(config, core.registry, core.ledger, core.resident, self._metrics, self._say)
        self._log_watch = LogWatch(core.ledger, config.leases.renewal_timeout_s, self._metrics.access_log_entry)
        self._fitting = Fitting(self._metrics, self._log_watch, self._say)
        methods = (
            ext_proc_method(self._open_exchange, message_encoder(config), self._observer),
            access_log_method(self._core.feedback, time.monotonic, self._log_watch.entry),
        )
        self._securing = Securing(config.tls, self._say)
        self._grpc = GrpcServer(methods, self._securing.doors(config), config.transport)
        self._readiness = Readiness(self._grpc, self._watching)

    async def __aenter__(self) -> Self:
        """Start everything; ready once the endpoints are known and the path of a request is warm.

        Raises:
            ConfigError: an address cannot be listened on, Envoy's endpoints file cannot be written, or a tokenizer
                cannot be used.
        """
        async with AsyncExitStack() as stack:
            read_token(self._config.admin)
            pages = admin.serve(self._admin_app(), self._config.admin.listen)
            self.admin_address = await stack.enter_async_context(pages)
            stack.push_async_callback(self._keeper.close)
            await self._grpc.start()
            stack.push_async_callback(self._grpc.stop, 0)
            self.grpc_addresses = self._grpc.addresses
            # Who finds its addresses taken may be a second one by mistake: it must not write the first one's files.
            self._draining.memory.restore()
            self._keeper.configure(self._config)
            await stack.enter_async_context(self._watching.following(self._config))
            await self._keeper.names_known(NAMES_WITHIN_S)
            await self._watching.answered()
            await self._start_tasks(stack)
            warm_up()
            if self._readiness.waits:
                run_beside(stack, self._observer.failed, self._readiness.begin)
            else:
                await self._readiness.begin()
            self._stack = stack.pop_all()
        told = {"admin": self.admin_address, "orders_file": self._draining.memory.path, **self._grpc.description}
        self._say(Event.SERVER_STARTED, grpc=self.grpc_addresses, **told)
        self._output.flush()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Stop: not ready at once, then running streams end, then everything closes."""
        await self._readiness.end()
        self._core.admission.close(time.monotonic())
        await self._grpc.stop(STOP_GRACE_S)
        await self._stack.aclose()
        self._say(Event.SERVER_STOPPED)
        self.log.close()
        self._output.flush()

    def stop_on_signals(self) -> None:
        """Let signals end `run` in good order; before the start, so that no moment is without a handler.

        SIGHUP too, which would cut everything off; not under nohup.
        """
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
                loop.add_signal_handler(number, self._stopping.set)

    async def run(self) -> None:
        """Serve until told to stop; then go on serving while the data plane notices and answers pass, and return.

        A second signal cuts that short.
        """
        await self._stopping.wait()
        await self._readiness.end()
        self._stopping.clear()
        ledger, config = self._core.ledger, self._config
        await linger(self._stopping, config.drain_s, ledger.count_held, config.passing_s)

    def _open_exchange(self) -> Exchange:
        core = self._core
        return Exchange(
            core.picker, core.feedback, self._observer, self._exchange_policy, time.monotonic, self._generator
        )

    def _make_policy(self, config: Config) -> ExchangePolicy:
        core = self._core
        makers = core.picker.responses, core.registry, lambda: self._log_watch.is_silent
        tokens = Continuing(self._tokens.source, *makers, config.envoy.message_timeout_s)
        return exchange_policy(config, tokens, core.admission, self._watching.objectives)

    def _make_keeper(self, config: Config) -> EndpointKeeper:
        core, envoy, news = self._core, config.envoy, self._news
        return EndpointKeeper(
            registry=core.registry,
            follow=core.follow,
            eds=EdsWriter(envoy.endpoints_file, envoy.cluster) if envoy.endpoints_file else None,
            on_change=news.changed,
            on_source=news.source_read,
            on_name=news.name_looked_up,
            offer=lambda endpoint: endpoint_offer(core, endpoint, time.monotonic()),
        )

    def _make_scraper(self, config: Config) -> Scraper:
        core, heard = self._core, (self._probing.scraped, self._probing.sleeping.scraped)
        return Scraper(
            config,
            scrape_token(config),
            registry=core.registry,
            signals=core.signals,
            is_busy=lambda slot: core.ledger.load(slot).in_flight > 0,
            listener=ScrapeNews(self._metrics, core.feedback, self._keeper.apply, self._say, *heard),
        )

    async def _start_tasks(self, stack: AsyncExitStack) -> None:
        session = await stack.enter_async_context(aiohttp.ClientSession())
        stack.callback(self._tokens.close)
        self._tokens.configure(self._config, session)
        self._exchange_policy = self._make_policy(self._config)
        keys, registry = self._tokens.keys, self._core.registry
        learner = ModelLearner(session, registry, self._keeper.apply, self._news.model_unknown, keys=keys)
        failed = self._observer.failed
        # Overdue leases are given up, Envoy is told of who fell ill or asleep, and memory is freed.
        chores = (self._tick, self._expire, self._draining.advance, self._keeper.write_eds, Collecting().tick)
        run_beside(
            stack,
            failed,
            learner.run,
            self._scraper.run,
            self._probing.run,
            self._probing.sleeping.run,
            self._listening.run,
            self._securing.run,
            lambda: repeat(HOUSEKEEPING_INTERVAL_S, failed, (*chores, self.log.report)),
            lambda: admitting.look(self._core.admission, time.monotonic, failed, self._probing.sleeping.look),
            lambda: follow_up(self._output.waits, FLUSH_INTERVAL_S, failed, "log", self._output.flush),
        )
        if self._path is not None:
            watcher = FileWatcher(self._path, self._read, self._reload, self._reload_failed)
            watcher.check()
            run_beside(stack, failed, watcher.run)

    def _tick(self) -> None:
        self._core.capacity.is_suspended = self._log_watch.is_silent
        self._probing.tick(time.monotonic())
        self._fitting.look()

    def _expire(self) -> None:
        self._core.feedback.expire(time.monotonic())

    def _reload(self, config: Config) -> None:
        """Put a changed file into effect, as a whole or, if it cannot be used, not at all."""
        if config == self._config:
            self._metrics.config_reloaded(applied=True)
            return
        with located(self._path):
            strategies, model_strategies = build_strategies(config), build_model_strategies(config)
            token = scrape_token(config)
            check_installed(config)
            self._watching.check(config)
        self._tokens.configure(config)
        self._core.picker.strategies = strategies
        self._core.picker.model_strategies = model_strategies
        self._exchange_policy = self._make_policy(config)
        admitting.configure(config, self._core.capacity, self._core.admission)
        self._keeper.configure(config)
        self._watching.configure(config)
        self._scraper.configure(config, token)
        self._probing.configure(config)
        self._listening.configure(config)
        waiting = waiting_for_restart(self._config, config)
        self._config = config
        self._metrics.config_reloaded(applied=True)
        self._say(Event.CONFIG_APPLIED, needs_restart=waiting)

    def _reload_failed(self, error: Exception) -> None:
        self._metrics.config_reloaded(applied=False)
        self._say(Event.CONFIG_REJECTED, error=str(error))

    def _admin_app(self) -> Any:
        gauges = Gauges(
            endpoints=self._statuses,
            leases=lambda: len(self._core.ledger),
            degraded=self._degraded,
            panics=self._core.health.panics,
            reuse=self._core.picker.reuse.ratio,
            version=version("kvpicker"),
            tasks=lambda: len(asyncio.all_tasks()),
            fills=lambda: fills(self._core, self._ring, self._metrics, self._tokens.source),
        )
        rooms = Rooms(self._core.capacity.caps, lambda: self._core.admission.fills)
        return admin.Admin(
            registry=metrics_registry(self._metrics, gauges),
            decisions=self._ring,
            endpoints=self._statuses,
            config=lambda: msgspec.to_builtins(self._config),
            not_ready=lambda: self._readiness.obstacle,
            explain=self._explain,
            state=self._state,
            local=self._config.admin.pages == "loopback",
            pages=EndpointPages(self._draining, self._config.admin, self._core.picker.instance, rooms),
            rooms=rooms,
        ).app()

    async def _explain(self, asked: Asked) -> dict[str, Any]:
        generator = random.Random(0)  # noqa: S311  breaks ties, and is not the one that serves
        limit = self._config.prompts.inspect_bytes
        tokens = await self._tokens.rehearse(asked, limit)
        now = time.monotonic()
        rehearsal = rehearse(self._core.picker, asked, now, generator, inspect_bytes=limit, tokens=tokens)
        return explain_rehearsal(rehearsal)

    def _state(self, blocks: int) -> State:
        config = msgspec.to_builtins(self._config)
        return take(self._core, config, version("kvpicker"), time.monotonic(), blocks)

    def _degraded(self) -> dict[str, bool]:
        return {
            "access_log": self._log_watch.is_silent,
            "certificates": self._securing.is_degraded,
            "config": not self._metrics.reload_success,
            **self._fitting.degraded,
            "dns": self._keeper.names_degraded,
            "kubernetes": self._watching.is_degraded,
            "kv_events": self._listening.is_degraded,
            "log": self._output.failing,
            "metrics": self._scraper.is_degraded(time.monotonic()),
            "orders": self._draining.memory.is_degraded,
            "probes": self._probing.is_degraded(time.monotonic()),
        }

    def _statuses(self) -> list[EndpointStatus]:
        statuses = endpoint_statuses(self._core, time.monotonic(), self._scraper.status)
        return [self._draining.completed(self._listening.completed(each)) for each in statuses]
