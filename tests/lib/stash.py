"""Under which a test's hosts and agents are kept, for the report of its failure: here, as pytest and an import each have a conftest.py of their own."""
import pytest

HOSTS = pytest.StashKey[list]()
AGENTS = pytest.StashKey[list]()
