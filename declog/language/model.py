"""The base of the models of the YAML. Imports pydantic only."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

FIX = " | fix: "  # parts the message of a model's own check from its fix
Scalar = bool | int | float | str


class Model(BaseModel):
    """A map of the profile: keys are checked, values are frozen."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, populate_by_name=True, use_attribute_docstrings=True, hide_input_in_errors=True
    )
