"""The faults: one entry each, with what makes it happen and what makes it right again."""

from __future__ import annotations

import functools
import resource
import signal
from collections.abc import Iterable

import msgspec

from tests.fault import steps
from tests.fault.kv_stream import KvStreams
from tests.fault.stand import Plan
from tests.fault.trial import Fault

_HALF_OPEN = steps.HalfOpen()
_IDLERS = steps.Idlers()
_TWO = Plan(kvpickers=2)
_stop, _go = signal.SIGSTOP, signal.SIGCONT

ENGINE_FAULTS = (
    Fault(name="engine killed", begin=steps.kill_engine, end=steps.start_engine, culprit=True, visible=True, short=2.5),
    Fault(
        name="engine frozen",
        begin=steps.to_engine(_stop),
        end=steps.to_engine(_go),
        culprit=True,
        visible=True,
        lasts=12.0,
    ),
    Fault(name="engine half-open", begin=_HALF_OPEN.begin, end=_HALF_OPEN.end, culprit=True, visible=True, lasts=12.0),
    Fault(
        name="engine takes requests and is silent",
        begin=steps.fault(kind="stall"),
        end=steps.heal,
        culprit=True,
        visible=True,
        lasts=8.0,
    ),
    Fault(name="engine refuses", begin=steps.fault(kind="refuse", **{"for": 4.0}), culprit=True, visible=True),
    Fault(
        name="engine resets before headers",
        begin=steps.fault(kind="reset_before_headers"),
        end=steps.heal,
        culprit=True,
        visible=True,
    ),
    Fault(
        name="engine resets in mid-stream",
        begin=steps.fault(kind="reset_mid_stream", after=2),
        end=steps.heal,
        culprit=True,
        visible=True,
        short=2.5,
    ),
    Fault(
        name="engine answers 500 to 30 %",
        begin=steps.fault(kind="error_500", probability=0.3),
        end=steps.heal,
        culprit=True,
        visible=True,
        lasts=6.0,
    ),
    Fault(
        name="engine is slow",
        begin=steps.fault(kind="slow_start", seconds=1.5),
        end=steps.heal,
        culprit=True,
        lasts=6.0,
    ),
    Fault(
        name="engine promises too many bytes",
        begin=steps.fault(kind="wrong_length", by=10),
        end=steps.heal,
        culprit=True,
        visible=True,
    ),
    Fault(
        name="engine promises too few bytes",
        begin=steps.fault(kind="wrong_length", by=-10),
        end=steps.heal,
        culprit=True,
        visible=True,
    ),
    Fault(name="engine added", begin=steps.add_engine, spares=True, lasts=3.0),
    Fault(name="engine removed and listed again", begin=steps.remove_engine, end=steps.list_again, spares=True),
    Fault(
        name="engine with 50 streams drained",
        begin=steps.drain_engine,
        end=steps.undrain_engine,
        plan=Plan(engines=2),
        rate=5.0,
        streams=110,
        spares=True,
        lasts=5.0,
    ),
    Fault(
        name="engine drained, kvpicker killed meanwhile",
        begin=steps.drain_over_a_kill,
        end=steps.undrain_engine,
        plan=Plan(engines=2),
        rate=5.0,
        streams=110,
        tokens=(600, 800),
        spares=True,
        lasts=5.0,
    ),
    Fault(name="engine restarted with an empty cache", begin=steps.restart_engine, culprit=True),
)

KVPICKER_FAULTS = (
    Fault(
        name="kvpicker killed", begin=steps.kill_kvpicker, end=steps.start_kvpicker, spares=True, lasts=3.0, short=1.5
    ),
    Fault(name="kvpicker stopped in order", begin=steps.end_kvpicker, end=steps.start_kvpicker, spares=True, lasts=4.0),
    Fault(name="kvpicker frozen", begin=steps.to_kvpicker(_stop), end=steps.to_kvpicker(_go), spares=True, lasts=5.0),
    Fault(name="kvpicker's event loop blocked", begin=steps.block_kvpicker, spares=True, lasts=4.0),
    Fault(
        name="one of two kvpickers killed", begin=steps.kill_kvpicker, end=steps.start_kvpicker, plan=_TWO, spares=True
    ),
    Fault(
        name="one of two kvpickers frozen",
        begin=steps.to_kvpicker(_stop),
        end=steps.to_kvpicker(_go),
        plan=_TWO,
        spares=True,
    ),
    Fault(
        name="one of two kvpickers stopped", begin=steps.end_kvpicker, end=steps.start_kvpicker, plan=_TWO, spares=True
    ),
    Fault(
        name="file descriptors exhausted",
        begin=steps.limit(resource.RLIMIT_NOFILE, steps.open_files),
        end=steps.limit(resource.RLIMIT_NOFILE, lambda _: -1),
        spares=True,
        lasts=6.0,
    ),
)

