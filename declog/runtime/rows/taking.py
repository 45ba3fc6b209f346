"""A call of ``observe``: signals go into the open batch, the rows of each packet into a separate batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from declog.runtime.rows.batches import Intake
from declog.runtime.rows.packets import Packet
from declog.runtime.rows.steps import OpenBatches
from declog.runtime.run.failures import Refused

Twice = Callable[[Packet, int | None], None]  # reports a packet that its step has already consumed


def take(
    intake: Intake, batches: OpenBatches, packets: Sequence[Packet], signals: Mapping[str, Any], refused: Refused,
    twice: Twice, *, strict: bool,
) -> None:  # fmt: skip
    """Take the signals and the packets of a call; a refused part goes to ``refused``, and does not affect the rest."""
    for packet in packets if strict else ():
        intake.check(packet.signals)
    if signals or not packets:
        try:
            intake.observe(batches, signals, strict=strict)
        except Exception as error:  # noqa: BLE001  (raised by the caller, when the packets are recorded)
            refused.add(error)
    for packet in packets:
        _consume(intake, batches, packet, refused, twice)


def _consume(intake: Intake, batches: OpenBatches, packet: Packet, refused: Refused, twice: Twice) -> None:
    """Record a packet's rows in the step; report a packet that the step has already consumed."""
    packet.consumed()
    step = batches.step
    if packet.id in step.packets:
        twice(packet, step.number)
        return
    step.packets |= {packet.id}
    alone = OpenBatches(step, batches.stream, batches.scope, partial_step=True)
    alone.origin = batches.origin
    try:
        intake.packet(alone, packet.signals, refused)
    except Exception as error:  # noqa: BLE001  (raised when the other packets are recorded)
        refused.add(error)
