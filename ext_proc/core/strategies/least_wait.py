"""least-wait: the endpoint that can produce the first token soonest; every term is in seconds.

For endpoint j, a prompt of L tokens, and o expected output tokens:

    hit_j  = tokens that the index believes it holds, at most L - 16
    u_j    = max(L - hit_j, 16)                            uncached tokens
    e_j    = u_j * (1 + (L - u_j / 2) / A)                 effective tokens: linear part and attention
    S_j    = e_j / R_j                                     own prefill
    W_j    = max(0, B_j - now)                             virtual queue
    E_j    = max(0, H_j + L - c_j - C_j)                   tokens that have to come free
    K_j    = D * min(E_j, H_j) / H_j + D * max(0, E_j - H_j)   wait for KV memory
    q      = min_j (W_j + K_j)
    f_j    = 1 + min(2, q) + 0.03 * min(n_j, 64)
    x_j    = S_j * (1 - min e / e_j)                       own prefill of what another one holds
    y_j    = P * min(1, mean n) * max(0, min(1, 2 - r / 4)) * x_j   what that costs others
    cost_j = W_j + S_j * f_j + K_j + y_j

The n_j term prices interference with running requests. H_j is the memory that those hold: their prompts, of which an
engine holds once what several begin with, and half of the answer that is expected of each, since on average so much of
it is there; c_j is what of this prompt they hold already. Engines let in what fits now, and make room for what grows as
others end. What is shared is counted for requests that came when half of the memory was spoken for; where less is, K is
0 anyhow. More than is held never comes free: each token beyond costs D, so that what fits nowhere goes where least is
in the way. The q factor makes a backlogged fleet care more for what it has cached. What is computed again makes others
wait, and evicts what they have cached (y_j); but where nobody is it costs nobody anything, and the more requests in
flight begin alike (r), the more will use the copy. P is `copy_price`; R, A, o and D are learnt. Where the memory of an
endpoint (C) is unknown the smallest known one is assumed; if none is known, K is 0.

Of an engine with N data-parallel ranks one serves the request. So R, C, n, M and H are those of one of them, all its
requests and tokens over N, and W is how long it takes until one is free (`rank_queue`).

What is popular gets copies: if p > 4 requests that begin with the same held prefix are in flight, and as many have
ended while others were, a candidate that nobody waits for (W_j + K_j = 0) pays for what it lacks of that prefix only
one share in p / 4, since the others will use the copy:

    cost_j = S_j * f_j - x_j * f_j * (1 - 4 / p)           if x_j is at most D / 2

Their K_j counts all tokens of all requests in flight, M_j, however many share them: an engine holds a prefix once, but
reads it for each that decodes, and what is copied is copied to be spread.

    E_j    = max(0, M_j + L + o - 0.95 C_j)                and K_j by M_j

Without copies, requests that share a long system prompt stay for long on the few engines that had it first, and crowd
each other while they decode: simulated at 0.6 of capacity, first tokens took 1.18 times as long as with a view of the
engines' true caches, and the others 1.21 times; with them 1.04 and 1.04. Requests that begin alike but came all at once
are left together, and none spends more on a copy than half of what requests usually take.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from operator import add
from typing import ClassVar

import msgspec

from ext_proc.core.attention import START
from ext_proc.core.candidates import Candidates
from ext_proc.core.load import Load
from ext_proc.core.model import Endpoint, InferenceRequest
from ext_proc.core.prefill import LEAST_UNCACHED
from ext_proc.core.strategies import Context, Ranking

_BACKLOG_CAP = 2.0
_INTERFERENCE = 0.03
_INTERFERENCE_CAP = 64
_READABLE = 0.95
_PER_COPY = 4
"""Requests in flight with the same prefix that bear the price of one more copy of it together."""

_LONGEST_COPYING = 0.5
"""Share of the usual residence that a request may spend on making a copy."""


class LeastWaitParameters(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Parameters of least-wait.

    Attributes:
        prefill_rate: prompt tokens per second (R) of endpoints that configure none, until it is learnt; too low is
            safer than too high.
        attention_tokens: context length (A) at which attention costs as much as all else, until it is learnt; 24,000
            suits an 8B model.
        learn: False to keep to the two above and to the rates that endpoints configure.
        copy_price: seconds that a second of computing what another endpoint holds costs others (y); more keeps
            conversations where they are cached, less shortens queues, and with 0 only the request's own wait counts.
    """

    prefill_rate: float = 8000.0
    attention_tokens: float = START
    learn: bool = True
    copy_price: float = 3.0

    def __post_init__(self) -> None:
        """Refuse what cannot be divided by, or into."""
        if not (0 < self.prefill_rate < inf and 0 < self.attention_tokens < inf):
            raise ValueError("prefill_rate and attention_tokens must be finite numbers above 0")
        if not 0 <= self.copy_price < inf:
            raise ValueError("copy_price must be a finite number, 0 or more")


