"""The options of the command `kvpicker replay`, and its help."""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import Final

from ext_proc.replay.traces import FORMATS
from ext_proc.replay.workloads import RECIPES
from ext_proc.sim.fleet.presets import ENGINES, PRESETS, REFERENCE

HELP: Final = "compare strategies on a trace or a generated workload, on simulated engines"

DESCRIPTION: Final = """\
Replays a trace, or a workload that is made for it, on simulated engines in virtual
time: once for each strategy, with the same picker, ledger and prefix index that serve
requests. Tells how soon first tokens come, how much caches save and how even load is.

  kvpicker replay trace.jsonl                      three strategies on eight engines
  kvpicker replay --workload chat --load 0.95      chat sessions near full load
  kvpicker replay requests.jsonl --rate 20 --engines 4:h100-8b,4:l40s-8b \\
      --strategies least-wait,least-wait:prefill_rate=4000 --html report.html
"""

EPILOG: Final = f"""\
Traces: Mooncake's JSON lines; Azure's CSV; JSON lines of OpenAI or Anthropic request
bodies, plain or as {{"timestamp": …, "path": …, "body": …, "output_tokens": …}}; kvpicker's
own log. Plain or gzip; - is standard input. deploy/replay.md documents their fields and
those of the JSON output.
Workloads: conv, convL and synth are made from a trace with ids of blocks (Mooncake's);
uniq and bursty can be made from any trace; chat and hot are made without one.
Engines: {", ".join(PRESETS)}; their numbers come from published fits and data
sheets, see deploy/replay.md.
Strategies: parameters behind colons, as key=value, where the value may be JSON, or all of
them as one JSON object; quote them from the shell:
  --strategies 'least-wait:prefill_rate=4000,weighted:scorers={{"prefix": 3, "queue": 2}}'
  --strategies 'session-affinity,least-wait:{{"prefill_rate": 4000}}'
Made workloads name no sessions; a trace of bodies may (member `session`).
Views: `observed` knows what kvpicker's own decisions and outcomes tell, `events` has the
engines' KV events too, `oracle` the true caches and queues.
For comparison only: gie (Gateway API inference extension, weights 3-2-2), lmetric, sglang
(cache_aware), ttft-oracle.
Times come from models of engines that were not checked against hardware: trust ratios.
A strategy that fails is replaced by least-request for that request, and a column counts it.
Exit status: 0 when it ended as asked, 1 when something failed, or a strategy on every
request; 2 when something you chose cannot be used.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of the `replay` command."""
    parser.description, parser.epilog = DESCRIPTION, EPILOG
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    add = parser.add_argument
    add("trace", nargs="*", type=Path, metavar="TRACE", help="what to replay")
    add("--workload", metavar="NAME", help=f"replay a workload made for it: {', '.join(RECIPES)}")
    add("--format", choices=sorted(FORMATS), help="format of the trace (found out from its content)")
    add(
        "--engines",
        default=str(ENGINES),
        metavar="N[:PRESET],…",
        help=f"simulated engines ({ENGINES}:{REFERENCE.name})",
    )
    add("--kv-tokens", type=_count, metavar="N", help="KV memory of every engine, tokens (the preset's)")
    add(
        "--load",
        type=_positive,
        metavar="F",
        help="of a workload: share of what the engines bear (0.8); of a trace: factor on its speed (1.0)",
    )
    add("--rate", type=_positive, metavar="R", help="requests a second over all engines, in place of --load")
    add("--requests", type=_count, metavar="N", help="about how many, from the beginning (a trace: all)")
    add(
        "--strategies",
        default="least-wait,least-request,round-robin",
        metavar="NAME[:KEY=VALUE…|:JSON],…",
        help="who is compared (%(default)s)",
    )
    add("--view", default="observed", metavar="VIEW,…", help="observed, events or oracle; several by comma (observed)")
    add("--no-first-token", action="store_true", help="kvpicker hears of ends of requests only, not of first tokens")
    add("--seeds", default="1", metavar="N,…", help="one run for each; results are means (1)")
    _add_results(parser)


def _add_results(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--warm-up", type=_share, default=0.1, metavar="F", help="share of the time that does not count (%(default)s)")
    add("--slo-ttft", type=_positive, default=2.0, metavar="S", help="good: first token within S (%(default)s) …")
    add(
        "--slo-prefill-rate",
        type=_positive,
        default=37_000.0,
        metavar="R",
        help="… and a second more for R prompt tokens (%(default)s) …",
    )
    add("--slo-tpot", type=_positive, default=0.1, metavar="S", help="… and S per further token (%(default)s)")
    add("--scrape", type=_positive, default=0.2, metavar="S", help="scrape interval, for strategies that look at it")
    add("--jobs", type=_count, metavar="N", help="processes (one per processor)")
    add("--json", action="store_true", help="print the results as one JSON object, all else to stderr")
    add("--html", type=Path, metavar="FILE", help="write a page with plots, which needs nothing else")


def run(arguments: argparse.Namespace) -> int:
    """Replay and report; returns the exit status."""
    from ext_proc.replay import replay  # noqa: PLC0415  slow to import; other commands do without

    return replay.run(arguments)


def _positive(text: str) -> float:
    value = float(text)
    if not (value > 0 and math.isfinite(value)):
        raise argparse.ArgumentTypeError(f"{text} is not a number above 0")
    return value


def _share(text: str) -> float:
    value = float(text)
    if not 0 <= value < 1:
        raise argparse.ArgumentTypeError(f"{text} is outside 0 to 1")
    return value


def _count(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a number from 1")
    return value
