"""Where the template and the handlers are that the local stack is built from.

In a checkout they are at its root. In an installed package they travel as data beside this module.
"""

from pathlib import Path

_PACKAGED = Path(__file__).with_name("source")

ROOT = _PACKAGED if _PACKAGED.exists() else Path(__file__).resolve().parents[3]
"""The folder of ``template.yaml`` and ``functions/``."""
