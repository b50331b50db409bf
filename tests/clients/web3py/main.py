"""web3.py against a presim devnet. PRESIM_URL is the node's URL, and PRESIM_SOCKET the path of its Unix socket, if it has one. Each claim prints one line; the first failure ends with exit code 1."""

import asyncio
import os
import secrets
import sys
import threading

from eth_account import Account
from hexbytes import HexBytes
from web3 import AsyncIPCProvider, AsyncWeb3, IPCProvider, Web3, WebSocketProvider
from web3.exceptions import ContractCustomError, ContractLogicError

URL = os.environ.get("PRESIM_URL", "http://127.0.0.1:8545")
WETH = "0x5FbDB2315678afecb367f032d93F642f64180aa3"
ALPHA = "0x9fE46736679d2D9a65F0992F2272dE9f3c7fa6e0"
ROUTER = "0xDc64a140Aa3E981100a9becA4E685f962f0cF6C9"
PAIR = "0xee48C640427246F01f96c32897AD9B6ab6964fE7"  # WETH is its token0, ALPHA its token1
ETHER, NEVER = 10**18, 2**256 - 1


def parameters(texts):
    return [dict(zip(("type", "name"), text.split(" "))) for text in texts]


def function(name, inputs, outputs, mutability="view"):
    return {"type": "function", "name": name, "inputs": parameters(inputs), "outputs": parameters(outputs), "stateMutability": mutability}


def event(name, inputs, indexed):
    inputs = [parameter | {"indexed": i < indexed} for i, parameter in enumerate(parameters(inputs))]
    return {"type": "event", "name": name, "inputs": inputs, "anonymous": False}


TOKEN_ABI = [
    function("name", [], ["string name"]),
    function("decimals", [], ["uint8 decimals"]),
    function("balanceOf", ["address account"], ["uint256 balance"]),
    function("totalSupply", [], ["uint256 supply"]),
    function("transfer", ["address to", "uint256 value"], ["bool done"], "nonpayable"),
    event("Transfer", ["address from", "address to", "uint256 value"], 2),
]
PAIR_ABI = [
    function("getReserves", [], ["uint112 reserve0", "uint112 reserve1", "uint32 blockTimestampLast"]),
    event("Sync", ["uint112 reserve0", "uint112 reserve1"], 0),
]
ROUTER_ABI = [
    function("getAmountsOut", ["uint256 amountIn", "address[] path"], ["uint256[] amounts"]),
    function("swapExactETHForTokens", ["uint256 amountOutMin", "address[] path", "address to", "uint256 deadline"],
             ["uint256[] amounts"], "payable"),
]

w3 = Web3(Web3.HTTPProvider(f"{URL}/standard"))
strict = Web3(Web3.HTTPProvider(URL))
Account.enable_unaudited_hdwallet_features()
account = Account.from_mnemonic("test test test test test test test test test test test junk", account_path="m/44'/60'/0'/0/3")


def contracts(w3):
    return [w3.eth.contract(address, abi=abi) for address, abi in [(ALPHA, TOKEN_ABI), (PAIR, PAIR_ABI), (ROUTER, ROUTER_ABI)]]


alpha, pair, router = contracts(w3)


def nobody():
    return Web3.to_checksum_address(secrets.token_hex(20))


def amount_out(amount_in, reserve_in, reserve_out):
    """Returns the output of a constant-product pair for `amount_in`, after its fee of 0.3 %."""
    return amount_in * 997 * reserve_out // (reserve_in * 1000 + amount_in * 997)


def fail(what, actual, expected):
    print(f"FAILED  {what}\n  actual:   {actual!r}\n  expected: {expected!r}", file=sys.stderr, flush=True)
    os._exit(1)


def claim(what, actual, expected):
    if actual != expected:
        fail(what, actual, expected)
    print(f"ok  {what}", flush=True)


def refusal(call):
    """Returns the error of a call that must be refused."""
    try:
        return fail("the call is refused", call(), "a revert")
    except ContractLogicError as error:
        return error


