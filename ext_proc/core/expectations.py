"""What is expected of a model's answers before they come: length, residence, and tokens per estimated token."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean

import msgspec

_MEMORY = 0.98
_LONGEST_OUTPUT = 65_536
_PRIOR_TOKENS = 4096.0
_LEAST_SCALE, _MOST_SCALE = 0.2, 5.0
_MOST_MODELS = 1000


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

    def answer(self, reported: int | None, limit: int | None) -> int:
        """Return the tokens of an answer: those reported, within reason, or else those expected."""
        return int(self.output_within(limit)) if reported is None else min(reported, _LONGEST_OUTPUT)

    def learn(self, output: int | None, residence: float) -> None:
        """Learn from a finished answer: tokens (None if unknown) and seconds from dispatch to end.

        An engine that reports more tokens than any generates does not get to ruin the mean.
        """
        if output is not None:
            self.output += (1 - _MEMORY) * (min(output, _LONGEST_OUTPUT) - self.output)
        self.residence += (1 - _MEMORY) * (residence - self.residence)

    def learn_tokens(self, estimated: int, actual: int) -> None:
        """Learn from the prompt tokens that an engine counted where so many were estimated; both above 0."""
        self.actual = _MEMORY * self.actual + actual
        self.estimated = _MEMORY * self.estimated + estimated
        self.scale = min(max(self.actual / self.estimated, _LEAST_SCALE), _MOST_SCALE)


class Expectations:
    """Expectations by model; a new one begins with the means over those that are known.

    `unnamed` is what is expected where no served model is named.
    """

    def __init__(self) -> None:
        self.unnamed = Expectation()
        self._models: dict[str, Expectation] = {}

    @property
    def longest_residence(self) -> float:
        """The residence of the model whose answers take longest, in seconds."""
        return max(each.residence for each in (self.unnamed, *self._models.values()))

    @property
    def models(self) -> dict[str, Expectation]:
        """What is expected of each model, as it is now."""
        return {name: msgspec.structs.replace(known) for name, known in self._models.items()}

    def assume(self, unnamed: Expectation, models: Mapping[str, Expectation]) -> None:
        """Take over what another one has learnt."""
        self.unnamed = msgspec.structs.replace(unnamed)
        self._models = {name: msgspec.structs.replace(known) for name, known in models.items()}

    def of(self, model: str | None) -> Expectation:
        """Return what is expected of a model, which may be a stranger's name; not to be altered."""
        return self._models.get(model or "") or self.unnamed

    def known(self, model: str | None) -> Expectation:
        """Return what is expected of a model, to learn from its answers.

        Args:
            model: a name that is served; the caller keeps strangers' names away. None for all that have no such name.
        """
        if model is None:
            return self.unnamed
        found = self._models.get(model)
        if found is None:
            found = self._models[model] = self._mean()
            if len(self._models) > _MOST_MODELS:
                del self._models[next(iter(self._models))]
        return found

    def _mean(self) -> Expectation:
        known = list(self._models.values()) or [self.unnamed]
        return Expectation(fmean(each.output for each in known), fmean(each.residence for each in known))
