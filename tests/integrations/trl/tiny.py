"""A language model of two layers and 16 channels that speaks in characters, its tokenizer, and prompts for it.

Imported by tests and by the jobs that they start, which set the environment first: nothing is downloaded.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"

import torch
from datasets import Dataset
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

CHARACTERS = "abcdefghijklmnopqrstuvwxyz0123456789 +-=*?.,:!"
CHAT = (
    "{% for message in messages %}{{ message['role'][0] + ': ' + message['content'] + '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'a: ' }}{% endif %}"
)


def build(folder: Path) -> Path:
    """Write model and tokenizer to a folder; the same ones each time."""
    vocabulary = {text: place for place, text in enumerate(["<pad>", "<eos>", "<unk>", *CHARACTERS])}
    characters = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    characters.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    characters.decoder = decoders.Fuse()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=characters, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>", padding_side="left",
        chat_template=CHAT,
    )  # fmt: skip
    torch.manual_seed(0)
    model = Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=len(vocabulary), hidden_size=16, intermediate_size=32, num_hidden_layers=2,
            num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=128,
            pad_token_id=0, eos_token_id=1, bos_token_id=None,
        )
    )  # fmt: skip
    with torch.no_grad():  # completions end now and then
        model.lm_head.weight[1] *= 3
    tokenizer.save_pretrained(folder)
    model.save_pretrained(folder)
    return folder


def prompts(count: int = 16) -> Any:
    """A dataset of prompts, each with a column of its own that reward functions get."""
    return Dataset.from_dict(
        {"prompt": [f"say {n} now" for n in range(count)], "source": ["ab"[n % 2] for n in range(count)]}
    )


def conversations(count: int = 16) -> Any:
    """The same as conversations."""
    return Dataset.from_dict({"prompt": [[{"role": "user", "content": f"say {n}"}] for n in range(count)]})