SOURCE_FAULTS = (
    Fault(
        name="disk full for Envoy's endpoints file",
        begin=steps.fill_disk,
        end=steps.empty_disk,
        spares=True,
        lasts=3.0,
        degraded="config",
    ),
    Fault(
        name="endpoints file broken",
        begin=steps.break_list,
        end=steps.list_again,
        spares=True,
        lasts=3.0,
        degraded="config",
    ),
    Fault(
        name="engines' metrics stalled",
        begin=steps.everywhere(lambda engine: engine.fault(kind="stall", path="/metrics")),
        end=steps.everywhere(lambda engine: engine.heal()),
        plan=Plan(settings={"scrape": {"interval_s": 0.3, "idle_interval_s": 0.3}}),
        spares=True,
        lasts=4.0,
        degraded="metrics",
    ),
    Fault(
        name="access log cut",
        begin=steps.cut_log,
        end=steps.mend_log,
        plan=Plan(relayed=True),
        spares=True,
        lasts=9.0,
        after=4.0,
        degraded="access_log",
    ),
    Fault(name="admin server beset", begin=_IDLERS.begin, end=_IDLERS.end, spares=True, lasts=3.0),
    Fault(
        name="clock jumps ahead and back",
        begin=steps.jump(86_400.0),
        end=steps.jump(-86_400.0),
        plan=Plan(environment={"PYTHONPATH": str(steps.JUMPS)}),
        spares=True,
    ),
    Fault(name="Envoy handed over to a new one", begin=steps.hand_over_envoy, spares=True, lasts=5.0),
    Fault(
        name="clients leave in mid-stream",
        begin=steps.to_kvpicker(_go),
        traffic=functools.partial(steps.leave, count=steps.LEAVERS),
        spares=True,
        lasts=0.0,
        short=0.0,
        alone=True,
    ),
)

_CUT, _FLOODED = KvStreams(), KvStreams()
_PUBLISHING = Plan(kv_events=True, pool={"kv_events": {"port": 1}, "tokens": {}})
_NAMED = Plan(named=True, settings={"dns": {"interval_s": 0.5}}, environment={"PYTHONPATH": str(steps.NAMES)})

LISTENING_FAULTS = (
    Fault(
        name="KV events cut",
        prepare=_CUT.prepare,
        begin=_CUT.cut,
        end=_CUT.mend,
        plan=_PUBLISHING,
        spares=True,
        lasts=8.0,
        after=8.0,
        degraded="kv_events",
    ),
    Fault(
        name="KV events flooded",
        prepare=_FLOODED.prepare,
        begin=_FLOODED.flood,
        end=_FLOODED.dry,
        plan=_PUBLISHING,
        spares=True,
        lasts=6.0,
        after=4.0,
        alone=True,
    ),
    Fault(
        name="name service lost",
        begin=steps.names("lost"),
        end=steps.names("ok"),
        plan=_NAMED,
        spares=True,
        lasts=4.0,
        degraded="dns",
    ),
    Fault(
        name="name service answers late",
        begin=steps.names("late"),
        end=steps.names("ok"),
        plan=_NAMED,
        spares=True,
        lasts=8.0,
        after=12.0,
        degraded="dns",
    ),
    Fault(
        name="name service answers empty",
        begin=steps.names("empty"),
        end=steps.names("ok"),
        plan=_NAMED,
        spares=True,
        lasts=4.0,
        degraded="dns",
    ),
)

FAULTS = ENGINE_FAULTS + KVPICKER_FAULTS + SOURCE_FAULTS + LISTENING_FAULTS


def with_leavers(faults: Iterable[Fault], count: int) -> list[Fault]:
    """Have that many clients leave where some do."""
    leaving = functools.partial(steps.leave, count=count)
    return [msgspec.structs.replace(one, traffic=leaving) if one.traffic is not None else one for one in faults]
