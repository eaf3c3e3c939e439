"""What is understood of each engine's page, and what is not made up."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ext_proc.config import settings
from ext_proc.core.signals import EngineSignals, Signals, Times
from ext_proc.sources.scrape import NO_METRICS
from ext_proc.sources.scrape_dialects import DIALECTS
from ext_proc.sources.scrape_engines import PageReader, detect
from tests.unit.sources.pages import VLLM_PAGE, case, signals
from tests.unit.wire.picking import ADDRESSES, CHAT, Picking, body_message, headers_message

SGLANG = """\
sglang:num_running_reqs{engine_type="unified",model_name="m",pp_rank="0",tp_rank="0"} 5
sglang:num_queue_reqs{engine_type="unified",model_name="m",pp_rank="0",tp_rank="0"} 2
sglang:token_usage{engine_type="unified",model_name="m",pp_rank="0",tp_rank="0"} 0.28
sglang:max_total_num_tokens{engine_type="unified",model_name="m",pp_rank="0",tp_rank="0"} 161721
sglang:prompt_tokens_total{model_name="m"} 8.128902e+06
sglang:cached_tokens_total{cache_source="device",model_name="m"} 100
sglang:cached_tokens_total{cache_source="host",model_name="m"} 20
sglang:time_to_first_token_seconds_sum{model_name="m"} 3.5
sglang:time_to_first_token_seconds_count{model_name="m"} 7
sglang:inter_token_latency_seconds_sum{model_name="m"} 2
sglang:inter_token_latency_seconds_count{model_name="m"} 100
sglang:queue_time_seconds_sum{model_name="m"} 0.5
sglang:queue_time_seconds_count{model_name="m"} 7
"""
TRTLLM = """\
trtllm_num_requests_running{engine_type="trtllm",model_name="m"} 3
trtllm_num_requests_waiting{engine_type="trtllm",model_name="m"} 1
trtllm_kv_cache_utilization{engine_type="trtllm",model_name="m"} 0.5
trtllm_kv_cache_max_blocks{engine_type="trtllm",model_name="m"} 1000
trtllm_kv_cache_tokens_per_block{engine_type="trtllm",model_name="m"} 32
trtllm_time_to_first_token_seconds_sum{engine_type="trtllm",model_name="m"} 4
trtllm_time_to_first_token_seconds_count{engine_type="trtllm",model_name="m"} 8
"""
TRITON = """\
nv_trt_llm_request_metrics{model="m",request_type="waiting",version="1"} 4
nv_trt_llm_request_metrics{model="m",request_type="active",version="1"} 9
nv_trt_llm_request_metrics{model="m",request_type="scheduled",version="1"} 6
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="tokens_per",model="m",version="1"} 64
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="max",model="m",version="1"} 6239
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="fraction",model="m",version="1"} 0.25
"""
TGI = """\
# TYPE tgi_queue_size gauge
tgi_queue_size 3

# TYPE tgi_batch_current_size gauge
tgi_batch_current_size 8

