"""Reads the Containerfile."""

import re
from typing import NamedTuple

from tests.paths import ROOT

__all__ = ["ROOT", "Instruction", "instructions"]


class Instruction(NamedTuple):
    """An instruction, such as ``USER``, and what follows it."""

    name: str
    rest: str


def instructions(text: str) -> list[Instruction]:
    """The instructions in their order, continued lines in one."""
    joined = re.sub(r"\\\n\s*", "", re.sub(r"(?m)^#.*\n", "", text))
    pairs = (line.partition(" ") for line in joined.splitlines() if line.strip())
    return [Instruction(name, rest.strip()) for name, _, rest in pairs]
