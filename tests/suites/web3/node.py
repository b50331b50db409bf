"""The node under test in the place of geth, for web3.py's integration tests. Appended to their conftest.py, whose fixtures it replaces.

NODE_COMMAND is the node's command line, in which PORT and IPC stand for its port and its socket. One node serves all tests.
"""

import importlib.util
import os
import subprocess
import sys
import tempfile
import time
import types
import urllib.request

KEY = "0xac0974bec39a17e36ba4a6b4d238ff944bacb478cbed5efcae784d7bf4f2ff80"  # of the test mnemonic's first account
PORT = 18999


@pytest.fixture(scope="session")
def node():
    folder = tempfile.mkdtemp()
    socket = os.path.join(folder, "node.ipc")
    command = os.environ["NODE_COMMAND"].replace("PORT", str(PORT)).replace("IPC", socket)
    process = subprocess.Popen(command.split(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    request = urllib.request.Request(f"http://127.0.0.1:{PORT}", b'{"jsonrpc":"2.0","id":1,"method":"eth_chainId"}', {"content-type": "application/json"})
    for _ in range(600):
        try:
            urllib.request.urlopen(request, timeout=5).read()
            break
        except OSError:
            assert process.poll() is None, "the node has ended"
            time.sleep(0.05)
    yield types.SimpleNamespace(port=PORT, socket=socket)
    process.kill()
    process.wait()


def module(name, path):
    found = importlib.util.spec_from_file_location(name, path)
    loaded = sys.modules[name] = importlib.util.module_from_spec(found)
    found.loader.exec_module(loaded)
    return loaded


@pytest.fixture(scope="session")
def geth_fixture_data(node):
    """The contracts and blocks that web3.py's own generator makes for geth."""
    folder = os.path.join(os.path.dirname(__file__), "..", "generate_fixtures")
    common, generator = (module(name, os.path.join(folder, file)) for name, file in (("common", "common.py"), ("generator", "go_ethereum.py")))
    from web3 import Web3

    w3 = Web3(Web3.HTTPProvider(f"http://127.0.0.1:{node.port}"))
    account = w3.eth.accounts[0]
    common.COINBASE = common.KEYFILE_ACCOUNT_ADDRESS = account
    common.COINBASE_PK = common.KEYFILE_ACCOUNT_PKEY = KEY
    funding = w3.eth.send_transaction({"from": w3.eth.accounts[1], "to": common.RAW_TXN_ACCOUNT, "value": 10**20})
    w3.eth.wait_for_transaction_receipt(funding)
    data = generator.setup_chain_state(w3)
    return {name: value if isinstance(value, str) else Web3.to_hex(value) for name, value in data.items()}


@pytest.fixture
def get_geth_version():
    return types.SimpleNamespace(major=1, minor=16)


@pytest.fixture
def datadir(tmpdir):
    return str(tmpdir)


@pytest.fixture
def base_geth_command_arguments():
    return ()


@pytest.fixture
def start_geth_process_and_yield_port(node, geth_fixture_data, request):
    # Only the tests of the socket have a path for it.
    if "geth_ipc_path" in request.fixturenames:
        os.symlink(node.socket, request.getfixturevalue("geth_ipc_path"))
    return node.port