class LeastWait:
    """The default strategy."""

    Parameters: ClassVar[type[LeastWaitParameters]] = LeastWaitParameters

    def __init__(self, parameters: LeastWaitParameters | None = None) -> None:
        self._parameters = parameters or LeastWaitParameters()

    def rank(self, request: InferenceRequest, candidates: Sequence[Endpoint], context: Context) -> Ranking:
        """Price each candidate in seconds until the first token."""
        if not isinstance(candidates, Candidates):
            candidates = Candidates(candidates)
        # Column by column: with hundreds of candidates this takes two thirds of the time of a loop over them.
        now, loads = context.now, context.loads
        queues = [until - now if (until := load.busy_until) > now else 0.0 for load in loads]
        parameters = self._parameters
        attention = (parameters.learn and context.attention) or parameters.attention_tokens
        works, prefills = self._prefills(request.prompt_tokens, attention, candidates, context)
        memories = _memories(request.prompt_tokens, candidates, context)
        waits = list(map(add, queues, memories)) if memories else queues
        backlog, counts = min(waits), [load.in_flight for load in loads]
        factor, share, most = 1 + min(_BACKLOG_CAP, backlog), _INTERFERENCE, _INTERFERENCE_CAP
        costs = [
            wait + prefill * (factor + share * (n if n < most else most))  # noqa: FURB136  a call for each takes longer
            for wait, prefill, n in zip(waits, prefills, counts)  # noqa: B905  the keyword takes a fifth of it all
        ]
        if candidates.ranks is not None:
            costs = list(map(add, costs, _reliefs(prefills, candidates.ranks, loads)))
        copying: Sequence[float] = ()
        if (least := min(works)) != max(works):
            engines = sum(candidates.ranks) if candidates.ranks else len(counts)
            price = parameters.copy_price * min(1.0, sum(counts) / engines)
            copying = _copying(least, price, costs, waits, works, prefills, context)
            costs = list(map(add, costs, copying)) if copying else costs
        unfit = _unfit(request.prompt_tokens, candidates) if memories else frozenset()
        return Ranking(
            costs, queues, works, prefills, memories, copying, factor - 1, share, most, True, attention, unfit=unfit
        )

    def _prefills(
        self, length: int, attention: float, candidates: Candidates, context: Context
    ) -> tuple[Sequence[float], Sequence[float]]:
        """Return the own prefill at each candidate, in effective tokens (e) and in seconds (S)."""
        parameters, hits = self._parameters, context.hits
        rates: Sequence[float | None] | None = context.rates if parameters.learn else candidates.prefill_rates
        work: dict[int, float] = {}
        for hit in set(hits):
            uncached = max(LEAST_UNCACHED, length - hit)
            work[hit] = uncached * (1 + (length - uncached / 2) / attention)
        works = [work[hit] for hit in hits]
        rate = parameters.prefill_rate
        if rates:
            return works, [work / (own or rate) for work, own in zip(works, rates, strict=True)]
        return works, [work / rate for work in works]


def _reliefs(prefills: Sequence[float], ranks: Sequence[int], loads: Sequence[Load]) -> list[float]:
    """Return what interference costs less than if all requests of an endpoint were in one rank, below 0."""
    most = _INTERFERENCE_CAP
    return [
        _INTERFERENCE * prefill * (min(load.in_flight / count, most) - min(load.in_flight, most))
        for prefill, count, load in zip(prefills, ranks, loads, strict=True)
    ]


def _copying(
    least: float,
    price: float,
    costs: Sequence[float],
    waits: Sequence[float],
    works: Sequence[float],
    prefills: Sequence[float],
    context: Context,
) -> list[float]:
    """Return what it costs others, or saves them, that each candidate computes what another holds; empty if nothing."""
    if context.lasting <= _PER_COPY:
        price *= min(1.0, 2 - context.siblings / _PER_COPY)
        if price <= 0:
            return []
        return [price * prefill * (1 - least / work) for work, prefill in zip(works, prefills)]  # noqa: B905  as above
    share, most = 1 - _PER_COPY / context.lasting, _LONGEST_COPYING * context.residence
    return [
        cost * (least / work - 1) * share if wait <= 0 and prefill * (1 - least / work) <= most else 0.0
        for cost, wait, work, prefill in zip(costs, waits, works, prefills, strict=True)
    ]


def _memories(length: int, candidates: Candidates, context: Context) -> list[float]:
    """Return the seconds of waiting for KV memory (K) at each candidate; empty if nobody waits, as nearly always."""
    least, loads, answer = candidates.least_kv_tokens, context.loads, context.output
    if least is None or max([load.tokens for load in loads]) + length + answer <= _READABLE * least:
        return []
    sizes, residence = [size or least for size in candidates.kv_tokens], context.residence
    if context.lasting > _PER_COPY:
        held = _by_rank([load.tokens for load in loads], candidates)
        missing = [tokens + length + answer - _READABLE * size for tokens, size in zip(held, sizes, strict=True)]
    else:
        held = _by_rank([load.pinned for load in loads], candidates)
        missing = [tokens + length - size for tokens, size in zip(held, sizes, strict=True)]
        missing = [
            tokens - load.sharing.common(context.chain) if tokens > 0 and load.sharing else tokens
            for tokens, load in zip(missing, loads, strict=True)
        ]
    return [
        _wait(excess, max(tokens, 0.0)) * residence if excess > 0 else 0.0
        for excess, tokens in zip(missing, held, strict=True)
    ]


def _unfit(length: int, candidates: Candidates) -> frozenset[int]:
    """Return the positions of candidates whose whole memory is smaller than the prompt."""
    least = candidates.least_kv_tokens or 0
    return frozenset([place for place, size in enumerate(candidates.kv_tokens) if length > (size or least)])


def _by_rank(tokens: Sequence[int], candidates: Candidates) -> list[float]:
    """Return what one rank of each candidate has of its tokens."""
    ranks = candidates.ranks
    return list(map(float, tokens)) if ranks is None else [own / n for own, n in zip(tokens, ranks, strict=True)]


def _wait(excess: float, held: float) -> float:
    """Return how many residences it takes until so many tokens are free; one for each that never will be."""
    return excess / held if excess <= held else (1.0 if held else 0.0) + excess - held
