"""A real, tiny GRPO training of TRL with reward functions under ``@declog.reward``; prints what came of it as JSON.

Run as a program: ``python -m tests.runtime.trl_rewards FOLDER``. TRL's model and tokenizer are made here: no download.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM
from trl.trainer.grpo_config import GRPOConfig
from trl.trainer.grpo_trainer import GRPOTrainer

import declog
from declog.testing import MemorySink
from tests.running import profile

Texts = list[str]


@declog.reward
def lengths(completions: Texts, **given: Any) -> Any:
    """One column for the table, one that a signal of the profile takes."""
    sizes = [float(len(text.split())) for text in completions]
    return sizes, {"word_count": [int(size) for size in sizes], "confidence": [size / 4 for size in sizes]}


@declog.reward
async def judged(completions: Texts, **given: Any) -> Any:
    """TRL runs this on a thread and a phase loop of its own."""
    return [0.5] * len(completions), {"verdict": [f"größer: {text}" for text in completions]}


class Style:
    """A callable object, whose class names it."""

    @declog.reward
    def __call__(self, completions: Texts, **given: Any) -> Any:
        return [None] * len(completions), {"style": [{"a": text.count("a")} for text in completions]}


PROFILE = profile(
    {"confidence": {"axis": "completion", "from_log_extra": True}}, {"confidence": "max(confidence)"},
    schemas={"s": {"confidence": {"type": "float"}, "extra": {"undeclared": "keep"}}}, tables={"t": {"schema": "s"}},
)  # fmt: skip
WORDS = ("<pad>", "<eos>", "a", "b", "c", "d")


def trainer(folder: Path) -> GRPOTrainer:
    """Four completions in its one step."""
    words = Tokenizer(models.WordLevel({word: place for place, word in enumerate(WORDS)}, unk_token="a"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    make_tokenizer: Any = PreTrainedTokenizerFast  # untyped in transformers
    config = Qwen2Config(
        vocab_size=len(WORDS), hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1,
        num_key_value_heads=1,
    )  # fmt: skip
    return GRPOTrainer(
        model=Qwen2ForCausalLM(config),
        processing_class=make_tokenizer(tokenizer_object=words, pad_token="<pad>", eos_token="<eos>"),
        reward_funcs=[lengths, judged, Style()],
        train_dataset=Dataset.from_dict({"prompt": ["a b", "c d"] * 4}),
        args=GRPOConfig(
            output_dir=str(folder), per_device_train_batch_size=4, num_generations=2, max_completion_length=4,
            max_steps=1, report_to=[], use_cpu=True, bf16=False, save_strategy="no", logging_steps=1,
            gradient_checkpointing=False, disable_tqdm=True,
        ),
    )  # fmt: skip


def main(folder: Path) -> None:
    """Train once without a recorder, once inside a step of one."""
    trainer(folder / "without").train()
    sink = MemorySink()
    with declog.start(PROFILE, sinks=[sink], output_dir=folder / "run") as log, log.step(0):
        ran = trainer(folder / "with")
        ran.train()
    ((_, table),) = sink.tables("t")
    print(
        json.dumps(
            {
                "names": sorted(name for name in ran.state.log_history[0] if name.endswith("/mean")),
                "reward": ran.state.log_history[0]["rewards/lengths/mean"],
                "columns": [column.name for column in table.columns],
                "data": dict(table.data),
                "scalars": sink.scalars[0],
            }
        )
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
