"""A language model of two layers and 16 channels that speaks in characters, its tokenizer, and prompts for it.

Imported by tests and by the jobs that they start, which set the environment first: nothing is downloaded.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"  # waking threads takes longer than a prompt does

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


LOOKING = (
    "{% for message in messages %}{% for part in message['content'] %}"
    "{{ '<image>' if part['type'] == 'image' else part['text'] }}{% endfor %}{% endfor %}"
)


def seeing(folder: Path) -> tuple[Any, Any]:
    """A model of the same size that sees images of 28 by 28 pixels, and its processor."""
    from transformers import (
        CLIPImageProcessor,
        CLIPVisionConfig,
        LlavaConfig,
        LlavaForConditionalGeneration,
        LlavaProcessor,
    )

    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<image>"]})
    pixels = CLIPImageProcessor(size={"shortest_edge": 28}, crop_size={"height": 28, "width": 28})
    processor = LlavaProcessor(
        image_processor=pixels, tokenizer=tokenizer, patch_size=14, vision_feature_select_strategy="default",
        num_additional_image_tokens=1, image_token="<image>", chat_template=LOOKING,
    )  # fmt: skip
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    torch.manual_seed(0)
    model = LlavaForConditionalGeneration(
        LlavaConfig(
            text_config=Qwen2Config(
                vocab_size=len(tokenizer), num_key_value_heads=1, max_position_embeddings=128, pad_token_id=0,
                eos_token_id=1, bos_token_id=None, **sizes,
            ),
            vision_config=CLIPVisionConfig(image_size=28, patch_size=14, **sizes),
            image_token_index=tokenizer.convert_tokens_to_ids("<image>"), vision_feature_layer=-1,
            vision_feature_select_strategy="default", image_seq_length=4,
        )
    )  # fmt: skip
    model.generation_config.pad_token_id, model.generation_config.eos_token_id = 0, 1
    return model, processor
