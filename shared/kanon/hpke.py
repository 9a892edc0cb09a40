"""The suite of HPKE (RFC 9180) for everything that is sealed to a public key of the service, in base mode."""

from cryptography.hazmat.primitives.hpke import AEAD, KDF, KEM, Suite

SUITE = Suite(KEM.X25519, KDF.HKDF_SHA256, AEAD.CHACHA20_POLY1305)
