"""Set ids of ads: the SHA-256 of what Chromium's k-anonymity client builds from an ad of the Protected Audience API.

The service takes any id. These are for programs that must meet a browser's.
"""

from difflib import get_close_matches

from kanon.client.values import SetId, value_id

OWNED = ("owner", "bidding logic URL", "render URL")
"""The first parts of all kinds but ``ComponentBid``."""
PARTS: dict[str, tuple[str, ...]] = {
    "AdBid": OWNED,
    "ComponentBid": ("render URL",),
    "NameReport": (*OWNED, "name of the interest group"),
    "BuyerReportId": (*OWNED, "buyer's id"),
    "BuyerAndSellerReportId": (*OWNED, "buyer's and seller's id"),
    "SelectedBuyerAndSellerReportId": (*OWNED, "selected id", "buyer's and seller's id", "buyer's id"),
}
"""The kinds of ids in the browser's own words, and what each is made of.

An owner is an origin with a slash at its end. Of the kind with three ids each may be missing: None.
"""
_SELECTED = "SelectedBuyerAndSellerReportId"


def ad_id(kind: str, *parts: str | None) -> SetId:
    """The id of the set that a browser joins for an ad.

    >>> ad_id("AdBid", "https://ad_tech_a.com/", "https://ad_tech_a.com/bid.js", "https://ad_tech_a.com/ad")
    'QSZ2fmdWeYX3QTg_0yhCVZxl7YXXNQkI3EnUXYL7Mek'

    Raises:
        ValueError: there is no such kind, or it has other parts.
    """
    if kind not in PARTS:
        near = get_close_matches(kind, PARTS, 1)
        hint = f" (did you mean {near[0]}?)" if near else ""
        raise ValueError(f"there is no kind {kind}{hint}: there are {', '.join(PARTS)}")
    optional = parts[len(OWNED) :] if kind == _SELECTED else ()
    fixed = parts[: len(parts) - len(optional)]
    if len(parts) != len(PARTS[kind]) or None in fixed:
        raise ValueError(f"{kind} is made of {', '.join(PARTS[kind])}")
    texts = [(part or "").encode() for part in fixed] + [_counted(part) for part in optional]
    return value_id(b"\n".join([kind.encode(), *texts]))


def _counted(part: str | None) -> bytes:
    """Whether there is one, its length, and the text."""
    text = (part or "").encode()
    return bytes([part is not None]) + len(text).to_bytes(4, "big") + text
