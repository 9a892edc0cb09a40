"""The sampler of reports' noise once more, in plain Python, from the design alone: one key, one digit at a time."""

import hashlib
from fractions import Fraction

from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import CTR

from kanon.noise.exact import exp_bounds


def prefixed(*parts):
    return b"".join(len(part).to_bytes(8, "big") + part for part in parts)


def number(n):
    return n.to_bytes(8, "big")


def thresholds(a):
    """``floor(2^256 / (1 + e**(a 2^i)))`` for every i with ``e**(-a 2^i) >= 2^-256``, by 2048 bits of precision."""
    found = []
    while True:
        low, high = exp_bounds(a * 2 ** len(found), 2048)
        if found and low > 2**256:
            return found
        least, most = int(Fraction(2**256) / (1 + high)), int(Fraction(2**256) / (1 + low))
        assert least == most
        found.append(least)


def drawn(a, most, seed, count):
    """Noise for ``count`` keys."""
    limits = thresholds(a)
    k = len(limits)
    tape = Cipher(AES(seed), CTR(bytes(16))).encryptor().update(bytes(16 * k * count))
    noise = []
    for key in range(count):
        attempt, words = 0, tape[16 * k * key : 16 * k * (key + 1)]
        while True:
            x = 0
            for word in range(2 * k):
                first = int.from_bytes(words[8 * word : 8 * word + 8], "little")
                name = prefixed(b"kanon/reports/tie/1", seed, number(key), number(attempt), number(word))
                rest = int.from_bytes(hashlib.shake_256(name).digest(24), "big")
                digit = word % k
                if first << 192 | rest < limits[digit]:
                    x += 2**digit if word < k else -(2**digit)
            if most is None or abs(x) <= most:
                break
            attempt += 1
            name = prefixed(b"kanon/reports/again/1", seed, number(key), number(attempt))
            words = hashlib.shake_256(name).digest(16 * k)
        noise.append(x)
    return noise
