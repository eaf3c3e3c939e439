"""Answers that need no generated text: embeddings, rerank, score, token lookups and the list of models."""

from __future__ import annotations

import base64
import struct
from collections.abc import Sequence
from typing import Any

from xxhash import xxh3_64_intdigest

from ext_proc.sim import tokens
from ext_proc.sim.asks import integer, prompt_list
from ext_proc.sim.errors import bad_request
from ext_proc.sim.shapes import Document
from ext_proc.sim.templates import render_chat

DIMENSIONS = 16
MAX_DIMENSIONS = 4096


def embedding_prompts(data: Document) -> tuple[bytes, ...]:
    """The inputs of an embeddings request.

    Raises:
        ApiError: there is none, or it is neither text nor token ids (400).
    """
    if "messages" in data:
        return (render_chat(data),)
    return prompt_list(data.get("input"), "input")


def embeddings(data: Document, context_id: str, created: int, prompts: Sequence[bytes]) -> Document:
    """The answer of `/v1/embeddings`: vectors that depend on the input only."""
    dimensions = integer(data, "dimensions", 1, MAX_DIMENSIONS) or DIMENSIONS
    items = []
    for index, prompt in enumerate(prompts):
        vector: Any = _vector(prompt, dimensions)
        if data.get("encoding_format") == "base64":
            vector = base64.b64encode(struct.pack(f"<{dimensions}f", *vector)).decode()
        items.append({"index": index, "object": "embedding", "embedding": vector})
    return {
        "id": f"embd-{context_id}",
        "object": "list",
        "created": created,
        "model": data.get("model"),
        "data": items,
        "usage": _usage(prompts),
    }


def rerank_prompts(data: Document) -> tuple[bytes, ...]:
    """Query and document, one prompt for each document of a rerank request.

    Raises:
        ApiError: query or documents are missing (400).
    """
    query, documents = data.get("query"), data.get("documents")
    if not isinstance(query, str) or not isinstance(documents, list) or not documents:
        raise bad_request("query must be text and documents a non-empty list", "documents")
    return tuple(f"{query}\n{_document_text(document)}".encode() for document in documents)


def rerank(data: Document, context_id: str, prompts: Sequence[bytes]) -> Document:
    """The answer of `/v1/rerank`: documents by falling score."""
    results: list[Document] = [
        {
            "index": index,
            "document": {"text": _document_text(data["documents"][index])},
            "relevance_score": _score(prompt),
        }
        for index, prompt in enumerate(prompts)
    ]
    results.sort(key=lambda result: -result["relevance_score"])
    top = integer(data, "top_n", 0) or len(results)
    usage = _usage(prompts)
    return {"id": f"rerank-{context_id}", "model": data.get("model"), "usage": usage, "results": results[:top]}


def score_prompts(data: Document) -> tuple[bytes, ...]:
    """Pairs of texts of a score request, one prompt for each pair.

    Raises:
        ApiError: the texts are missing or their numbers do not match (400).
    """
    first = _texts(data, ("text_1", "queries"))
    second = _texts(data, ("text_2", "documents", "items"))
    if len(first) == 1:
        first *= len(second)
    if len(first) != len(second):
        raise bad_request("text_1 must be one text, or as many as text_2", "text_1")
    return tuple(f"{one}\n{other}".encode() for one, other in zip(first, second, strict=True))


def score(data: Document, context_id: str, created: int, prompts: Sequence[bytes]) -> Document:
    """The answer of `/v1/score`."""
    return {
        "id": f"score-{context_id}",
        "object": "list",
        "created": created,
        "model": data.get("model"),
        "data": [{"index": index, "object": "score", "score": _score(prompt)} for index, prompt in enumerate(prompts)],
        "usage": _usage(prompts),
    }


def tokenize(data: Document, max_model_len: int) -> Document:
    """The answer of `/tokenize`, for a prompt or for messages.

    Raises:
        ApiError: neither is there (400).
    """
    prompt = render_chat(data) if "messages" in data else prompt_list(data.get("prompt"), "prompt")[0]
    ids = tokens.to_ids(prompt)
    return {"count": len(ids), "max_model_len": max_model_len, "tokens": ids, "token_strs": None}


def detokenize(data: Document) -> Document:
    """The answer of `/detokenize`.

    Raises:
        ApiError: `tokens` are not token ids (400).
    """
    try:
        return {"prompt": tokens.to_text(data.get("tokens") or ())}
    except ValueError as error:
        raise bad_request(str(error), "tokens") from error


def models_page(models: Sequence[str], created: int, max_model_len: int) -> Document:
    """The answer of `/v1/models`."""
    cards: list[Document] = [
        {
            "id": name,
            "object": "model",
            "created": created,
            "owned_by": "vllm",
            "root": name,
            "parent": None,
            "max_model_len": max_model_len,
            "permission": [],
        }
        for name in models
    ]
    return {"object": "list", "data": cards}


def _usage(prompts: Sequence[bytes]) -> Document:
    total = sum(map(tokens.count_tokens, prompts))
    return {"prompt_tokens": total, "total_tokens": total, "completion_tokens": 0, "prompt_tokens_details": None}


def _vector(prompt: bytes, dimensions: int) -> list[float]:
    return [xxh3_64_intdigest(prompt, place) / 2**63 - 1 for place in range(dimensions)]


def _score(prompt: bytes) -> float:
    return xxh3_64_intdigest(prompt) / 2**64


def _document_text(document: Any) -> str:
    text = document.get("text") if isinstance(document, dict) else document
    if not isinstance(text, str):
        raise bad_request("a document must be text, or an object with text", "documents")
    return text


def _texts(data: Document, names: Sequence[str]) -> list[str]:
    value = next((data[name] for name in names if data.get(name) is not None), None)
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list) or not texts or not all(isinstance(text, str) for text in texts):
        raise bad_request(f"{names[0]} must be text or a list of texts", names[0])
    return texts
