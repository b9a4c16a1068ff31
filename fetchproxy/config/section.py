"""What all sections of the configuration have in common, and the units of their defaults."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

KiB = 1024
MiB = 1024 * KiB
GiB = 1024 * MiB


class Section(BaseModel):
    # An error that quotes its input would show a secret.
    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)