# TYPE tgi_request_queue_duration histogram
tgi_request_queue_duration_bucket{le="+Inf"} 10
tgi_request_queue_duration_sum 1.25
tgi_request_queue_duration_count 10
"""
LLAMA = "llamacpp:requests_processing 1\nllamacpp:requests_deferred 4\nllamacpp:prompt_tokens_total 512\n"


def read(number: str, endpoint: str = "E1") -> EngineSignals:
    """Read a page of a case."""
    return signals(case(number)[endpoint])


def test_a_real_vllm_page() -> None:
    """An idle engine says zeros, and how much its cache holds."""
    found = signals(VLLM_PAGE)
    assert (found.waiting, found.running, found.kv_usage) == (0.0, 0.0, 0.0)
    assert (found.kv_tokens, found.block_tokens) == (32_768 * 128, 128)
    assert found.started == 1795954423.27
    assert found.ttft == found.itl == found.queue == Times(0.0, 0.0)


@pytest.mark.parametrize(
    ("page", "engine", "expected"),
    [
        (SGLANG, "sglang", {"waiting": 2, "running": 5, "kv_usage": 0.28, "kv_tokens": 161_721}),
        (SGLANG, "sglang", {"prompt_tokens": 8128902, "cached_tokens": 120, "ttft": Times(3.5, 7)}),
        (SGLANG, "sglang", {"itl": Times(2, 100), "queue": Times(0.5, 7)}),
        (
            TRTLLM,
            "tensorrt-llm",
            {"waiting": 1, "running": 3, "kv_usage": 0.5, "kv_tokens": 32_000, "block_tokens": 32},
        ),
        (TRTLLM, "tensorrt-llm", {"ttft": Times(4, 8), "itl": None}),
        (TRITON, "triton", {"waiting": 4, "running": 6, "kv_usage": 0.25, "kv_tokens": 399_296}),
        ("nv_inference_pending_request_count 7\n", "triton", {"waiting": 7, "running": None}),
        (TGI, "tgi", {"waiting": 3, "running": 8, "kv_usage": None, "queue": Times(1.25, 10)}),
        (LLAMA, "llama-cpp", {"waiting": 4, "running": 1, "kv_usage": None, "prompt_tokens": 512}),
    ],
)
def test_each_engine_is_detected_and_read(page: str, engine: str, expected: dict[str, object]) -> None:
    """Load, memory and times come from the names that the engine uses; what it does not say is None."""
    reading = PageReader().read(page.encode(), 0.0)
    assert reading.engine == engine
    assert {name: getattr(reading.signals, name) for name in expected} == expected


def test_the_names_of_engines_are_those_of_the_configuration() -> None:
    """Every engine that can be configured has names, or is known to have none."""
    configurable = set(settings.EngineName.__args__)  # type: ignore[attr-defined]
    assert configurable == {dialect.engine for dialect in DIALECTS} | {NO_METRICS}


def test_c01_a_name_of_another_version_is_found_and_a_missing_one_is_not_zero() -> None:
    """The old name of KV usage counts where the new one is not there; without either it is unknown and reported."""
    usages = [read("C01", endpoint).kv_usage for endpoint in ("E1", "E2", "E3")]
    assert usages == [0.91, 0.10, None]
    readings = [PageReader().read(page, 0.0) for page in case("C01").values()]
    assert [reading.missing for reading in readings] == [(), (), ("kv_usage",)]


def test_c01_an_unknown_endpoint_is_average_not_best() -> None:
    """Compared by memory, E2 is emptiest, and E3 stands between the two that say something."""
    known = Signals()
    for slot, page in enumerate(case("C01").values()):
        known.note(slot, signals(page))
    levels = known.levels((0, 1, 2), lambda each: each.kv_usage, 0.0)
    assert levels is not None
    assert levels[1] < levels[2] < levels[0]
    assert levels[2] == pytest.approx(0.505)


def test_c03_what_is_no_number_is_unknown() -> None:
    """NaN, infinities and negative loads are no load, and nothing can be told from them."""
    assert [read("C03", "E1").running, read("C03", "E2").waiting, read("C03", "E2").kv_usage] == [None] * 3
    third = read("C03", "E3")
    assert (third.running, third.waiting, third.kv_usage) == (2.0, 1.0, None)


def test_c03_more_requests_than_there_can_be_are_no_number() -> None:
    """What would outweigh every other engine for ever is unknown as well."""
    found = signals("vllm:num_requests_running 1e300\nvllm:num_requests_waiting 99999999999999999999\n")
    assert (found.running, found.waiting) == (None, None)


@pytest.mark.parametrize(("page", "engine"), [(SGLANG, "sglang"), (LLAMA, "llama-cpp"), (VLLM_PAGE.decode(), "vllm")])
def test_c01_names_with_an_underscore_for_the_colon_are_the_same(page: str, engine: str) -> None:
    """Some collectors and versions write names so; the engine is found, and all that it says."""
    spelt = page.replace("sglang:", "sglang_").replace("llamacpp:", "llamacpp_").replace("vllm:", "vllm_")
    for reader in (PageReader(), PageReader(engine)):
        reading = reader.read(spelt.encode(), 0.0)
        assert (reading.engine, reading.signals) == (engine, signals(page))
        assert reader.read(spelt.encode(), 0.0) == reading


def test_a_page_of_something_else_that_begins_with_an_engines_name_is_unknown() -> None:
    """A router's metrics, for one, are not those of an engine."""
    assert PageReader().read(b"vllm_router_requests_total 7\n", 0.0).engine == ""


