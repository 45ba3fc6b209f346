"""What a case is: a profile, and what each rank observes in each step. Plain data; nothing of declog."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

Batch = Mapping[str, Any]  # signal: a value, a list (of rows, or of rows' tokens), or a mapping of members to those


@dataclass(frozen=True)
class Block:
    """A step of training, or one visit to another mode."""

    number: int
    mode: str
    events: Mapping[str, list[list[Batch]]]  # event: rank: batches


@dataclass(frozen=True)
class Case:
    """A whole job. ``dtypes`` says as what a signal is observed; its values are exact in it."""

    seed: int
    profile: dict[str, Any]
    ranks: int
    blocks: list[Block]
    dtypes: Mapping[str, str]
    packed: bool = False  # tokens are observed one completion after the other
    trees: dict[str, Any] = field(default_factory=dict)  # what the profile's texts were written from
    cut: int | None = None  # the block before which the run is left, and resumed

    def batches(self, block: int, event: str) -> Iterator[tuple[int, int, Batch]]:
        """The batches of a step, as (batch, rank, values), in the order of rows."""
        ranks = self.blocks[block].events.get(event, [])
        for batch in range(max((len(found) for found in ranks), default=0)):
            for rank, found in enumerate(ranks):
                if batch < len(found):
                    yield batch, rank, found[batch]


class Point(NamedTuple):
    """Where a value is asked for; what is finer than its axis is not looked at."""

    block: int
    event: str
    batch: int
    rank: int
    row: int = 0
    token: int = 0
    member: str = ""
    reader: str = ""  # "row" or "token": it reads values per step, also those of other batches of its step
