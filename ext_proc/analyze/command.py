"""The options of the command `kvpicker analyze`, its help, and what it does."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Final

import msgspec

from ext_proc.analyze.options import Options
from ext_proc.core.errors import ConfigError
from ext_proc.ops.whole_file import whole_file

HELP: Final = "say how much of recorded traffic repeats, and what routing could gain"

DESCRIPTION: Final = """\
Reads recorded requests and says how much of their prompts repeats, how large a cache
has to be to profit, which prefixes are hot, what breaks prefixes, and what
prefix-aware routing would gain on so many engines.

  kvpicker analyze traffic.jsonl
  kvpicker analyze monday.jsonl.gz tuesday.jsonl.gz --engines 8 --html report.html
  zcat big.gz | kvpicker analyze - --json

Prompts are cut and hashed as the picker does it when it serves. No prompt text is
shown without --show-prompts. Files may be larger than memory.
"""

EPILOG: Final = """\
One JSON object a line, plain or gzip, and the kind of each line shows from its members:
  a body    the body of a request to OpenAI's or Anthropic's API, or to an engine's own
  a wrapper {"body": {…} or "…", "path": "/v1/chat/completions", "timestamp": …,
             "model": …, "output_tokens": …, "usage": {…}}; all but body are optional,
             and path may be called url, as in files for OpenAI's batch API
  a trace   {"hash_ids": [0, 1, …], "input_length": 6758, "output_length": 500,
             "timestamp": ms}; Mooncake's format, 512 tokens a block
Times are ISO 8601 or seconds, ms, us or ns since any moment. Lines that cannot be used
are counted and left out. Up to 65,536 different blocks the curve is exact; beyond,
blocks are sampled, and ratios are off by about one hundredth.

Shares are counted in whole blocks of the picker, so they are a little low: engines with
smaller blocks find up to a block more of each prompt. Prefix-aware routing is said to
pay when it avoids 5 % or more of what round robin leaves to prefill. One shared cache
is a yardstick: one LRU cache with the memory of all engines.

Exit status: 0 with a report, 2 when a file cannot be read or holds no request.
The fields of --json are listed in deploy/reference.md.
"""

MOST_ENGINES: Final = 1_000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of the `analyze` command."""
    defaults = Options()
    parser.description, parser.epilog = DESCRIPTION, EPILOG
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    add = parser.add_argument
    add("files", nargs="+", metavar="FILE", help="recorded requests; - is standard input")
    add("--engines", type=_engines, default=defaults.engines, metavar="N", help="engines to route over (%(default)s)")
    add(
        "--kv-tokens",
        type=_positive,
        default=defaults.kv_tokens,
        metavar="N",
        help="tokens that the KV cache of one engine holds; vLLM logs it as GPU KV cache size (%(default)s, that of an "
        "8B model on an H100)",
    )
    add(
        "--kv-bytes-per-token",
        type=_positive,
        metavar="N",
        help="show cache sizes in GiB too; 2 x layers x KV heads x head size x bytes per value, 131072 for Llama 3 8B",
    )
    add("--model", action="append", default=[], metavar="NAME", help="look at this model only, repeatable")
    add("--first-block", type=_block, default=256, metavar="BYTES", help="size of the first blocks (%(default)s)")
    add("--last-block", type=_block, default=4096, metavar="BYTES", help="size of blocks far in (%(default)s)")
    add("--show-prompts", action="store_true", help="show short excerpts of prompts")
    add("--json", action="store_true", help="print the report as one JSON object")
    add("--html", metavar="FILE", type=Path, help="write the report as one self-contained page")


def run(arguments: argparse.Namespace) -> int:
    """Analyse the files and print what is found; returns the exit status.

    Raises:
        ConfigError: an option or a file cannot be used.
    """
    # Slow to import; other commands do without.
    from ext_proc.analyze import analysis  # noqa: PLC0415
    from ext_proc.analyze.page import page  # noqa: PLC0415

    if arguments.last_block < arguments.first_block:
        raise ConfigError("--last-block must be at least --first-block, because blocks grow along a prompt")
    options = Options(
        engines=arguments.engines,
        kv_tokens=arguments.kv_tokens,
        kv_bytes_per_token=arguments.kv_bytes_per_token,
        models=frozenset(arguments.model),
        show_prompts=arguments.show_prompts,
        smallest_block=arguments.first_block // 4,
    )
    with whole_file(arguments.html, arguments.files, "--html") as write_page:
        report = analysis.analyse(arguments.files, options, (arguments.first_block, arguments.last_block))
        if arguments.html is not None:
            write_page(page(report))
    if arguments.json:
        sys.stdout.write(msgspec.json.encode(report).decode() + "\n")
    else:
        analysis.print_report(report)
    return 0


def _positive(text: str) -> int:
    number = int(text)
    if not 1 <= number <= 10**12:
        raise argparse.ArgumentTypeError(f"{number} is outside 1..10^12")
    return number


def _engines(text: str) -> int:
    number = int(text)
    if not 1 <= number <= MOST_ENGINES:
        raise argparse.ArgumentTypeError(f"{number} is outside 1..{MOST_ENGINES}")
    return number


def _block(text: str) -> int:
    size = int(text)
    if not 64 <= size <= 65_536:  # noqa: PLR2004  the bounds of the configuration
        raise argparse.ArgumentTypeError(f"{size} is outside 64..65536")
    return size
