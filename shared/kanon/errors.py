"""What can go wrong outside a request's own form. Messages say what to do; none names a set or a client."""


class KanonError(Exception):
    """Base of the service's own errors."""


class ConfigurationError(KanonError):
    """The environment or the type document cannot be used; the function refuses to start."""


class FingerprintMismatchError(KanonError):
    """A parameter, key or slot count that must never change has changed."""


class ThrottledError(KanonError):
    """A table did not take or give everything within the time for retries. Nothing may be assumed done."""


class UndecodableMembersError(KanonError):
    """A Members item cannot be read; its slot stops, since going on would forget clients."""


class TooFarBehindError(KanonError):
    """The log of the next step may have expired; an operator must move the mark."""


class LeaseLostError(KanonError):
    """Another worker moved this slot's mark; this one must stop."""
