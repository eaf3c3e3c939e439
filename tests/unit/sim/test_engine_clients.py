"""The simulated engine as the real client packages see it."""

from __future__ import annotations

from collections.abc import AsyncIterator

import anthropic
import openai
import pytest

from ext_proc.sim.engine import SimEngine

MODEL = "sim-model"
MESSAGES = [{"role": "user", "content": "tell me of the sea, " * 20}]


@pytest.fixture
async def openai_client(engine: SimEngine) -> AsyncIterator[openai.AsyncOpenAI]:
    """OpenAI's client, without retries."""
    async with openai.AsyncOpenAI(base_url=f"{engine.url}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture
async def anthropic_client(engine: SimEngine) -> AsyncIterator[anthropic.AsyncAnthropic]:
    """Anthropic's client, without retries."""
    async with anthropic.AsyncAnthropic(base_url=engine.url, api_key="none", max_retries=0) as client:
        yield client


async def test_openai_chat(openai_client: openai.AsyncOpenAI) -> None:
    """A chat completion has text, a reason, and usage with cached tokens on the second time."""
    answers = [await openai_client.chat.completions.create(model=MODEL, messages=MESSAGES) for _ in range(2)]
    usage = answers[1].usage
    assert answers[0].choices[0].message.content == answers[1].choices[0].message.content
    assert answers[0].choices[0].finish_reason == "stop"
    assert usage is not None
    assert usage.prompt_tokens_details is not None
    assert 0 < (usage.prompt_tokens_details.cached_tokens or 0) < usage.prompt_tokens


async def test_openai_chat_stream(openai_client: openai.AsyncOpenAI) -> None:
    """A stream adds up to the answer without a stream, and ends with its usage."""
    whole = await openai_client.chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=9)
    stream = await openai_client.chat.completions.create(
        model=MODEL,
        messages=MESSAGES,
        max_tokens=9,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = [chunk async for chunk in stream]
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-2].choices[0].finish_reason == "length"
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 9


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_openai_completions_of_several_prompts(openai_client: openai.AsyncOpenAI, stream: bool) -> None:
    """A list of prompts with two answers each gives all answers under their own index."""
    answer = await openai_client.completions.create(model=MODEL, prompt=["a", "b"], n=2, max_tokens=3, stream=stream)
    if isinstance(answer, openai.AsyncStream):
        choices = [choice async for chunk in answer for choice in chunk.choices]
    else:
        choices = answer.choices
    assert {choice.index for choice in choices} == {0, 1, 2, 3}


async def test_openai_responses(openai_client: openai.AsyncOpenAI) -> None:
    """A response has its text and usage in the form of that API."""
    answer = await openai_client.responses.create(model=MODEL, input="tell me of the sea", instructions="be brief")
    assert answer.status == "completed"
    assert answer.output_text
    assert answer.usage is not None
    assert answer.usage.output_tokens * 4 == len(answer.output_text)


async def test_openai_responses_stream(openai_client: openai.AsyncOpenAI) -> None:
    """The package's own accumulation of a response's events gives the final response."""
    async with openai_client.responses.stream(model=MODEL, input="tell me of the sea") as stream:
        events = [event async for event in stream]
        final = await stream.get_final_response()
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == final.output_text


async def test_openai_embeddings(openai_client: openai.AsyncOpenAI) -> None:
    """Embeddings have the wanted dimensions and depend on the text; the package asks for base64."""
    answer = await openai_client.embeddings.create(model=MODEL, input=["a", "b", "a"], dimensions=8)
    first, second, third = (item.embedding for item in answer.data)
    assert len(first) == 8
    assert first == third != second


async def test_openai_models(openai_client: openai.AsyncOpenAI) -> None:
    """The served models can be listed."""
    assert [model.id async for model in openai_client.models.list()] == [MODEL]


async def test_openai_errors(openai_client: openai.AsyncOpenAI) -> None:
    """An unknown model and a broken request raise the package's own errors."""
    with pytest.raises(openai.NotFoundError, match="does not exist"):
        await openai_client.chat.completions.create(model="other", messages=MESSAGES)
    with pytest.raises(openai.BadRequestError, match="messages"):
        await openai_client.chat.completions.create(model=MODEL, messages=[])


async def test_anthropic_message(anthropic_client: anthropic.AsyncAnthropic) -> None:
    """A message has text, a reason, and its cached tokens apart from the other input tokens."""
    create = anthropic_client.messages.create
    first, second = [await create(model=MODEL, max_tokens=9, messages=MESSAGES) for _ in range(2)]
    assert first.content[0].type == "text"
    assert first.stop_reason == "max_tokens"
    assert second.usage.cache_read_input_tokens
    assert second.usage.input_tokens + second.usage.cache_read_input_tokens == first.usage.input_tokens


async def test_anthropic_stream(anthropic_client: anthropic.AsyncAnthropic) -> None:
    """The package's own accumulation of a stream gives the message without a stream."""
    whole = await anthropic_client.messages.create(model=MODEL, max_tokens=500, messages=MESSAGES)
    async with anthropic_client.messages.stream(model=MODEL, max_tokens=500, messages=MESSAGES) as stream:
        text = "".join([piece async for piece in stream.text_stream])
        final = await stream.get_final_message()
    assert final.content[0].type == "text"
    assert whole.content[0].type == "text"
    assert text == final.content[0].text == whole.content[0].text
    assert final.stop_reason == "end_turn"
    assert final.usage.output_tokens == whole.usage.output_tokens


async def test_anthropic_token_count(anthropic_client: anthropic.AsyncAnthropic) -> None:
    """Counting tokens agrees with the usage of the same request."""
    counted = await anthropic_client.messages.count_tokens(model=MODEL, messages=MESSAGES)
    message = await anthropic_client.messages.create(model=MODEL, max_tokens=9, messages=MESSAGES)
    assert counted.input_tokens == message.usage.input_tokens


async def test_anthropic_errors(anthropic_client: anthropic.AsyncAnthropic) -> None:
    """Errors have Anthropic's shape on Anthropic's paths."""
    with pytest.raises(anthropic.NotFoundError) as caught:
        await anthropic_client.messages.create(model="other", max_tokens=9, messages=MESSAGES)
    assert caught.value.body == {
        "type": "error",
        "error": {"type": "not_found_error", "message": "The model `other` does not exist."},
    }
