"""The command `kvpicker up`: a whole gateway on one machine, a demonstration of it, and a live table."""

from __future__ import annotations

import argparse
import asyncio
import os
import secrets
import signal
import sys
from typing import Final

import aiohttp
import msgspec

from ext_proc.core.errors import ConfigError, KvpickerError
from ext_proc.local import latency, live, report
from ext_proc.local.demo import REQUEST_TIMEOUT, Demonstration, Sent, cached_ratio, explain
from ext_proc.local.engines import PRESET
from ext_proc.local.options import StackOptions
from ext_proc.local.replay import round_robin
from ext_proc.local.result import Result, unknown, versions
from ext_proc.local.scenario import SMALL, Scenario, Sizes
from ext_proc.local.stack import Stack
from ext_proc.local.steps import Steps, console
from ext_proc.plugins import load_strategy
from ext_proc.sim.options import EngineOptions

FAULT: Final = 1
USAGE_ERROR: Final = 2
SIGNAL_BASE: Final = 128
STOPPING: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def run(arguments: argparse.Namespace) -> int:
    """Run until told to stop, or to the end of the demonstration; returns the exit status."""
    return asyncio.run(_Up(arguments).run())


class _Up:
    """One run of the command."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self._arguments = arguments
        self._steps = Steps(console(sys.stderr if arguments.json else sys.stdout))
        self._stopped_by: signal.Signals | None = None
        self._up = False

    async def run(self) -> int:
        task = asyncio.create_task(self._run())
        loop = asyncio.get_running_loop()
        for number in STOPPING:
            # Under nohup the end of the terminal is no reason to stop.
            if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
                loop.add_signal_handler(number, self._stop, number, task)
        try:
            return await task
        except asyncio.CancelledError:
            if self._stopped_by is None:
                raise
            return (
                0 if self._up else self._failed(f"stopped by {self._stopped_by.name}", SIGNAL_BASE + self._stopped_by)
            )
        except (KvpickerError, aiohttp.ClientError, OSError) as error:
            return self._failed(str(error), USAGE_ERROR if isinstance(error, ConfigError) else FAULT)

    def _failed(self, reason: str, status: int) -> int:
        if self._arguments.json:
            _print_json(unknown(reason))
        sys.stderr.write(f"kvpicker: {reason}\n")
        return status

    def _stop(self, number: signal.Signals, task: asyncio.Task[int]) -> None:
        """The first signal stops; later ones must not disturb the cleaning up."""
        if self._stopped_by is None:
            self._stopped_by = number
            task.cancel()

    async def _run(self) -> int:
        arguments = self._arguments
        if arguments.json and not arguments.smoke:
            raise ConfigError("--json goes with --smoke", path="--json")
        load_strategy(arguments.strategy, {}, "--strategy")
        options = StackOptions(
            port=arguments.port, engines=tuple(arguments.engine), strategy=arguments.strategy, envoy=arguments.envoy
        )
        async with Stack(options, self._steps) as stack:
            result = await stack.guard(self._demonstrate(stack))
            if not arguments.smoke:
                self._up = True
                await stack.guard(self._stay(stack))
        return self._conclude(result)

    def _conclude(self, result: Result) -> int:
        if self._arguments.json:
            _print_json(result)
        if result.error:
            sys.stderr.write(f"kvpicker: {result.error}\n")
        return FAULT if result.error else 0

    async def _demonstrate(self, stack: Stack) -> Result:
        steps, shown = self._steps, self._steps.console
        report.introduce(shown, stack)
        timeout = aiohttp.ClientTimeout(total=REQUEST_TIMEOUT)
        async with aiohttp.ClientSession(timeout=timeout) as session:
            # First, so that its many requests do not push the demonstration out of /debug/decisions.
            with steps.step("measuring the added latency"):
                added = await latency.added_ms_p50(stack.url, stack.direct_url)
                await stack.remove_probe()
            with steps.step("sending the demonstration"):
                sent = await Demonstration(session, stack.url, _scenario(stack)).run()
                await explain(session, stack.admin_url, sent)
        result = _result(stack, sent, added)
        report.show(shown, sent, stack.engines)
        report.conclude(shown, result)
        return result

    async def _stay(self, stack: Stack) -> None:
        if self._steps.console.is_terminal:
            await live.watch(self._steps.console, stack.admin_url, stack.engines)
        else:
            self._steps.say("running until SIGINT or SIGTERM")
            await asyncio.Event().wait()


def _scenario(stack: Stack) -> Scenario:
    """Engines of the user's keep their caches between runs, so that each run needs texts of its own there."""
    if stack.simulated:
        return Scenario(stack.model, Sizes(), seed=0)
    return Scenario(stack.model, SMALL, seed=secrets.randbits(64))


def _result(stack: Stack, sent: list[Sent], added: float) -> Result:
    failed = [one for one in sent if one.reply.error]
    requests = [(one.body, one.reply.text) for one in sent]
    replayed = round_robin(requests, EngineOptions(preset=PRESET), len(stack.engines)) if stack.simulated else None
    ratio = cached_ratio([one.reply for one in sent])
    first = f"; the first: {failed[0].reply.error}" if failed else ""
    return Result(
        requests=len(sent),
        failures=len(failed),
        cached_ratio=None if ratio is None else round(ratio, 4),
        round_robin_cached_ratio=None if replayed is None else round(replayed, 4),
        added_ms_p50=round(added, 3),
        versions=versions(stack.binary),
        error=f"{len(failed)} of {len(sent)} requests failed{first}" if failed else "",
    )


def _print_json(result: Result) -> None:
    sys.stdout.write(msgspec.json.encode(result).decode() + os.linesep)
    sys.stdout.flush()
