"""The settings of the function `issuer` on AWS."""

from kanon.gate.settings import GateSettings
from kanon.settings import Edge


class IssuerSettings(GateSettings, Edge):
    """The environment of ``issuer``. ``enrol_verifier`` is empty if API Gateway checks accounts."""

    accounts_table: str
    account_key_secret: str
    issuer_key_secret: str
    enrol_verifier: str

    @property
    def longest(self) -> int:
        """Seconds for which a join with a credential counts, at most; 0 if no type needs credentials."""
        windows = [type_.parameters.window for type_ in self.read_types().values() if type_.credential]
        return (max(windows) + 1) * self.period if windows else 0
