"""What each engine calls its metrics.

Names that changed between versions are alternatives, the newest first; the first that the page has counts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec


class Term(msgspec.Struct, frozen=True, gc=False):
    """A number on a page.

    Attributes:
        name: name of the sample.
        where: only samples with this label and value; None takes all.
        label: the label whose number counts in place of the value; None takes the value.
        mean: ranks are averaged, not added up.
        parts: a label that is empty in the sample of the whole, where samples of its parts stand beside that.
    """

    name: bytes
    where: tuple[str, str] | None = None
    label: str | None = None
    mean: bool = False
    parts: str | None = None


class Dialect(msgspec.Struct, frozen=True, kw_only=True):
    """The names of one engine; what it has no name for stays empty.

    Attributes:
        engine: its name in the configuration.
        marks: how names begin that only this engine uses.
        waiting: requests in the queue.
        running: requests in the batch.
        kv_usage: share of KV memory in use.
        prompt_tokens: counter of prompt tokens.
        queried_tokens: counter of prompt tokens looked up in the prefix cache.
        cached_tokens: counter of those found.
        capacity: each alternative is a product of terms, in tokens.
        block: tokens of a block of the KV cache.
        ttft: sum and count of the times to the first token.
        itl: the same of the times between tokens.
        queue: the same of the times in the queue.
        sleep: gauge per rank and state of sleep, named by the label `sleep_state`.
    """

    engine: str
    marks: tuple[bytes, ...]
    waiting: tuple[Term, ...] = ()
    running: tuple[Term, ...] = ()
    kv_usage: tuple[Term, ...] = ()
    prompt_tokens: tuple[Term, ...] = ()
    queried_tokens: tuple[Term, ...] = ()
    cached_tokens: tuple[Term, ...] = ()
    capacity: tuple[tuple[Term, ...], ...] = ()
    block: tuple[Term, ...] = ()
    ttft: tuple[tuple[Term, Term], ...] = ()
    itl: tuple[tuple[Term, Term], ...] = ()
    queue: tuple[tuple[Term, Term], ...] = ()
    sleep: tuple[Term, ...] = ()

    def names(self) -> Iterator[bytes]:
        """Every name of a sample that may count."""
        yield STARTED.name
        alternatives = (self.waiting, self.running, self.kv_usage, self.prompt_tokens, self.queried_tokens)
        for terms in (
            *alternatives,
            self.cached_tokens,
            self.block,
            *self.capacity,
            *self.ttft,
            *self.itl,
            *self.queue,
            self.sleep,
        ):
            yield from (term.name for term in terms)


def _terms(*names: bytes, mean: bool = False) -> tuple[Term, ...]:
    return tuple(Term(name, mean=mean) for name in names)


def _histograms(*names: bytes) -> tuple[tuple[Term, Term], ...]:
    return tuple((Term(name + b"_sum"), Term(name + b"_count")) for name in names)


STARTED = Term(b"process_start_time_seconds")
"""When the process began, by the clients of Prometheus."""

_VLLM_CONFIG = b"vllm:cache_config_info"
_VLLM_BLOCK = Term(_VLLM_CONFIG, label="block_size", mean=True)
_VLLM_BLOCKS = Term(_VLLM_CONFIG, label="num_gpu_blocks", mean=True)
"""Of each data-parallel rank it tells the blocks of all of them; `kv_cache_size_tokens` is the rank's own."""
_SGLANG_PAGE = (Term(b"sglang:page_size", mean=True),)
_TRTLLM_BLOCK = Term(b"trtllm_kv_cache_tokens_per_block", mean=True)
_TRITON_REQUESTS = b"nv_trt_llm_request_metrics"
_TRITON_BLOCKS = b"nv_trt_llm_kv_cache_block_metrics"