def at_one_head(work):
    """Repeats `work` if a block was sealed meanwhile, so that all of its reads belong to one head."""
    while True:
        head = w3.eth.block_number
        result = work(head)
        if w3.eth.block_number == head:
            return result


def reads(path, w3):
    """Checks the reads of a read-only program, which have the same answers on `/` and `/standard`."""

    def say(what, actual, expected):
        claim(f"{path}: {what}", actual, expected)

    alpha, pair, router = contracts(w3)
    say("chain_id", w3.eth.chain_id, 31337)
    say("get_balance of nobody", w3.eth.get_balance(nobody()), 0)
    say("get_transaction_count of nobody", w3.eth.get_transaction_count(nobody(), "pending"), 0)
    say("get_code of an account without code", w3.eth.get_code(nobody()), HexBytes("0x"))
    say("a contract read", [alpha.functions.name().call(), alpha.functions.decimals().call()], ["Alpha", 18])
    supply = alpha.functions.totalSupply().call()
    say("get_storage_at: the supply of ALPHA", Web3.to_int(w3.eth.get_storage_at(ALPHA, 2)), supply)
    reserve0, reserve1, _ = pair.functions.getReserves().call(block_identifier="pending")
    say("a quote at pending is the formula's",
        router.functions.getAmountsOut(ETHER, [WETH, ALPHA]).call(block_identifier="pending"),
        [ETHER, amount_out(ETHER, reserve0, reserve1)])
    reason = refusal(router.functions.getAmountsOut(1, [WETH]).call)
    say("Error(string) is a ContractLogicError", w3.codec.decode(["string"], HexBytes(reason.data)[4:]), ("Router: invalid path",))
    custom = refusal(lambda: alpha.functions.transfer(WETH, 7).call({"from": nobody()}))
    say("a custom error is a ContractCustomError, with its data",
        [type(custom), HexBytes(custom.data)[:4], w3.codec.decode(["uint256", "uint256"], HexBytes(custom.data)[4:])],
        [ContractCustomError, Web3.keccak(text="InsufficientBalance(uint256,uint256)")[:4], (0, 7)])
    say("estimate_gas of a transfer", w3.eth.estimate_gas({"from": account.address, "to": nobody(), "value": 1}), 21000)
    head, pending = at_one_head(lambda _: (w3.eth.get_block("latest"), w3.eth.get_block("pending", True)))
    say("get_block('pending') builds on the newest block", [pending.number, pending.parentHash], [head.number + 1, head.hash])
    say("get_block by hash", w3.eth.get_block(head.hash), head)
    say("get_logs of a block without them", w3.eth.get_logs({"address": ALPHA, "topics": [Web3.keccak(text="Nothing()")], "fromBlock": 0}), [])

    proof, root = at_one_head(lambda head: (w3.eth.get_proof(ALPHA, [2], head), w3.eth.get_block(head).stateRoot))
    say("get_proof: the root node hashes to the block's state root", Web3.keccak(proof.accountProof[0]), root)
    say("get_proof: the slot's value", Web3.to_int(HexBytes(proof.storageProof[0].value)), supply)

    history, blocks = at_one_head(
        lambda head: (w3.eth.fee_history(2, head, [50]), [w3.eth.get_block(number) for number in range(max(head - 1, 0), head + 1)]))
    say("fee_history: base fees are the blocks'", [history.oldestBlock, *history.baseFeePerGas[:-1]],
        [blocks[0].number, *(block.baseFeePerGas for block in blocks)])


