"""The programs of the cookbook. Those that need a market run on the devnet's."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.world import node

COOKBOOK = Path(os.environ.get("COOKBOOK", Path(__file__).parents[3] / "docs" / "cookbook"))
PAGE = (COOKBOOK.parent / "cookbook.md").read_text()


@pytest.fixture(scope="module")
def market() -> Iterator[str]:
    with node() as one:
        yield one


def run(name: str, url: str) -> list[str]:
    """Returns the lines that a program prints."""
    command = [sys.executable, str(COOKBOOK / name), url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def shape(line: str) -> str:
    """Returns a line without its numbers."""
    return re.sub(r" +", " ", re.sub(r"-?[\d,]+(\.\d+)?", "N", line))


def printed(name: str) -> list[str]:
    """Returns the lines that the page shows as a program's output."""
    output = re.search(rf"\$ python {name}\n(.*?)```", PAGE, re.DOTALL)
    assert output is not None and f"](cookbook/{name})" in PAGE, name
    return output[1].splitlines()


def test_arbitrage_is_mined(market: str) -> None:
    lines = run("arbitrage.py", market)
    assert re.fullmatch(r"block \d+, by (BETA|WETH): \d+\.\d+ ALPHA gain \d+\.\d+", lines[0])
    assert [shape(lines[-1])] == [shape(one) for one in printed("arbitrage.py")[-1:]] == ["mined in block N"]


def test_backrun_is_mined(market: str) -> None:
    *_, found, mined = run("backrun.py", market)
    assert [shape(found), shape(mined)] == [shape(one) for one in printed("backrun.py")]


def test_liquidation_is_reported(market: str) -> None:
    *positions, alarm = run("liquidation_alarm.py", market)
    *shown, shown_alarm = printed("liquidation_alarm.py")
    assert [shape(one) for one in positions] == [shape(one) for one in shown]
    alarms = r"block \d+: ALARM, (long|short) ALPHA: the debt buys \d+\.\d{4}"
    assert re.fullmatch(alarms, alarm) and re.fullmatch(alarms, shown_alarm)


def test_next_fork_is_as_printed(url: str) -> None:
    assert run("next_fork.py", url) == printed("next_fork.py")


def test_past_blocks_have_the_price_of_their_states(url: str) -> None:
    header, *rows = run("past_blocks.py", url)
    assert header == printed("past_blocks.py")[0]
    # Nothing trades on this node: 1 WETH buys what the formula says.
    assert rows and {row.split()[1] for row in rows} == {"1992.014"}
    assert all(len(one.split()) == 4 for one in printed("past_blocks.py")[1:])