def test_c03_endpoints_that_say_nonsense_neither_win_nor_lose() -> None:
    """They count as the one that says something, so that nobody starves and nobody takes all."""
    known = Signals()
    for slot, page in enumerate(case("C03").values()):
        known.note(slot, signals(page))
    assert known.levels((0, 1, 2), lambda each: each.running, 0.0) == [2.0, 2.0, 2.0]
    assert known.levels((0, 1, 2), lambda each: each.kv_usage, 0.0) is None


def picks(number: str, count: int) -> list[str]:
    """Send requests without a common prefix to three endpoints that say what a case's pages say."""
    picking = Picking()
    for slot, page in enumerate(case(number).values()):
        picking.core.signals.note(slot, msgspec.structs.replace(signals(page), at=picking.now))
    for each in range(count):
        session = picking.session()
        session.receive(headers_message())
        session.receive(body_message(CHAT.replace(b"three", b"%d" % each)))
        session.close(delivered=True)
    return [decision.chosen.address for decision in picking.notes.all("decided")]


def test_c01_a_prompt_that_nobody_holds_goes_where_most_memory_is_free() -> None:
    """By the default strategy: to E2, and not to E3, of which nobody knows."""
    assert picks("C01", 1) == [ADDRESSES[1]]


def test_c03_nonsense_starves_nobody() -> None:
    """Of 90 equal requests each endpoint gets its share."""
    picked = picks("C03", 90)
    assert min(picked.count(address) for address in ADDRESSES) >= 25


def test_c04_ranks_are_added_up_and_shares_averaged() -> None:
    """An endpoint that fronts four ranks has the work of all, and the mean of their memory."""
    found = read("C04")
    assert found.running == 12
    assert found.ranks == 4
    assert found.kv_usage == pytest.approx(0.3)


def test_c04_the_same_labels_in_another_order_are_the_same_rank() -> None:
    """A rank that stands on the page twice counts once, by its later line."""
    page = (
        'vllm:num_requests_running{engine="0",model_name="m"} 4\n'
        'vllm:num_requests_running{engine="1",model_name="m"} 2\n'
        'vllm:num_requests_running{model_name="m", engine="0",} 5\n'
    )
    assert signals(page).running == 7.0
    assert signals(page).ranks == 2


def test_c06_a_page_without_the_families_says_nothing() -> None:
    """A fresh engine is unknown, not idle, and its page is no error."""
    reading = PageReader().read(case("C06")["E1"], 5.0)
    assert reading.engine == ""
    assert reading.signals == EngineSignals(at=5.0)


def test_c07_openmetrics_is_read() -> None:
    """Exemplars, creation times, units and the end mark are no obstacle."""
    found = read("C07")
    assert (found.running, found.kv_usage, found.prompt_tokens) == (3.0, 0.25, 34567.0)


def test_c07_nothing_behind_the_end_mark_counts() -> None:
    """Text after the end mark is not read."""
    page = case("C07")["E1"] + b'vllm:num_requests_running{engine="1"} 90\n'
    assert signals(page).running == 3.0


def test_c08_odd_labels_and_timestamps_are_no_values() -> None:
    """Braces, quotes, blanks and line ends in labels do not hide the value, and a timestamp is none."""
    assert (read("C08").running, read("C08").waiting) == (7.0, 2.0)


def test_one_rank_that_says_nonsense_makes_the_sum_unknown() -> None:
    """A sum without one of its parts would be too low."""
    page = 'vllm:num_requests_running{engine="0"} 4\nvllm:num_requests_running{engine="1"} NaN\n'
    assert signals(page).running is None


def test_ranks_that_share_a_batch_count_once() -> None:
    """Of the tensor-parallel processes of each data-parallel rank the first counts, whatever its number."""
    lines = [
        f'sglang:num_running_reqs{{dp_rank="{dp}",tp_rank="{tp}",pp_rank="0"}} {value}\n'
        for dp, tp, value in [(0, 1, 9), (0, 0, 4), (1, 10, 9), (1, 9, 3), (1, 11, 9)]
    ]
    assert signals("".join(lines)).running == 7.0


