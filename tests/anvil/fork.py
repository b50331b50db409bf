"""A fork by presim beside anvil's own fork of the same chain: fork.py PRESIM ANVIL

The chain is an anvil with presim's trading world (Uniswap V2) and a pool of Uniswap V3. On both forks the same is sent: swaps in V2 and
V3, a transfer in the name of a contract, a new contract, and all of it once more after evm_revert. Receipts, logs and 200 random reads
must be the same, and the chain itself must be as it was."""

import json
import pathlib
import random
import subprocess
import sys
import tempfile
import time
import urllib.request

HERE = pathlib.Path(__file__).parent
ALICE = "0xf39fd6e51aad88f6f4ce6ab8827279cfffb92266"
BOB = "0x70997970c51812dc3a010c7d01b50e0d17dc79c8"
STRANGER = "0x00000000000000000000000000000000000ba1e0"
ETHER = 10**18
READS = 200
# The square root of the price 1, in V3's fixed point.
PRICE_ONE = 1 << 96
NEVER = 2**40


class Node:
    """A node, as a process that ends with this one."""

    def __init__(self, name, program, *args):
        self.name, self.log = name, tempfile.NamedTemporaryFile("w+", prefix=name)
        self.process = subprocess.Popen([program, *args], stdout=self.log, stderr=subprocess.STDOUT)
        for _ in range(600):
            text = pathlib.Path(self.log.name).read_text()
            for line in text.splitlines():
                if " listens on http://" in line:
                    self.url = line.split(" listens on ")[1].split()[0]
                    return
                if line.startswith("Listening on "):
                    self.url = "http://" + line.split("Listening on ")[1].strip()
                    return
            if self.process.poll() is not None:
                break
            time.sleep(0.1)
        sys.exit(f"{name} did not start:\n{pathlib.Path(self.log.name).read_text()}")

    def call(self, method, *params):
        """Returns the result, or the error's text."""
        body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).encode()
        request = urllib.request.Request(self.url, body, {"content-type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as answer:
            answer = json.loads(answer.read())
        return answer["result"] if "error" not in answer else {"error": answer["error"].get("data") or answer["error"]["code"]}

    def result(self, method, *params):
        result = self.call(method, *params)
        if isinstance(result, dict) and "error" in result:
            sys.exit(f"{self.name}: {method} {params}: {result}")
        return result

    def send(self, data, to=None, sender=ALICE, value=0, gas=6_000_000, price=100 * 10**9):
        """Mines a transaction at a time of its own, and returns its receipt."""
        transaction = {"from": sender, "value": hex(value), "gas": hex(gas), "gasPrice": hex(price), "data": data}
        if to is not None:
            transaction["to"] = to
        sent = self.result("eth_sendTransaction", transaction)
        for _ in range(600):
            receipt = self.result("eth_getTransactionReceipt", sent)
            if receipt is not None:
                return receipt
            time.sleep(0.05)
        sys.exit(f"{self.name}: {sent} was not mined")

    def stop(self):
        self.process.terminate()
        self.process.wait(20)


def words(*values):
    """Returns values as the words of call data."""
    return "".join(f"{int(value, 16) if isinstance(value, str) else value % 2**256:064x}" for value in values)


class Selectors:
    """Selectors of functions, hashed by a node."""

    def __init__(self, node):
        self.node, self.known = node, {}

    def call(self, signature, *values):
        if signature not in self.known:
            self.known[signature] = self.node.result("web3_sha3", "0x" + signature.encode().hex())[:10]
        return self.known[signature] + words(*values)


def artifact(package, path):
    name = pathlib.Path(path).stem
    file = HERE / "node_modules/@uniswap" / package / "artifacts/contracts" / path / f"{name}.json"
    return json.loads(file.read_text())["bytecode"]


def deployed(node, code, *values):
    receipt = node.send(code + words(*values), gas=12_000_000)
    if receipt["status"] != "0x1":
        sys.exit(f"{node.name}: a contract was not created: {receipt}")
    return receipt["contractAddress"]


def done(receipt):
    if receipt["status"] != "0x1":
        sys.exit(f"a transaction of the beginning has failed: {receipt}")
    return receipt


class World:
    """The contracts on the chain."""

    def __init__(self, presim, chain):
        source = Node("world", presim, "--testing", "--world", "--port", "0")
        named = {one["name"]: one["address"] for one in source.result("presim_status")["contracts"]}
        chain.result("anvil_loadState", source.result("anvil_dumpState"))
        self.selectors = Selectors(source)
        call = self.selectors.call
        self.weth, self.alpha, self.router = named["WETH"], named["ALPHA"], named["router"]
        self.pairs = [address for name, address in named.items() if "/" in name]
        # Half of the ether is wrapped, and some of it swapped, so that there is something for the pool.
        done(chain.send(call("deposit()"), to=self.weth, value=200 * ETHER))
        path = (2, self.weth, self.alpha)
        buy = call("swapExactETHForTokens(uint256,address[],address,uint256)", 0, 128, ALICE, NEVER, *path)
        done(chain.send(buy, to=self.router, value=50 * ETHER))
        self.factory = deployed(chain, artifact("v3-core", "UniswapV3Factory.sol"))
        self.swapper = deployed(chain, artifact("v3-periphery", "SwapRouter.sol"), self.factory, self.weth)
        positions = artifact("v3-periphery", "NonfungiblePositionManager.sol")
        self.positions = deployed(chain, positions, self.factory, self.weth, 0)
        tokens = sorted([self.weth, self.alpha], key=lambda token: int(token, 16))
        create = call("createAndInitializePoolIfNecessary(address,address,uint24,uint160)", *tokens, 3000, PRICE_ONE)
        done(chain.send(create, to=self.positions))
        for token in tokens:
            done(chain.send(call("approve(address,uint256)", self.positions, 2**256 - 1), to=token))
            done(chain.send(call("approve(address,uint256)", self.swapper, 2**256 - 1), to=token))
        mint = "mint((address,address,uint24,int24,int24,uint256,uint256,uint256,uint256,address,uint256))"
        amounts = (20 * ETHER, 20 * ETHER, 0, 0)
        done(chain.send(call(mint, *tokens, 3000, -60000, 60000, *amounts, ALICE, NEVER), to=self.positions))
        pool = chain.result("eth_call", {"to": self.factory, "data": call("getPool(address,address,uint24)", *tokens, 3000)}, "latest")
        self.pool = "0x" + pool[-40:]
        source.stop()
        self.selectors.node = chain
        done(chain.send("0x", to=STRANGER, value=5 * ETHER))

    def steps(self, node, time):
        """Sends the same to a fork, and returns the receipts."""
        call, receipts = self.selectors.call, []

        def send(*args, **more):
            nonlocal time
            time += 12
            node.result("evm_setNextBlockTimestamp", time)
            receipts.append(node.send(*args, **more))

        path = (2, self.weth, self.alpha)
        send(call("swapExactETHForTokens(uint256,address[],address,uint256)", 0, 128, ALICE, NEVER, *path), to=self.router, value=ETHER)
        single = "exactInputSingle((address,address,uint24,address,uint256,uint256,uint256,uint160))"
        send(call(single, self.weth, self.alpha, 3000, ALICE, NEVER, ETHER, 0, 0), to=self.swapper)
        send(call(single, self.alpha, self.weth, 3000, BOB, NEVER, 2 * ETHER, 0, 0), to=self.swapper)
        # A swap that asks for too much, and reverts.
        send(call(single, self.weth, self.alpha, 3000, ALICE, NEVER, ETHER, 2**200, 0), to=self.swapper)
        # A contract sends in its own name.
        node.result("anvil_impersonateAccount", self.pool)
        node.result("anvil_setBalance", self.pool, hex(ETHER))
        send(call("transfer(address,uint256)", STRANGER, 1000), to=self.weth, sender=self.pool, gas=100_000)
        node.result("anvil_impersonateAccount", STRANGER)
        send("0x", to=BOB, sender=STRANGER, value=ETHER, gas=21_000)
        # Returns the word at the slot that its input names.
        send("0x600a600c600039600a6000f3" + "5f35545f5260205ff300", sender=BOB)
        send(artifact("v3-core", "UniswapV3Factory.sol"), gas=12_000_000)
        return receipts

    def reads(self, seed):
        """Returns random reads, the same for each node."""
        chance, call = random.Random(seed), self.selectors.call
        accounts = [ALICE, BOB, STRANGER, self.router, self.pool, self.swapper, self.weth, self.alpha, *self.pairs]
        for _ in range(READS):
            account, other = chance.choice(accounts), chance.choice(accounts)
            token, amount = chance.choice([self.weth, self.alpha]), chance.randrange(1, 10**19)
            path = [self.weth, self.alpha][:: chance.choice([1, -1])]
            quote = call("getAmountsOut(uint256,address[])", amount, 64, 2, *path)
            single = "exactInputSingle((address,address,uint24,address,uint256,uint256,uint256,uint160))"
            swap = call(single, *path, 3000, other, NEVER, amount, 0, 0)
            yield chance.choice(
                [
                    ("eth_getBalance", account, "latest"),
                    ("eth_getTransactionCount", account, "latest"),
                    ("eth_getCode", account, "latest"),
                    ("eth_getStorageAt", account, hex(chance.randrange(0, 12)), "latest"),
                    ("eth_call", {"to": token, "data": call("balanceOf(address)", account)}, "latest"),
                    ("eth_call", {"to": token, "data": call("allowance(address,address)", account, other)}, "latest"),
                    ("eth_call", {"to": chance.choice(self.pairs), "data": call("getReserves()")}, "latest"),
                    ("eth_call", {"to": self.pool, "data": call("slot0()")}, "latest"),
                    ("eth_call", {"to": self.pool, "data": call("liquidity()")}, "latest"),
                    ("eth_call", {"to": self.pool, "data": call("ticks(int24)", chance.choice([-60000, 60000, 0]))}, "latest"),
                    ("eth_call", {"to": self.router, "data": quote}, "latest"),
                    ("eth_call", {"from": ALICE, "to": self.swapper, "data": swap}, "latest"),
                    ("eth_call", {"from": other, "to": account, "data": call("transfer(address,uint256)", other, amount)}, "latest"),
                ]
            )


def shown(receipt):
    """Returns the parts of a receipt that do not depend on the hash of the block."""
    logs = [[log["address"].lower(), log["topics"], log["data"]] for log in receipt["logs"]]
    created = (receipt.get("contractAddress") or "").lower()
    return {"status": receipt["status"], "gas": receipt["gasUsed"], "created": created, "logs": logs, "block": receipt["blockNumber"]}


def same(what, ours, theirs):
    if ours != theirs:
        sys.exit(f"{what}: the forks differ\n  presim {json.dumps(ours)[:2000]}\n  anvil  {json.dumps(theirs)[:2000]}")


def main():
    presim, anvil = sys.argv[1:3]
    chain = Node("chain", anvil, "--port", "0", "--hardfork", "prague")
    nodes = [chain]
    try:
        world = World(presim, chain)
        head = chain.result("eth_getBlockByNumber", "latest", False)
        ours = Node("presim", presim, "fork", chain.url, "--port", "0", "--hardfork", "prague")
        theirs = Node("anvil", anvil, "--fork-url", chain.url, "--port", "0", "--hardfork", "prague")
        nodes += [ours, theirs]
        start, seed = int(head["timestamp"], 16) + 1000, random.randrange(2**32)
        for node in (ours, theirs):
            same("the head", node.result("eth_getBlockByNumber", "latest", False)["hash"], head["hash"])
        compared = 0
        for again in range(2):
            saved = [node.result("evm_snapshot") for node in (ours, theirs)]
            mined = [world.steps(node, start) for node in (ours, theirs)]
            for step, (one, other) in enumerate(zip(*mined)):
                same(f"transaction {step}", shown(one), shown(other))
            for read in world.reads(seed + again):
                same(f"{read}, of seed {seed}", ours.call(*read), theirs.call(*read))
                compared += 1
            statuses = [receipt["status"] for receipt in mined[0]]
            if statuses.count("0x1") != len(statuses) - 1:
                sys.exit(f"one of the transactions is to fail: {statuses}")
            for node, one in zip((ours, theirs), saved):
                same("evm_revert", node.result("evm_revert", one), True)
                same("the block after evm_revert", node.result("eth_blockNumber"), head["number"])
        same("the chain", chain.result("eth_getBlockByNumber", "latest", False), head)
        print(f"{2 * len(statuses)} transactions and {compared} reads (seed {seed}): the same on presim's fork of an anvil as on anvil's own")
    finally:
        for node in reversed(nodes):
            node.stop()


if __name__ == "__main__":
    main()
