"""The catalogue of errors: every text with its fix, one module per layer. ``declog.errors.pages`` explains the codes.

``Problem.of("DL403.metric", path, name="rewrad", known=metrics)`` and ``InputError.of(...)`` read it. The key of a
message is the code alone, or the code and a name. A test compares the facts of every call with those of its message.
"""

from __future__ import annotations

from collections.abc import Mapping

from declog.errors.catalogue import composition, inputs, language, outputs, plan, schema
from declog.errors.catalogue.messages import Message

MESSAGES: Mapping[str, Message] = {
    **composition.MESSAGES,
    **schema.MESSAGES,
    **language.MESSAGES,
    **plan.MESSAGES,
    **inputs.MESSAGES,
    **outputs.MESSAGES,
}