CONFIG = (
    'vllm:cache_config_info{{block_size="32",engine="{}",kv_cache_size_tokens="{}",num_gpu_blocks="{}",'
    'num_gpu_blocks_override="300"}} 1.0\n'
)


def test_what_is_told_once_more_by_priority_counts_once() -> None:
    """SGLang 0.5.23 with --enable-priority-scheduling tells the whole with an empty priority, and then each part."""
    lines = [
        f'sglang:num_running_reqs{{dp_rank="{dp}",engine_type="unified",priority="{priority}",tp_rank="0"}} {value}\n'
        for dp, priority, value in [(0, "", 5), (0, "1", 3), (0, "None", 2), (1, "", 1), (1, "1", 1), (1, "None", 0)]
    ]
    assert signals("".join(lines)).running == 6.0
    assert signals("".join(line for line in lines if 'priority=""' not in line)).running == 6.0
    answered = [
        f'sglang:prompt_tokens_total{{priority="{priority}"}} {value}\n' for priority, value in [("", 4), ("1", 7)]
    ]
    assert signals("".join([*lines, *answered])).prompt_tokens == 11.0  # each request is counted under one


def test_the_capacity_of_ranks_is_added_up_once() -> None:
    """VLLM tells of each rank its own tokens, and the blocks of all ranks: so did 0.32 with two ranks of 300 blocks."""
    page = "".join(CONFIG.format(engine, 9600, 600) for engine in range(2))
    assert signals(page).kv_tokens == 2 * 300 * 32
    before = page.replace("kv_cache_size_tokens", "swap_space")  # versions that do not tell tokens
    assert signals(before).kv_tokens == 2 * 300 * 32


def test_the_newest_of_two_capacities_counts() -> None:
    """A rank that was configured anew has a line of before."""
    page = CONFIG.format(0, "None", 50) + CONFIG.format(0, "None", 100)
    assert signals(page).kv_tokens == 100 * 32


@pytest.mark.parametrize("text", ["None", "", "0", "-1", "nan", "inf", "1e300"])
def test_a_capacity_that_is_no_size_is_unknown(text: str) -> None:
    """What the engine has not settled yet does not become a cache of no tokens."""
    assert signals(f'vllm:cache_config_info{{kv_cache_size_tokens="{text}"}} 1.0\n').kv_tokens is None


@pytest.mark.parametrize(("usage", "expected"), [("1.0", 1.0), ("1.02", 1.0), ("57.0", None)])
def test_a_share_above_one_is_no_share(usage: str, expected: float | None) -> None:
    """Rounding may exceed 1 a little; a percentage is not believed."""
    assert signals(f"vllm:kv_cache_usage_perc {usage}\n").kv_usage == expected


def test_half_a_histogram_is_none() -> None:
    """A sum without its count has no mean."""
    assert signals("vllm:time_to_first_token_seconds_sum 4\n").ttft is None


def test_an_engine_that_was_replaced_is_detected_again() -> None:
    """When the names of one engine are gone from a page, it may be another engine's."""
    reader = PageReader()
    assert [reader.read(page.encode(), 0.0).engine for page in (LLAMA, TGI, TGI)] == ["llama-cpp", "llama-cpp", "tgi"]


def test_a_configured_engine_is_not_detected() -> None:
    """Somebody knows better: names of other engines do not count."""
    reading = PageReader("sglang").read(VLLM_PAGE, 0.0)
    assert (reading.engine, reading.signals.running) == ("sglang", None)
    assert reading.missing == ("waiting", "running", "kv_usage")


def test_values_are_followed_from_page_to_page() -> None:
    """A second page with other values, read by the layout of the first, gives the other values."""
    reader = PageReader()
    reader.read(VLLM_PAGE, 0.0)
    old, new = (
        b'num_requests_running{engine="0",model_name="tiny"} 0.0',
        b'num_requests_running{engine="0",model_name="tiny"} 17.0',
    )
    assert reader.read(VLLM_PAGE.replace(old, new), 1.0).signals.running == 17.0


@given(st.binary(max_size=300))
def test_any_page_is_survived(page: bytes) -> None:
    """Whatever comes, the result is a reading."""
    for dialect in DIALECTS:
        PageReader(dialect.engine).read(dialect.marks[0] + page, 0.0)
    detect(page)
