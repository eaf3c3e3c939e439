"""Names images, audio, video and files by a short digest, so that different ones make keys differ early."""

from __future__ import annotations

from typing import Any

from ext_proc.core.prompts.framing import MEDIA, digest, stable_json, utf8

KINDS = {
    "image": "image",
    "image_url": "image",
    "input_image": "image",
    "image_pil": "image",
    "image_embeds": "image",
    "audio": "audio",
    "audio_url": "audio",
    "input_audio": "audio",
    "video": "video",
    "video_url": "video",
    "input_video": "video",
    "file": "file",
    "input_file": "file",
    "document": "file",
}
_HOLDERS = ("source", "image_url", "input_audio", "audio_url", "video_url", "file", "image", "audio", "video")
_PAYLOADS = ("data", "url", "file_data", "file_url", "file_id", "image_url", "uuid")


def attachment(part: dict[str, Any]) -> bytes:
    """Render a media part of a message: its kind and the digest of its data or, failing that, of its address.

    Base64 data has the same digest whether it stands in a data URL or beside a media type.
    """
    kind = KINDS[part["type"]]
    payload = _payload(part)
    material = utf8(_data_of(payload)) if payload else stable_json(_plain(part))
    return MEDIA + kind.encode() + b":" + digest(material)


def embedded(value: Any) -> bytes:
    """Render media that stand beside a prompt and not in a message (SGLang's `image_data` and its like)."""
    if isinstance(value, str):
        return MEDIA + b"data:" + digest(utf8(_data_of(value)))
    if isinstance(value, list):
        return b"".join(map(_embedded_item, value))
    return b"" if value is None else _embedded_item(value)


def _embedded_item(value: Any) -> bytes:
    if isinstance(value, str):
        return MEDIA + b"data:" + digest(utf8(_data_of(value)))
    return MEDIA + b"data:" + digest(stable_json(value))


def _payload(part: dict[str, Any]) -> str:
    for holder in _HOLDERS:
        held = part.get(holder)
        if isinstance(held, str) and held:
            return held
        if isinstance(held, dict):
            found = _first_string(held)
            if found:
                return found
    return _first_string(part)


def _first_string(holder: dict[str, Any]) -> str:
    return next((v for key in _PAYLOADS if isinstance(v := holder.get(key), str) and v), "")


def _data_of(payload: str) -> str:
    if payload[:5].lower() == "data:":
        head, comma, data = payload.partition(",")
        return data if comma and head.endswith(";base64") else payload
    return payload


def _plain(part: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in part.items() if key != "cache_control"}
