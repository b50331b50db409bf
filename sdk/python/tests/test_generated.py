"""The generated modules are the ones that the generator makes from the document of the node."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from presim import AsyncPresim, Presim
from presim.codec import decode
from presim.methods import Methods

from tests.world import BINARY

FOLDER = Path(__file__).parent.parent
DOCUMENT = subprocess.run([BINARY, "print", "openrpc"], check=True, capture_output=True, text=True).stdout
METHODS = [one for one in json.loads(DOCUMENT)["methods"] if one["name"].startswith("presim_")]


def test_generator_repeats_the_modules(tmp_path: Path) -> None:
    pytest.importorskip("ruff")
    subprocess.run([sys.executable, FOLDER / "generate.py", tmp_path], check=True, input=DOCUMENT, text=True)
    for name in ["methods.py", "params.py", "results.py"]:
        assert (tmp_path / name).read_text() == (FOLDER / "presim" / name).read_text(), name


@pytest.mark.parametrize("entry", METHODS, ids=lambda entry: entry["name"])
def test_each_method_exists_and_its_documented_result_is_decoded(entry: dict[str, Any]) -> None:
    class Answering(Methods):
        def _request(self, method: str, args: Any, result: Any) -> Any:
            assert (method, len(args)) == (entry["name"], len(entry["params"]))
            return decode(entry["examples"][0]["result"]["value"], result)

    name = entry["name"].removeprefix("presim_")
    name = "create_watch" if name == "watch" else name
    assert hasattr(Presim, name) and hasattr(AsyncPresim, name)
    params = [None] * sum(one["required"] for one in entry["params"])
    decoded = getattr(Answering(), name)(*params)
    assert (decoded is None) == (entry["examples"][0]["result"]["value"] is None)
