"""One chain for all tests that read it: engines start slowly, and most laws need any finished workspace."""

from __future__ import annotations

import pytest

from tests.e2e.chain import Chain, make_chain


@pytest.fixture(scope="session")
def chain(tmp_path_factory: pytest.TempPathFactory) -> Chain:
    return make_chain(tmp_path_factory.mktemp("chain"))