DIALECTS: Sequence[Dialect] = (
    Dialect(
        engine="vllm",
        marks=(b"vllm:",),
        waiting=_terms(b"vllm:num_requests_waiting"),
        running=_terms(b"vllm:num_requests_running"),
        kv_usage=_terms(b"vllm:kv_cache_usage_perc", b"vllm:gpu_cache_usage_perc", mean=True),
        prompt_tokens=_terms(b"vllm:prompt_tokens_total"),
        queried_tokens=_terms(b"vllm:prefix_cache_queries_total", b"vllm:gpu_prefix_cache_queries_total"),
        cached_tokens=_terms(b"vllm:prefix_cache_hits_total", b"vllm:gpu_prefix_cache_hits_total"),
        capacity=(
            (Term(_VLLM_CONFIG, label="kv_cache_size_tokens"),),
            (_VLLM_BLOCKS, _VLLM_BLOCK),
        ),
        block=(_VLLM_BLOCK,),
        ttft=_histograms(b"vllm:time_to_first_token_seconds"),
        itl=_histograms(
            b"vllm:inter_token_latency_seconds",
            b"vllm:time_per_output_token_seconds",
            b"vllm:request_time_per_output_token_seconds",
        ),
        queue=_histograms(b"vllm:request_queue_time_seconds"),
        sleep=_terms(b"vllm:engine_sleep_state"),
    ),
    Dialect(
        engine="sglang",
        marks=(b"sglang:",),
        # With --enable-priority-scheduling they are told once more for each priority.
        waiting=(Term(b"sglang:num_queue_reqs", parts="priority"),),
        running=(Term(b"sglang:num_running_reqs", parts="priority"),),
        kv_usage=_terms(b"sglang:token_usage", mean=True),
        prompt_tokens=_terms(b"sglang:prompt_tokens_total"),
        cached_tokens=_terms(b"sglang:cached_tokens_total"),
        capacity=(
            (Term(b"sglang:max_total_num_tokens"),),
            (Term(b"sglang:num_pages"), *_SGLANG_PAGE),
            (
                Term(b"sglang:cache_config_info", label="num_pages"),
                Term(b"sglang:cache_config_info", label="page_size", mean=True),
            ),
        ),
        block=_SGLANG_PAGE,
        ttft=_histograms(b"sglang:time_to_first_token_seconds"),
        itl=_histograms(
            b"sglang:inter_token_latency_seconds",
            b"sglang:time_per_output_token_seconds",
            b"sglang:request_time_per_output_token_seconds",
        ),
        queue=_histograms(b"sglang:queue_time_seconds"),
    ),
    Dialect(
        engine="tensorrt-llm",
        marks=(b"trtllm_",),
        waiting=_terms(b"trtllm_num_requests_waiting"),
        running=_terms(b"trtllm_num_requests_running"),
        kv_usage=_terms(b"trtllm_kv_cache_utilization", mean=True),
        prompt_tokens=_terms(b"trtllm_prompt_tokens_total"),
        cached_tokens=_terms(b"trtllm_prompt_cached_tokens_total"),
        capacity=((Term(b"trtllm_kv_cache_max_blocks"), _TRTLLM_BLOCK),),
        block=(_TRTLLM_BLOCK,),
        ttft=_histograms(b"trtllm_time_to_first_token_seconds"),
        itl=_histograms(b"trtllm_time_per_output_token_seconds"),
        queue=_histograms(b"trtllm_request_queue_time_seconds"),
    ),
    Dialect(
        engine="triton",
        marks=(b"nv_trt_llm_", b"nv_inference_"),
        waiting=(
            Term(_TRITON_REQUESTS, where=("request_type", "waiting")),
            Term(b"nv_inference_pending_request_count"),
        ),
        running=(
            Term(_TRITON_REQUESTS, where=("request_type", "scheduled")),
            Term(_TRITON_REQUESTS, where=("request_type", "active")),
        ),
        kv_usage=(Term(_TRITON_BLOCKS, where=("kv_cache_block_type", "fraction"), mean=True),),
        capacity=(
            (
                Term(_TRITON_BLOCKS, where=("kv_cache_block_type", "max")),
                Term(_TRITON_BLOCKS, where=("kv_cache_block_type", "tokens_per"), mean=True),
            ),
        ),
    ),
    Dialect(
        engine="tgi",
        marks=(b"tgi_",),
        waiting=_terms(b"tgi_queue_size"),
        running=_terms(b"tgi_batch_current_size"),
        prompt_tokens=_terms(b"tgi_request_input_length_sum"),
        itl=_histograms(b"tgi_request_mean_time_per_token_duration"),
        queue=_histograms(b"tgi_request_queue_duration"),
    ),
    Dialect(
        engine="llama-cpp",
        marks=(b"llamacpp:",),
        waiting=_terms(b"llamacpp:requests_deferred"),
        running=_terms(b"llamacpp:requests_processing"),
        kv_usage=_terms(b"llamacpp:kv_cache_usage_ratio", mean=True),  # gone from recent builds
        prompt_tokens=_terms(b"llamacpp:prompt_tokens_total"),
    ),
)
"""Engines with a page of metrics. Ollama has none: what is in flight there is known from the ledger alone."""
