"""Oblivious HTTP (RFC 9458): requests that a relay forwards encrypted, so that the service learns no address."""
