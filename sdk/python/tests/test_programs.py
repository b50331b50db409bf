"""The programs of README.md, as they are printed there. Only the URL is changed."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.world import node

README = (Path(__file__).parent.parent / "README.md").read_text()


def program(index: int, url: str) -> str:
    text = README.split("```python\n")[index + 1].split("```")[0]
    assert "http://127.0.0.1:8545" in text
    return text.replace("http://127.0.0.1:8545", url)


def test_six_lines_run(url: str) -> None:
    assert README.startswith("# presim\n\n```python\n")
    text = program(0, url)
    assert text.count("\n") == 6
    printed = subprocess.run([sys.executable, "-c", text], check=True, capture_output=True, text=True).stdout
    assert printed.startswith("21000 {") and "change=1000000000000000000, type='ether'" in printed


def test_module_of_web3_runs(url: str) -> None:
    imports = "from presim import Presim\nfrom web3 import Web3\n"
    subprocess.run([sys.executable, "-c", imports + program(1, url)], check=True)


def test_watch_prints_the_reserves_of_each_change() -> None:
    with node() as url:
        command = [sys.executable, "-u", "-c", program(2, url)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            lines = [process.stdout.readline().split() for _ in range(3)]
            process.kill()
    reserves = {reserve for _, reserve in lines}
    assert len(reserves) == 3 and all(len(one) == 128 for one in reserves)


def test_each_sub_block_is_a_row_of_a_file(tmp_path: Path) -> None:
    pytest.importorskip("pandas")
    file = tmp_path / "results.csv"
    with node() as url:
        text = program(3, url).replace('"results.csv"', repr(str(file)))
        subprocess.run([sys.executable, "-c", text], check=True)
    header, *rows = file.read_text().splitlines()
    assert header == "snapshot,status,gas_used,return_data" and len(rows) == 20
    snapshots = [int(row.split(",")[0], 16) for row in rows]
    assert snapshots == sorted(set(snapshots))
    assert all(row.split(",")[1] == "1" and len(row.split(",")[3]) == 2 + 3 * 64 for row in rows)


def test_token_is_sent(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens.toml"
    tokens.write_text('[[token]]\nname = "a"\ntoken = "0123456789abcdef0123456789abcdef"\nrate = 1000\n')
    tokens.chmod(0o600)
    with node("--token-file", str(tokens)) as url:
        text = program(4, url)
        right = text.replace("TOKEN", "0123456789abcdef0123456789abcdef")
        assert int(subprocess.run([sys.executable, "-c", right], check=True, capture_output=True, text=True).stdout) > 0
        wrong = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True)
        assert wrong.returncode == 1 and "401 Client Error" in wrong.stderr


def test_plot_of_a_search(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    example, picture = Path(__file__).parent.parent / "examples" / "search_to_plot.py", tmp_path / "search.png"
    with node() as url:
        command = [sys.executable, str(example), url, str(picture)]
        printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    first, second, written = printed.splitlines()
    for line, path in [(first, "ALPHA, BETA, WETH, ALPHA"), (second, "ALPHA, WETH, BETA, ALPHA")]:
        assert line.startswith(f"{path}: 64 amounts, the best is ")
    assert written == f"written to {picture}"
    assert picture.read_bytes().startswith(b"\x89PNG\r\n\x1a\n") and picture.stat().st_size > 10_000
