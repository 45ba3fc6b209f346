"""TRL's GRPOTrainer trains a tiny model, built here, to write digits, and declog logs the metrics of a YAML file.

    python examples/trl_grpo.py                             about a minute on two cores
    torchrun --nproc-per-node=2 examples/trl_grpo.py        the same on two ranks
    python examples/trl_grpo.py '+declog.metrics.reward_p90="p90(reward)"' trainer.max_steps=20

`conf/trl_grpo.yaml` configures the training and the logging. One line attaches declog; nothing is downloaded.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"

import hydra
import torch
from arithmetic.report import report
from datasets import Dataset
from omegaconf import DictConfig
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, PrinterCallback, Qwen2Config, Qwen2ForCausalLM
from trl import GRPOConfig, GRPOTrainer

import declog

ALPHABET = "abcdefghijklmnopqrstuvwxyz0123456789 +-=."


@hydra.main(version_base="1.3", config_path="conf", config_name="trl_grpo")
def main(cfg: DictConfig) -> None:
    """Train, then print where the log is."""
    torch.set_num_threads(1)
    folder = build(Path(cfg.trainer.output_dir) / "model", cfg.model)
    data = Dataset.from_dict({"prompt": [f"{a}+{b}=" for a in range(10) for b in range(10)]})
    trainer = GRPOTrainer(
        str(folder),
        reward_funcs=REWARDS,
        args=GRPOConfig(**cfg.trainer),
        train_dataset=data,
        eval_dataset=data.select(range(4)),
    )
    trainer.remove_callback(PrinterCallback)  # declog's console shows the numbers
    with declog.attach(trainer, cfg) as log:
        trainer.train()
    if log.output_dir is not None:  # on rank 0
        report(log.output_dir, project=cfg.declog.run.project)


def digits(completions: Sequence[str], log_extra: Any, **columns: Any) -> list[float]:
    """The share of digits in each completion. The values passed to ``log_extra`` are a column of the samples."""
    counts = [sum(character.isdigit() for character in text) for text in completions]
    log_extra("digits_written", counts)
    return [count / max(1, len(text)) for count, text in zip(counts, completions, strict=True)]


def ends(completions: Sequence[str], completion_ids: Sequence[Sequence[int]], **columns: Any) -> list[float]:
    """1 for each completion that ends by itself, else 0. ``declog.log_metric`` finds the recorder by itself."""
    ended = [float(tokens[-1] == 1) for tokens in completion_ids]
    declog.log_metric("ended", sum(ended) / len(ended))
    return ended


REWARDS: list[Callable[..., list[float]]] = [digits, ends]


def build(folder: Path, shape: Mapping[str, Any]) -> Path:
    """Save an untrained model and its tokenizer of single characters, which are the same on every rank."""
    vocabulary = {text: place for place, text in enumerate(["<pad>", "<eos>", "<unk>", *ALPHABET])}
    characters = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    characters.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    characters.decoder = decoders.Fuse()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=characters, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>", padding_side="left"
    )
    torch.manual_seed(0)
    model = Qwen2ForCausalLM(
        Qwen2Config(vocab_size=len(vocabulary), pad_token_id=0, eos_token_id=1, bos_token_id=None, **shape)
    )
    rank = int(os.environ.get("RANK", "0"))
    folder = folder.with_name(f"{folder.name}{rank}")  # ranks do not wait for each other here
    tokenizer.save_pretrained(folder)
    model.save_pretrained(folder)
    return folder


if __name__ == "__main__":
    main()
