"""A client of presim, a simulation backend for EVM chains, on web3.py."""

from presim import params, results
from presim.client import AsyncPresim, Presim
from presim.errors import BundleDropped, PresimError
from presim.frame import to_dataframe
from presim.watch import SearchAnswer, Update

__all__ = [
    "AsyncPresim",
    "BundleDropped",
    "Presim",
    "PresimError",
    "SearchAnswer",
    "Update",
    "params",
    "results",
    "to_dataframe",
]
