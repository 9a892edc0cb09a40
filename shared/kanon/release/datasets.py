"""Names of datasets: texts that look alike name the same data, so that a slip of the hand opens no second account."""

import re
import unicodedata
from collections.abc import Collection
from functools import lru_cache

from kanon.release.errors import SpecificationError


def resolved(text: str, known: Collection[str]) -> str:
    """The name of a dataset in the ledger: without outer and double spaces, unless the ledger knows it with them.

    Raises:
        SpecificationError: the ledger knows it by a name that looks like this one, or no name can be made of it.
    """
    name = " ".join(unicodedata.normalize("NFKC", text).split())
    for exact in (text, name):
        if exact in known:
            return exact
    alike = next((one for one in known if look(one) == look(text)), None)
    if alike is not None:
        raise SpecificationError(
            f"the ledger has a dataset {alike!r}, and {text!r} looks like it: write it the same way. For other data"
            " choose a name with other letters or digits"
        )
    if not name.isprintable() or not look(name):
        raise SpecificationError("the name of a dataset has letters or digits, and no invisible characters")
    return name


@lru_cache(maxsize=1024)
def look(name: str) -> str:
    """The letters and digits of a name, without case; every run of other characters counts as one dash."""
    return re.sub(r"[\W_]+", "-", unicodedata.normalize("NFKC", name).casefold()).strip("-")
