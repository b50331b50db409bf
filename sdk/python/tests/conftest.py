from collections.abc import Iterator

import pytest
from presim import Presim
from web3 import Web3

from tests import world


@pytest.fixture(scope="session")
def url() -> Iterator[str]:
    """The URL of a devnet without traffic, whose state only the tests change."""
    with world.node("--traffic", "0") as one:
        yield one


@pytest.fixture(params=["", "/standard"], ids=["strict", "standard"])
def presim(url: str, request: pytest.FixtureRequest) -> Presim:
    """A client of each dialect."""
    return Presim(Web3(Web3.HTTPProvider(url + request.param)))
