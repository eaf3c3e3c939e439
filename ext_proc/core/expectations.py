"""What is expected of a model's answers before they come: length, residence, and tokens per estimated token."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

_MEMORY = 0.98
_LONGEST_OUTPUT = 65_536
_PRIOR_TOKENS = 4096.0
_LEAST_SCALE, _MOST_SCALE = 0.2, 5.0


class Expectation(msgspec.Struct, gc=False):
    """Learnt means of one model.

    Attributes:
        output: tokens of an answer (o).
        residence: seconds from dispatch to end (D).
        actual: prompt tokens that engines counted, with forgetting.
        estimated: what was estimated of the same prompts.
        scale: the factor from estimated to real prompt tokens.
    """

    output: float = 300.0
    residence: float = 10.0
    actual: float = _PRIOR_TOKENS
    estimated: float = _PRIOR_TOKENS
    scale: float = 1.0

    def output_within(self, limit: int | None) -> float:
        """Return the tokens an answer is expected to have: as many as usual, or the client's limit if that is lower."""
        return self.output if limit is None else max(min(self.output, limit), 0.0)


class Expectations:
    """Expectations by model; a new model begins with the means over all."""

    def __init__(self) -> None:
        self.overall = Expectation()
        self._models: dict[str, Expectation] = {}

    def of(self, model: str | None) -> Expectation:
        """Return what is expected of a model; the means over all for an unknown one."""
        return self._models.get(model or "", self.overall)

    @property
    def models(self) -> dict[str, Expectation]:
        """A copy of what is expected of each model."""
        return self._models.copy()

    def assume(self, overall: Expectation, models: Mapping[str, Expectation]) -> None:
        """Take expectations for learnt."""
        self.overall, self._models = overall, dict(models)

    def learn(self, model: str | None, output: int | None, residence: float) -> None:
        """Learn from a finished answer: tokens (None if unknown) and seconds.

        An engine that reports more tokens than any generates does not get to ruin the mean.

        Args:
            model: a name that is served; the caller keeps strangers' names away. None counts over all only.
            output: generated tokens.
            residence: seconds from dispatch to end.
        """
        for known in self._both(model):
            if output is not None:
                known.output += (1 - _MEMORY) * (min(output, _LONGEST_OUTPUT) - known.output)
            known.residence += (1 - _MEMORY) * (residence - known.residence)

    def learn_tokens(self, model: str | None, estimated: int, actual: int) -> None:
        """Learn from the prompt tokens that an engine counted where so many were estimated; both above 0."""
        for known in self._both(model):
            known.actual = _MEMORY * known.actual + actual
            known.estimated = _MEMORY * known.estimated + estimated
            known.scale = min(max(known.actual / known.estimated, _LEAST_SCALE), _MOST_SCALE)

    def _both(self, model: str | None) -> tuple[Expectation, ...]:
        if model is None:
            return (self.overall,)
        known = self._models.get(model)
        if known is None:
            known = self._models[model] = msgspec.structs.replace(self.overall)
        return (self.overall, known)
