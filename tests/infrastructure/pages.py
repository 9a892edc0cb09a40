"""What the page of the configuration says about each parameter."""

import re
from typing import Any

from tests.paths import ROOT

CONFIGURATION = ROOT / "docs" / "reference" / "configuration.md"


def rows(text: str) -> dict[str, tuple[str, str]]:
    """The default and allowed values of each parameter in the tables."""
    found = re.findall(r"^\| `([A-Z]\w*)` \| (.+?) \| (.+?) \| .+ \|$", text, re.MULTILINE)
    assert len({name for name, *_ in found}) == len(found), "a parameter is described twice"
    return {name: (default, allowed) for name, default, allowed in found}


def default(declared: Any) -> str:
    """The default as the document writes it."""
    return "empty" if declared["Default"] == "" else f"`{declared['Default']}`"


def allowed(declared: Any) -> str | None:
    """The allowed values as the document writes them; None if it uses words of its own."""
    if "AllowedValues" in declared:
        return ", ".join(f"`{value}`" for value in declared["AllowedValues"])
    if "MaxValue" in declared:
        return f"`{declared['MinValue']}` to `{declared['MaxValue']}`"
    if "MinValue" in declared:
        return f"`{declared['MinValue']}` and up"
    if "MaxLength" in declared and declared["Default"].startswith(("[", "{")):
        return f"JSON, up to {declared['MaxLength']:,} characters"
    return None
