"""Makes the folders of a small model (configuration, tokenizer, chat template; no weights) and of its adapters."""

from __future__ import annotations

import json
import sysconfig
from pathlib import Path
from typing import Any, NamedTuple

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

VOCABULARY = 4096
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
CONTEXT = 8192

_TRAINING_FILES = 40
_TEMPLATE = (
    "{%- if tools %}<|im_start|>system\n"
    "{%- if messages[0]['role'] == 'system' %}{{ messages[0]['content'] }}{%- endif %}\n# Tools\n"
    "{%- for tool in tools %}\n{{ tool | tojson }}{%- endfor %}<|im_end|>\n"
    "{%- elif messages[0]['role'] == 'system' %}<|im_start|>system\n{{ messages[0]['content'] }}<|im_end|>\n"
    "{%- endif %}"
    "{%- for message in messages %}{%- if not (loop.first and message['role'] == 'system') %}"
    "<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{%- endif %}{%- endfor %}"
    "{%- if add_generation_prompt %}<|im_start|>assistant\n{%- endif %}"
)


class Shape(NamedTuple):
    """How large a model is.

    Attributes:
        hidden: width of a layer.
        layers: how many.
        head: width of an attention head.
    """

    hidden: int = 512
    layers: int = 4
    head: int = 64


def make_model(folder: Path, shape: Shape = Shape()) -> Path:  # noqa: B008  it cannot be changed
    """Make a model for engines that invent its weights; returns the folder.

    The large ones' attention is expensive and their prefill slow: a prompt of 4,000 tokens keeps a core busy for a
    second, and next to nothing once it is cached.
    """
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = _train()
    tokenizer.save(str(folder / "tokenizer.json"))
    ids = {name: tokenizer.token_to_id(name) for name in SPECIAL}
    end, pad = ids["<|im_end|>"], ids["<|endoftext|>"]
    _write(
        folder / "tokenizer_config.json",
        tokenizer_class="PreTrainedTokenizerFast",
        eos_token="<|im_end|>",  # noqa: S106  no secret
        pad_token="<|endoftext|>",  # noqa: S106  no secret
        bos_token=None,
        model_max_length=CONTEXT,
        clean_up_tokenization_spaces=False,
        chat_template=_TEMPLATE,
    )
    _write(
        folder / "config.json",
        architectures=["LlamaForCausalLM"],
        model_type="llama",
        hidden_size=shape.hidden,
        intermediate_size=2 * shape.hidden,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.hidden // shape.head,
        num_key_value_heads=max(1, shape.hidden // shape.head // 4),
        head_dim=shape.head,
        max_position_embeddings=CONTEXT,
        rms_norm_eps=1e-6,
        rope_theta=10_000.0,
        vocab_size=tokenizer.get_vocab_size(),
        tie_word_embeddings=True,
        hidden_act="silu",
        torch_dtype="bfloat16",
        eos_token_id=end,
        pad_token_id=pad,
        bos_token_id=None,
        attention_bias=False,
    )
    _write(folder / "generation_config.json", eos_token_id=end, pad_token_id=pad)
    return folder


def make_adapter(folder: Path, shape: Shape = Shape(), rank: int = 8) -> Path:  # noqa: B008  it cannot be changed
    """Make a LoRA adapter for that model, of zeros; returns the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    _write(
        folder / "adapter_config.json",
        peft_type="LORA",
        task_type="CAUSAL_LM",
        r=rank,
        lora_alpha=rank,
        lora_dropout=0.0,
        bias="none",
        target_modules=["q_proj"],
        base_model_name_or_path="",
    )
    header: dict[str, Any] = {}
    size = 0
    for layer in range(shape.layers):
        for name, lines, columns in (("A", rank, shape.hidden), ("B", shape.hidden, rank)):
            end = size + 2 * lines * columns
            header[f"base_model.model.model.layers.{layer}.self_attn.q_proj.lora_{name}.weight"] = {
                "dtype": "BF16",
                "shape": [lines, columns],
                "data_offsets": [size, end],
            }
            size = end
    head = json.dumps(header).encode()
    # The format of safetensors: length of the header in eight bytes, the header, the numbers.
    (folder / "adapter_model.safetensors").write_bytes(len(head).to_bytes(8, "little") + head + bytes(size))
    return folder


def _train() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(byte_fallback=False))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    sources = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))[:_TRAINING_FILES]
    tokenizer.train([str(source) for source in sources], trainer)
    return tokenizer


def _write(file: Path, **members: Any) -> None:
    file.write_text(json.dumps(members, indent=1), encoding="utf-8")
