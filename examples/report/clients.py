"""Clients of reports: what a device contributes, as reports that keep the rules, and how they are sent."""

from collections.abc import Sequence

from kanon.client import Client
from kanon.reports.clients.devices import (
    Attribution,
    Device,
    KeyPiece,
    Source,
    Trigger,
    Windows,
    add_source,
    add_trigger,
    contribute,
)
from kanon.reports.clients.encrypt import ClientReport, Outgoing, encrypt, outgoing
from kanon.reports.payload import EncryptionKey

COLLECTOR, SHOP = "https://report.example", "https://shop.example"


def visit(count: int) -> tuple[int, int, int]:
    """The program of a device: from its memory to the new memory, a key and a value."""
    return count + 1, 42, 100


def of_a_window() -> ClientReport:
    """The report of a visit; times are in milliseconds."""
    windows = Windows(COLLECTOR, length=600_000)
    _, report = contribute(windows, Device(memory=0), 1_795_169_100_000, visit)
    return report


def of_a_purchase() -> ClientReport | None:
    """The report of a purchase a minute after a click, with the key 0x100 | 0x7; None if its trigger asks for none."""
    rules = Attribution()
    click = Source(0, COLLECTOR, frozenset({SHOP}), keys={"campaign": 0x100})
    pieces = (KeyPiece(0x7, frozenset({"campaign"})),)
    purchase = Trigger(60_000, COLLECTOR, SHOP, pieces=pieces, amounts={"campaign": 6000})
    _, report, _ = add_trigger(rules, add_source(rules, (), click), purchase)
    return report


def send(report: ClientReport, keys: Sequence[EncryptionKey], now: int) -> list[Outgoing]:
    """Encrypt once, with public keys that have not expired; what is left is sent again later, the same bytes."""
    pending = [outgoing(report, encrypt(report, keys))]
    return Client(COLLECTOR).send_due(pending, now)
