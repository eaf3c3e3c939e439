"""Prompts without a conversation: text, token ids, and lists of either."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from ext_proc.core.prompts.prompt_inputs import weigh

if TYPE_CHECKING:
    from tests.unit.core.prompts.conftest import Read

COMPLETIONS, GENERATE = "/v1/completions", "/generate"
IDS = [101, 2023, 2003, 102] * 64


@pytest.mark.parametrize(
    ("prompt", "tokens"),
    [
        ("x" * 400, 100),
        (["x" * 400, "y" * 40, ""], 110),
        (["", "x" * 40], 10),
        (IDS, 256),
        ([IDS, [1, 2]], 258),
        ([["a"], 5], 2),
    ],
    ids=["text", "texts", "first-empty", "ids", "lists-of-ids", "nonsense"],
)
def test_tokens_are_summed_over_all_prompts(read: Read, prompt: Any, tokens: int) -> None:
    """Token ids count exactly, text by its size, and a batch is the sum of its prompts."""
    request = read(COMPLETIONS, {"prompt": prompt})
    assert request.prompt
    assert request.prompt_tokens == tokens


@pytest.mark.parametrize("prompt", [None, "", [], [""], [[]], {}], ids=repr)
def test_nothing_to_hash_is_said_so(read: Read, prompt: Any) -> None:
    """An empty prompt has no key."""
    assert read(COMPLETIONS, {"prompt": prompt}).unhashed == "no_prompt"


def test_the_first_prompt_makes_the_key(read: Read) -> None:
    """A batch is routed by its first prompt that is not empty."""
    assert read(COMPLETIONS, {"prompt": ["", "a", "b"]}).prompt == read(COMPLETIONS, {"prompt": "a"}).prompt
    assert read(COMPLETIONS, {"prompt": [[1, 2], [3]]}).prompt == read(COMPLETIONS, {"prompt": [1, 2]}).prompt


def test_ids_share_a_beginning_and_never_equal_text(read: Read) -> None:
    """Each id takes four bytes, so common ids are a common beginning; the marker keeps them apart from text."""
    longer, shorter = read(COMPLETIONS, {"prompt": IDS}).prompt, read(COMPLETIONS, {"prompt": IDS[:128]}).prompt
    assert longer.startswith(shorter)
    assert len(longer) - len(shorter) == 4 * 128
    assert read(COMPLETIONS, {"prompt": [0x61616161]}).prompt[1:] == b"aaaa"
    assert read(COMPLETIONS, {"prompt": "aaaa"}).prompt != read(COMPLETIONS, {"prompt": [0x61616161]}).prompt


@pytest.mark.parametrize("odd", [-1, 2**40, 10**30, None, 1.5, "a", True, {}], ids=repr)
def test_ids_out_of_range_are_tolerated(read: Read, odd: Any) -> None:
    """What is no token id still gives a stable key and counts as one."""
    request = read(COMPLETIONS, {"prompt": [1, odd, 2]})
    assert request.prompt_tokens == 3
    assert request == read(COMPLETIONS, {"prompt": [1, odd, 2]})


@pytest.mark.parametrize(
    ("native", "prompt"),
    [
        ({"text": "a"}, "a"),
        ({"text": ["a", "b"]}, "a"),
        ({"input_ids": [[1, 2], [3]]}, [1, 2]),
        ({"token_ids": [1, 2]}, [1, 2]),
        ({"inputs": "a"}, "a"),
        ({"prompt": "a"}, "a"),
    ],
    ids=["text", "texts", "input_ids", "token_ids", "inputs", "prompt"],
)
def test_native_prompts_equal_completion_prompts(read: Read, native: Any, prompt: Any) -> None:
    """Engines' own calls name the prompt differently and share the key."""
    assert read(GENERATE, native).prompt == read(COMPLETIONS, {"prompt": prompt}).prompt


def test_media_beside_a_native_prompt_take_part(read: Read) -> None:
    """The same text about two pictures has two keys."""
    keys = {read(GENERATE, {"text": "what?", "image_data": image}).prompt for image in (None, "a", ["b"], [["b"]], {})}
    assert len(keys) == 5


def test_data_urls_weigh_nothing() -> None:
    """What media cost has nothing to do with the length of their base64."""
    assert weigh({"text": "x" * 40, "url": "data:image/png;base64," + "A" * 4000}) == 10