def simulation():
    rich = nobody()
    [first, second] = w3.eth.simulate_v1(
        {
            "blockStateCalls": [
                {
                    "stateOverrides": {rich: {"balance": hex(5 * ETHER)}},
                    "calls": [
                        {"to": PAIR, "data": pair.encode_abi("getReserves")},
                        {"from": rich, "to": ROUTER, "value": ETHER,
                         "data": router.encode_abi("swapExactETHForTokens", [0, [WETH, ALPHA], rich, NEVER])},
                        {"from": nobody(), "to": ALPHA, "data": alpha.encode_abi("transfer", [rich, 5])},
                    ],
                },
                {"calls": [{"to": ALPHA, "data": alpha.encode_abi("balanceOf", [rich])}]},
            ],
            "validation": False,
            "traceTransfers": True,
        },
        "pending",
    )
    reserves, swap, poor = first.calls
    out = amount_out(ETHER, *w3.codec.decode(["uint112", "uint112", "uint32"], reserves.returnData)[:2])
    claim("simulate_v1: a swap pays what the formula says", [swap.status, *w3.codec.decode(["uint256[]"], swap.returnData)], [1, (ETHER, out)])
    [paid] = [log for log in swap.logs if log.address == ALPHA]
    claim("simulate_v1: so says the Transfer event", alpha.events.Transfer().process_log(paid).args, {"from": PAIR, "to": rich, "value": out})
    claim("simulate_v1: traceTransfers shows the ether",
          [Web3.to_int(log.data) for log in swap.logs if int(log.address, 16) == int("ee" * 20, 16)], [ETHER, ETHER])
    claim("simulate_v1: a failed call has its revert data", [poor.status, HexBytes(poor.error["data"])],
          [0, Web3.keccak(text="InsufficientBalance(uint256,uint256)")[:4] + w3.codec.encode(["uint256", "uint256"], [0, 5])])
    claim("simulate_v1: the second block sees the first", Web3.to_int(second.calls[0].returnData), out)
    claim("simulate_v1: the second block follows the first", [second.number, second.timestamp, second.parentHash],
          [first.number + 1, first.timestamp + 12, first.hash])


def sign(transaction):
    """Fills in missing fields of a transaction, signs it, and returns its bytes."""
    fees = {"maxPriorityFeePerGas": w3.eth.max_priority_fee}
    fees["maxFeePerGas"] = 2 * w3.eth.get_block("pending").baseFeePerGas + fees["maxPriorityFeePerGas"]
    filled = {"from": account.address, "chainId": w3.eth.chain_id, "nonce": w3.eth.get_transaction_count(account.address, "pending"),
              **fees, **transaction}
    if "gas" not in filled:
        filled["gas"] = w3.eth.estimate_gas(filled)
    return account.sign_transaction(filled).raw_transaction


def send(transaction):
    """Sends a transaction and returns its receipt, which comes with its block."""
    return w3.eth.wait_for_transaction_receipt(w3.eth.send_raw_transaction(sign(transaction)), timeout=20)


