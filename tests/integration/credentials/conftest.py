from tests.integration.serving.conftest import fixed_secrets, not_durable

__all__ = ["fixed_secrets", "not_durable"]
