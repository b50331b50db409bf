"""Puts the most profitable trade directly behind a user's signed trade, in one bundle.

python backrun.py [URL]        runs until the bundle is mined
"""

import sys
import time
from typing import Any

from eth_account import Account
from eth_account.signers.local import LocalAccount
from presim import Presim
from presim.params import Call, SearchPayload
from web3 import Web3
from web3.types import RPCEndpoint

URL = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8545"
Account.enable_unaudited_hdwallet_features()
MNEMONIC = "test test test test test test test test test test test junk"
USER, ACCOUNT = (Account.from_mnemonic(MNEMONIC, account_path=f"m/44'/60'/0'/0/{index}") for index in (6, 7))
ALPHA, BETA = "0x9fE46736679d2D9a65F0992F2272dE9f3c7fa6e0", "0xe7f1725E7734CE288F8367e1Bb143E90bb3F0512"
WETH, ROUTER = "0x5FbDB2315678afecb367f032d93F642f64180aa3", "0xDc64a140Aa3E981100a9becA4E685f962f0cF6C9"
CYCLE = [ALPHA, WETH, BETA, ALPHA]
TYPES = ["uint256", "uint256", "address[]", "address", "uint256"]
SELECTOR = Web3.keccak(text=f"swapExactTokensForTokens({','.join(TYPES)})")[:4]

w3 = Web3(Web3.HTTPProvider(URL))
presim = Presim(w3)


def swap(amount: int, least: int, path: list[str], to: str) -> bytes:
    return SELECTOR + w3.codec.encode(TYPES, [amount, least, path, to, 2**256 - 1])


def sign(account: LocalAccount, data: bytes) -> bytes:
    nonce = w3.eth.get_transaction_count(account.address, "pending")
    fees = {"maxFeePerGas": 10 * 10**9, "maxPriorityFeePerGas": 0}
    transaction: dict[str, Any] = {"to": ROUTER, "data": data, "gas": 500_000, "chainId": 31337, "nonce": nonce, **fees}
    return bytes(account.sign_transaction(transaction).raw_transaction)


# The trade as an auction hands it to searchers: 30,000 ALPHA for BETA make BETA dear in this pair, and ALPHA cheap.
trade = sign(USER, swap(30_000 * 10**18, 0, [ALPHA, BETA], USER.address))

outcome = None
while outcome is None or outcome.status != "mined":
    snapshot = presim.snapshot()
    call: Call = {"from": ACCOUNT.address, "to": ROUTER, "gas": 500_000, "data": swap(0, 0, CYCLE, ACCOUNT.address)}
    payload: SearchPayload = {
        # A call may be a signed transaction. It runs once, and only the call behind it is repeated.
        "blockStateCalls": [{"calls": [trade, call]}],
        "vary": [{"path": "blocks[0].calls[1].data", "word": 0, "maximize": {"from": 10**18, "to": 50_000 * 10**18}}],
        "objective": {"account": ACCOUNT.address, "token": ALPHA},
        "require": {"when": [], "least": 2 * 10**18},
    }
    best = presim.search(payload, {"snapshotId": snapshot.id}).best[0]
    if best.error or best.dropped:
        raise SystemExit(f"the trade cannot be mined: {best}")
    if best.status != 1:
        print(f"block {snapshot.block_number}: nothing to gain")
        time.sleep(0.2)
        continue
    [amount], gain = best.values, best.objective or 0
    print(f"block {snapshot.block_number}: {amount / 1e18:.3f} ALPHA behind the trade gain {gain / 1e18:.3f}")
    # Nine tenths of the gain, because prices move until the bundle is tried.
    backrun = sign(ACCOUNT, swap(amount, amount + gain * 9 // 10, CYCLE, ACCOUNT.address))
    blocks = {"blockNumber": hex(snapshot.block_number), "maxBlockNumber": hex(snapshot.block_number + 1)}
    bundle = {"txs": [Web3.to_hex(trade), Web3.to_hex(backrun)], **blocks}
    answer = w3.provider.make_request(RPCEndpoint("eth_sendBundle"), [bundle])
    while "result" in answer:
        outcome = presim.outcome(answer["result"]["bundleHash"])
        if outcome is None or outcome.status != "pending":
            break
        time.sleep(0.1)
    print(f"{outcome.status} in block {outcome.block_number}" if outcome else answer)