def sending():
    receiver = nobody()
    before = w3.eth.get_balance(account.address, "pending")
    raw = sign({"to": receiver, "value": ETHER * 3 // 2})
    receipt = w3.eth.wait_for_transaction_receipt(w3.eth.send_raw_transaction(raw), timeout=20)
    claim("send_raw_transaction and wait_for_transaction_receipt",
          [receipt.transactionHash, receipt.status, receipt.gasUsed, receipt["from"], receipt.to],
          [Web3.keccak(raw), 1, 21000, account.address, receiver])
    claim("its receiver has the ether", w3.eth.get_balance(receiver, "pending"), ETHER * 3 // 2)
    claim("its sender paid it and the gas", w3.eth.get_balance(account.address, "pending"),
          before - ETHER * 3 // 2 - receipt.gasUsed * receipt.effectiveGasPrice)
    reverted = send({"to": ALPHA, "data": alpha.encode_abi("transfer", [WETH, NEVER]), "gas": 100_000})
    claim("a transaction that reverts has a receipt without logs", [reverted.status, reverted.logs], [0, []])


def buy(receiver):
    """Buys ALPHA for 2 ether. Returns the amount and the receipt."""
    reserve0, reserve1, _ = pair.functions.getReserves().call(block_identifier="pending")
    out = amount_out(2 * ETHER, reserve0, reserve1)
    receipt = send({"to": ROUTER, "value": 2 * ETHER,
                    "data": router.encode_abi("swapExactETHForTokens", [0, [WETH, ALPHA], receiver, NEVER])})
    syncs = [pair.events.Sync().process_log(log).args for log in receipt.logs if log.topics[0] == Web3.keccak(text="Sync(uint112,uint112)")]
    claim("a swap: its Sync event has the new reserves", syncs, [{"reserve0": reserve0 + 2 * ETHER, "reserve1": reserve1 - out}])
    found = alpha.events.Transfer().get_logs(from_block=receipt.blockNumber, to_block="pending", argument_filters={"to": receiver})
    claim("get_logs up to pending finds the Transfer", [(log.args, log.transactionHash, log.blockNumber) for log in found],
          [({"from": PAIR, "to": receiver, "value": out}, receipt.transactionHash, receipt.blockNumber)])
    return out, receipt


async def watching():
    receiver = nobody()
    async with AsyncWeb3(WebSocketProvider(f"{URL.replace('http', 'ws')}/standard")) as socket:
        heads = await socket.eth.subscribe("newHeads")
        topics = [Web3.keccak(text="Transfer(address,address,uint256)"), None, HexBytes(receiver).rjust(32, b"\0")]
        logs = await socket.eth.subscribe("logs", {"address": ALPHA, "topics": topics})
        supply = {"to": ALPHA, "data": alpha.encode_abi("totalSupply"), "gas": "0x186a0"}
        simulate = {"blockStateCalls": [{"calls": [supply]}], "outputs": ["returnData"]}
        standing = await socket.eth.subscribe("presim_watch", [{"name": "supply", "simulate": simulate}])
        out, receipt = await asyncio.to_thread(buy, receiver)
        seen = {heads: [], logs: [], standing: []}
        async for message in socket.socket.process_subscriptions():
            seen[message["subscription"]].append(message["result"])
            if len(seen[heads]) >= 2 and seen[logs] and seen[standing]:
                break
    claim("a subscription to logs hears the Transfer", [(Web3.to_int(log.data), log.transactionHash) for log in seen[logs]],
          [(out, receipt.transactionHash)])
    changed = [(one["name"], int(one["result"][0]["calls"][0]["returnData"], 16)) for one in seen[standing][0]["changed"]]
    claim("presim_watch by eth_subscribe: the first news", changed, [("supply", alpha.functions.totalSupply().call())])
    first, second = seen[heads][:2]
    claim("a subscription to newHeads: each block is the next one's parent", [second.number, second.parentHash], [first.number + 1, first.hash])
    sealed = w3.eth.get_transaction_receipt(receipt.transactionHash)
    claim("once sealed it has the block's hash", sealed.blockHash, w3.eth.get_block(sealed.blockNumber).hash)


async def watching_socket(path):
    async with AsyncWeb3(AsyncIPCProvider(path)) as socket:
        await socket.eth.subscribe("newHeads")
        heads = []
        async for message in socket.socket.process_subscriptions():
            heads.append(message["result"])
            if len(heads) == 2:
                break
    claim("a subscription on the Unix socket: each block is the next one's parent", heads[1].parentHash, heads[0].hash)


def unix_socket():
    path = os.environ.get("PRESIM_SOCKET")
    if not path:
        return
    reads("the Unix socket", Web3(IPCProvider(path)))
    asyncio.run(watching_socket(path))


def main():
    alarm = threading.Timer(60, fail, ["the program ends within 60 s", "it did not", "it did"])
    alarm.daemon = True
    alarm.start()
    try:
        reads("/standard", w3)
        reads("/", strict)
        simulation()
        sending()
        asyncio.run(watching())
        unix_socket()
    except Exception as error:  # noqa: BLE001: every error is reported
        fail("every request is answered", error, "an answer")
    print("web3.py: all claims hold")


main()
