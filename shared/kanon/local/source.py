"""The location of the templates and the handlers from which the local stack is built.

In a checkout they are at the root. In an installed package they are data beside this module.
"""

from pathlib import Path

_PACKAGED = Path(__file__).with_name("source")

ROOT = _PACKAGED if _PACKAGED.exists() else Path(__file__).resolve().parents[3]
"""The folder of ``template.yaml``, ``infra/`` and ``functions/``."""
