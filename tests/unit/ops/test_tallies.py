"""Counters and histograms."""

from hypothesis import given
from hypothesis import strategies as st

from ext_proc.ops.tallies import MAX_MODELS, Histogram, ModelLabels

BOUNDS = (0.1, 1.0, 10.0)


@given(st.lists(st.one_of(st.floats(0, 20), st.sampled_from(BOUNDS))))
def test_a_bucket_counts_all_values_up_to_its_bound(values: list[float]) -> None:
    """Buckets are cumulative and include their bound; the last one counts everything."""
    histogram = Histogram(BOUNDS)
    for value in values:
        histogram.observe(value)
    expected = [(str(bound), sum(v <= bound for v in values)) for bound in BOUNDS]
    assert histogram.cumulative() == [*expected, ("+Inf", len(values))]


def test_served_models_keep_their_names() -> None:
    """Only models that an endpoint serves become labels of their own."""
    models = ModelLabels(lambda: frozenset({"acme/chat-8b"}))
    assert [models.label(name) for name in ("acme/chat-8b", "x", None)] == ["acme/chat-8b", "other", "none"]


def test_a_flood_of_names_makes_no_labels() -> None:
    """Names that clients make up share one label, and known models keep theirs meanwhile (H06)."""
    models = ModelLabels(lambda: frozenset({"acme/chat-8b"}))
    assert {models.label(f"m-{number}") for number in range(50_000)} == {"other"}
    assert models.label("acme/chat-8b") == "acme/chat-8b"


def test_even_served_models_are_capped() -> None:
    """An engine that claims to serve ten thousand models does not get as many labels."""
    names = [f"m-{number}" for number in range(10_000)]
    models = ModelLabels(lambda: frozenset(names))
    assert len({models.label(name) for name in names}) == MAX_MODELS + 1
    assert models.label("m-0") == "m-0"


def test_a_model_name_that_is_not_unicode_is_escaped() -> None:
    """A lone surrogate in a served name does not break the exposition."""
    models = ModelLabels(lambda: frozenset({"x\ud800"}))
    assert models.label("x\ud800") == "x\\ud800"
