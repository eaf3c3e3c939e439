"""Shows every request to every measurement, and puts the results together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from ext_proc.analyze.advice import advise
from ext_proc.analyze.breakers import Breakers
from ext_proc.analyze.curve import ReuseCurve
from ext_proc.analyze.engines import Comparison
from ext_proc.analyze.families import FamilyCounter
from ext_proc.analyze.lengths import Distribution
from ext_proc.analyze.options import Options
from ext_proc.analyze.record import Record
from ext_proc.analyze.report import CachePoint, Fleet, LengthBand, ModelShare, Report, Sampling, Source
from ext_proc.analyze.segments import segments
from ext_proc.analyze.sessions import SessionFinder

BANDS = (256, 1024, 4096, 16_384, 65_536, 262_144)
LISTED = 10
_MOST_MODELS = 100
_OTHERS = "(others)"
_SMALLEST_CACHE = 1 << 10
_LARGEST_CACHE = 1 << 40
_STEPS_PER_DOUBLING = 4
_MOST_OF_HITS = 0.9


class Survey:
    """Measures traffic.

    Args:
        options: what is asked.
    """

    def __init__(self, options: Options) -> None:
        self.requests = 0
        self.other_models = 0
        self._options = options
        self._curve = ReuseCurve(_cache_sizes(options.kv_tokens, options.kv_tokens * options.engines))
        self._comparison = Comparison(options.engines, options.kv_tokens, options.smallest_block)
        self._families = FamilyCounter(show=options.show_prompts)
        self._breakers = Breakers(show=options.show_prompts)
        self._sessions = SessionFinder()
        self._prompts = Distribution()
        self._outputs = Distribution()
        self._models: Counter[str] = Counter()
        self._model_tokens: Counter[str] = Counter()
        self._model_new: dict[str, float] = {}

    def add(self, record: Record) -> None:
        """Measure a request."""
        if self._options.models and record.model not in self._options.models:
            self.other_models += 1
            return
        self.requests += 1
        chain, sizes, tokens = record.chain, record.sizes, record.prompt_tokens
        new = self._curve.use(chain, sizes, tokens)
        self._count_model(record.model, tokens, new)
        self._comparison.serve(chain, sizes, tokens)
        self._families.add(chain, sizes, record.prompt)
        pieces = segments(record.prompt)
        self._breakers.add(record.model, record.namespace, pieces, tokens)
        self._sessions.add(record, pieces)
        self._prompts.add(tokens)
        if record.output_tokens is not None:
            self._outputs.add(record.output_tokens)

    def report(self, source: Source) -> Report:
        """Put the results together.

        Args:
            source: what was read.
        """
        options, curve = self._options, self._curve
        ratios = curve.hit_ratios()
        reuse = curve.reuse_ratio()
        report = Report(
            source=source,
            advice=(),
            prompt_tokens=curve.total,
            reuse_ratio=reuse,
            unique_tokens=curve.working_set(),
            curve=tuple(self._points(ratios)),
            tokens_for_most=_size_for(_MOST_OF_HITS * reuse, curve.sizes, ratios),
            fleet=Fleet(
                engines=options.engines,
                kv_tokens=options.kv_tokens,
                prefill_saved=self._comparison.prefill_saved(),
                policies=tuple(self._comparison.results()),
            ),
            families=tuple(self._families.families(LISTED, curve.total)),
            breakers=tuple(self._breakers.breakers(LISTED)),
            prompts=self._prompts.spread(),
            outputs=self._outputs.spread(),
            bands=tuple(self._bands()),
            sessions=self._sessions.result(),
            models=tuple(self._model_shares()),
            sampling=Sampling(curve.rate, self._comparison.rate, self._families.missed, self._breakers.compared),
        )
        return advise(report)

    def _count_model(self, model: str, tokens: int, new: float) -> None:
        if model not in self._models and len(self._models) >= _MOST_MODELS:
            model = _OTHERS
        self._models[model] += 1
        self._model_tokens[model] += tokens
        self._model_new[model] = self._model_new.get(model, 0.0) + new

    def _points(self, ratios: list[float]) -> Iterable[CachePoint]:
        """Give the part of the curve that rises, and a little more."""
        best = ratios[-1] if ratios else 0.0
        per_token = self._options.kv_bytes_per_token
        for size, ratio, before in zip(self._curve.sizes, ratios, [-1.0, *ratios], strict=False):
            gib = None if per_token is None else size * per_token / 2**30
            yield CachePoint(size, gib, ratio)
            if ratio >= best and before >= best and size >= self._options.kv_tokens * self._options.engines:
                break

    def _bands(self) -> Iterable[LengthBand]:
        counts = self._prompts.counts(BANDS)
        return [LengthBand(edge, count) for edge, count in zip((*BANDS, None), counts, strict=True)]

    def _model_shares(self) -> Iterable[ModelShare]:
        for model, requests in self._models.most_common(LISTED):
            tokens = self._model_tokens[model]
            reuse = 1.0 - self._model_new[model] / tokens if tokens else 0.0
            yield ModelShare(model, requests, tokens, min(max(reuse, 0.0), 1.0))


def _cache_sizes(*wanted: int) -> list[int]:
    """Return sizes from a thousand tokens on, four in each doubling, and those that are wanted."""
    doublings = (_LARGEST_CACHE // _SMALLEST_CACHE).bit_length() - 1
    steps = range(doublings * _STEPS_PER_DOUBLING + 1)
    return sorted({*(round(_SMALLEST_CACHE * 2 ** (step / _STEPS_PER_DOUBLING)) for step in steps), *wanted})


def _size_for(ratio: float, sizes: list[int], ratios: list[float]) -> int | None:
    if ratio <= 0:
        return None
    return next((size for size, found in zip(sizes, ratios, strict=True) if found >= ratio), None)
