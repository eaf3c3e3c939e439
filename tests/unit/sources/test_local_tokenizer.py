"""The tokenizer on this machine: exact, in pieces too."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer

from ext_proc.core.errors import ConfigError
from ext_proc.core.prompts.token_question import TokenQuestion
from ext_proc.sources.local_tokenizer import Cuts, LocalTokenizer
from ext_proc.sources.tokenizing import TokenizeError
from tests.unit.sources.tokenizer_files import SPECIAL, TEXT, write


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tokenizer with its template."""
    return write(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> Iterator[LocalTokenizer]:
    """The tokenizer, with room for a few thousand tokens."""
    made = LocalTokenizer(folder, 5_000)
    yield made
    made.close()


@pytest.fixture(scope="module")
def reference(folder: Path) -> Tokenizer:
    """The library by itself."""
    return Tokenizer.from_file(str(folder / "tokenizer.json"))


def chat(*contents: Any, **members: Any) -> TokenQuestion:
    """Ask for a conversation whose turns alternate."""
    messages = [{"role": ("user", "assistant")[n % 2], "content": content} for n, content in enumerate(contents)]
    return ask({"messages": messages, **members}, chat=True)


def ask(members: dict[str, Any], *, chat: bool = False) -> TokenQuestion:
    """Ask for a body's members."""
    return TokenQuestion(json.dumps(members).encode()[1:-1], chat=chat)


def rendered(*contents: str) -> str:
    """Write what the template makes of such a conversation."""
    turns = (f"<|im_start|>{('user', 'assistant')[n % 2]}\n{text}<|im_end|>\n" for n, text in enumerate(contents))
    return "".join(turns) + "<|im_start|>assistant\n"


def test_a_conversation_is_rendered_and_tokenized(tokenizer: LocalTokenizer, reference: Tokenizer) -> None:
    """The ids are those of the rendered text."""
    ids = reference.encode(rendered("hello", "hi", TEXT), add_special_tokens=False).ids
    assert list(tokenizer.tokenize(chat("hello", "hi", TEXT))) == ids
    assert list(tokenizer.tokenize(chat([{"type": "text", "text": "hello"}], "hi", TEXT))) == ids


def test_a_completion_is_tokenized_as_it_is(tokenizer: LocalTokenizer, reference: Tokenizer) -> None:
    """No template, and special tokens of the tokenizer's own unless the client wants none."""
    assert list(tokenizer.tokenize(ask({"prompt": TEXT}))) == reference.encode(TEXT).ids


def test_tools_and_the_generation_prompt_are_part_of_it(tokenizer: LocalTokenizer, reference: Tokenizer) -> None:
    """The template sees what an engine's would see, in the client's order of keys."""
    tool = {"type": "function", "function": {"name": "f", "parameters": {"b": 1, "a": "<"}}}
    text = '<|im_start|>system\n{"type": "function", "function": {"name": "f", "parameters": {"b": 1, "a": "<"}}}\n'
    text += "<|im_end|>\n" + rendered("x").removesuffix("<|im_start|>assistant\n")
    ids = reference.encode(text, add_special_tokens=False).ids
    assert list(tokenizer.tokenize(chat("x", tools=[tool], add_generation_prompt=False))) == ids


def test_arguments_of_calls_are_objects_to_the_template(tokenizer: LocalTokenizer) -> None:
    """Clients send them as text, and engines read that before they render."""
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    as_text = [{"role": "assistant", "content": None, "tool_calls": [call]}]
    call = {**call, "function": {"name": "f", "arguments": {"a": 1}}}
    as_object = [{"role": "assistant", "content": None, "tool_calls": [call]}]
    first, second = (tokenizer.tokenize(ask({"messages": m}, chat=True)) for m in (as_text, as_object))
    assert first == second


PIECES = st.sampled_from([*"ab \n<|>ß東", *SPECIAL, "im_end", " <|im_start|>user\n"])
TEXTS = st.lists(PIECES, max_size=12).map("".join)


@given(st.lists(TEXTS, min_size=1, max_size=5))
def test_pieces_have_the_tokens_of_the_whole(
    tokenizer: LocalTokenizer, reference: Tokenizer, contents: list[str]
) -> None:
    """Whatever a conversation holds, special tokens as text included, and whatever is kept of ones before."""
    ids = reference.encode(rendered(*contents), add_special_tokens=False).ids
    assert list(tokenizer.tokenize(chat(*contents))) == ids


def test_only_what_is_new_is_tokenized(folder: Path) -> None:
    """A further turn of a conversation costs its own length."""
    tokenizer = LocalTokenizer(folder, 100_000)
    encoded: list[str] = []
    encoder = tokenizer._encoder

    class Spy:
        def encode_batch_fast(self, texts: list[str], **options: Any) -> Any:
            encoded.extend(texts)
            return encoder.encode_batch_fast(texts, **options)

    tokenizer._encoder = Spy()
    tokenizer.tokenize(chat(TEXT * 20))
    encoded.clear()
    tokenizer.tokenize(chat(TEXT * 20, "short", "again"))
    assert sum(map(len, encoded)) < 100
    tokenizer.close()


def _described(*tokens: dict[str, Any], pre: Any = None) -> dict[str, Any]:
    return {"added_tokens": list(tokens), "pre_tokenizer": pre}


@pytest.mark.parametrize(
    ("described", "pieces"),
    [
        (_described({"content": "<e>"}), ["a<e>", "b<e>", " c"]),
        (_described({"content": "<e>", "rstrip": True}), None),
        (_described({"content": "<e>", "normalized": True}), None),
        (_described({"content": "<e>", "single_word": True}), None),
        (_described({"content": "<e>"}, {"content": "<e> c"}), ["a<e>b<e> c"]),
        (_described({"content": "<e>"}, {"content": "b<e", "rstrip": True}), ["a<e>", "b<e> c"]),
        (_described({"content": "<e>"}, pre={"type": "Metaspace", "prepend_scheme": "first"}), None),
        (
            _described(
                {"content": "<e>"},
                pre={"type": "Sequence", "pretokenizers": [{"type": "Metaspace", "prepend_scheme": "first"}]},
            ),
            None,
        ),
        (_described(), None),
    ],
    ids=["plain", "swallows", "normalized", "word", "longer", "overlaps", "first", "nested first", "none"],
)
def test_a_text_is_cut_only_where_that_is_exact(described: dict[str, Any], pieces: list[str] | None) -> None:
    """Each way in which a special token could reach beyond the cut forbids it."""
    cuts = Cuts.of(described)
    assert (cuts.pieces("a<e>b<e> c") if cuts else None) == pieces


def test_tokens_that_swallow_blanks_stay_exact(tmp_path: Path) -> None:
    """With a special token that takes the blanks behind it, pieces and whole still agree."""
    added = (AddedToken("<pad>", rstrip=True, special=True), AddedToken("<in>", lstrip=True, special=True))
    tokenizer = LocalTokenizer(write(tmp_path, added=added), 1_000)
    text = rendered("a <in> b<pad>  c", " <in>")
    whole = tokenizer._encoder.encode(text, add_special_tokens=False).ids
    assert list(tokenizer.tokenize(chat("a <in> b<pad>  c", " <in>"))) == whole
    tokenizer.close()


async def test_it_runs_beside_the_event_loop(tokenizer: LocalTokenizer) -> None:
    """What the loop awaits is what the thread made."""
    assert await tokenizer.tokens(chat("hello"), "m", ()) == tokenizer.tokenize(chat("hello"))


@pytest.mark.parametrize(
    ("question", "reason"),
    [
        (chat("x", chat_template="{{ 1 }}"), "unsupported"),
        (chat("x", continue_final_message=True), "unsupported"),
        (ask({"messages": 7}, chat=True), "unsupported"),
        (ask({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, chat=True), "unsupported"),
        (ask({"prompt": {"odd": 1}}), "unsupported"),
        (TokenQuestion(b'"prompt":'), "unsupported"),
    ],
    ids=["own template", "continued", "no list", "image", "odd prompt", "no json"],
)
def test_what_only_an_engine_can_do_is_left_to_it(
    tokenizer: LocalTokenizer, question: TokenQuestion, reason: str
) -> None:
    """Nothing but TokenizeError comes out."""
    with pytest.raises(TokenizeError) as raised:
        tokenizer.tokenize(question)
    assert raised.value.reason == reason


def test_a_model_without_a_template_has_no_conversations(tmp_path: Path) -> None:
    """Completions are tokenized all the same."""
    tokenizer = LocalTokenizer(write(tmp_path, template=None), 1_000)
    assert tokenizer.tokenize(ask({"prompt": "x"}))
    with pytest.raises(TokenizeError, match="no_template"):
        tokenizer.tokenize(chat("x"))
    tokenizer.close()


def test_the_template_may_be_a_file_of_its_own_or_one_of_several(tmp_path: Path) -> None:
    """Both ways in which models carry it are read."""
    write(tmp_path / "file", template=None)
    (tmp_path / "file" / "chat_template.jinja").write_text("{{ eos_token }}")
    several = [{"name": "rag", "template": "r"}, {"name": "default", "template": "{{ eos_token }}"}]
    write(tmp_path / "list", template=None, chat_template=several, eos_token={"content": "<|im_end|>"})
    made = [LocalTokenizer(tmp_path / name, 1_000) for name in ("file", "list")]
    assert [list(tokenizer.tokenize(chat("x"))) for tokenizer in made] == [[2], [2]]
    for tokenizer in made:
        tokenizer.close()


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({}, "tokenizer.json cannot be read: No such file or directory$"),
        ({"tokenizer.json": "{}"}, "is no tokenizer"),
        ({"chat_template.jinja": "{% if %}"}, "chat template cannot be read"),
    ],
    ids=["missing", "broken", "template"],
)
def test_files_that_cannot_be_used_are_refused(tmp_path: Path, files: dict[str, str], message: str) -> None:
    """At the start, with the file at fault."""
    if "chat_template.jinja" in files:
        write(tmp_path)
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(ConfigError, match=message):
        LocalTokenizer(tmp_path, 1_000)


def test_a_template_can_do_no_harm(tmp_path: Path) -> None:
    """Templates come with models from strangers: they reach nothing of this process."""
    evil = "{{ ''.__class__.__mro__[1].__subclasses__() }}"
    tokenizer = LocalTokenizer(write(tmp_path, template=evil), 1_000)
    with pytest.raises(TokenizeError, match="template"):
        tokenizer.tokenize(chat("x"))
    tokenizer.close()
