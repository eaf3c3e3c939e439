"""Makes a small tokenizer of real kind, with a chat template, in a folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
TEMPLATE = (
    "{%- if tools %}<|im_start|>system\n{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}<|im_end|>\n{% endif %}"
    "{%- for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}"
    "{%- for call in m['tool_calls'] or [] %}{{ call['function']['arguments'] | tojson }}{% endfor %}<|im_end|>\n"
    "{% endfor %}{%- if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TEXT = "It was a bright cold day in the harbour, and three rivers met below the old town. def f(x): return x + 1\n"


def write(folder: Path, *, template: str | None = TEMPLATE, added: tuple[AddedToken, ...] = (), **config: Any) -> Path:
    """Write a byte-level BPE tokenizer that knows a few hundred words' worth of pieces."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([TEXT] * 3, trainer)
    tokenizer.add_tokens(list(added))
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    described = {"eos_token": "<|im_end|>", "bos_token": None, **({"chat_template": template} if template else {})}
    (folder / "tokenizer_config.json").write_text(json.dumps(described | config))
    return folder
