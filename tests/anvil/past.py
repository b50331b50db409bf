"""Past blocks of an anvil, asked of presim that follows it, beside the anvil itself: past.py PRESIM ANVIL

The anvil has presim's trading world and a pool of Uniswap V3, and mines a random signed transaction in each block. presim begins to follow
at its end, and keeps few states. Random reads and calls at random blocks, by number and by hash, must be the same on both. So must
those before and after the transaction of a block, which on the anvil are those of the block before and of the block. Then the anvil takes
other branches, and it is compared again. PRESIM_PAST_READS (1000) says how many are compared; then PRESIM_PAST_SCAN (500) blocks are
scanned, and the memory of presim must not grow beyond what its cache may have."""

import os
import pathlib
import random
import sys
import time

from fork import ALICE, BOB, ETHER, NEVER, STRANGER, Node, World, same

READS = int(os.environ.get("PRESIM_PAST_READS", 1000))
SCAN = int(os.environ.get("PRESIM_PAST_SCAN", 500))
BLOCKS = 60
REORGS = 3
CACHE_MB = 16
# What else a process may take meanwhile.
SLACK_MB = 64


def transaction(world, chance):
    """Returns a random transaction, without its nonce."""
    call, sender = world.selectors.call, chance.choice([ALICE, BOB])
    amount = chance.randrange(1, ETHER)
    path = (2, world.weth, world.alpha)
    buy = call("swapExactETHForTokens(uint256,address[],address,uint256)", 0, 128, sender, NEVER, *path)
    single = "exactInputSingle((address,address,uint24,address,uint256,uint256,uint256,uint160))"
    choices = [
        (STRANGER, "0x", amount),
        (world.weth, call("deposit()"), amount),
        (world.router, buy, amount),
        (world.swapper, call(single, world.weth, world.alpha, 3000, ALICE, NEVER, amount, 0, 0), 0),
        (world.weth, call("transfer(address,uint256)", STRANGER, 7), 0),
    ]
    to, data, value = chance.choice(choices)
    return {"from": sender, "to": to, "data": data, "value": hex(value), "gas": hex(1_000_000), "gasPrice": hex(100 * 10**9)}


def follow(node, chain):
    """Waits until a node has the chain's newest block."""
    for _ in range(600):
        head = chain.result("eth_getBlockByNumber", "latest", False)["hash"]
        if node.result("eth_getBlockByNumber", "latest", False)["hash"] == head:
            return
        time.sleep(0.1)
    sys.exit("presim does not follow the anvil")


def at(read, block):
    return (*read[:-1], block)


def compare(world, node, chain, first, count, seed):
    """Compares reads at random blocks."""
    chance = random.Random(seed)
    blocks = [chain.result("eth_getBlockByNumber", hex(number), False) for number in range(first, int(chain.result("eth_blockNumber"), 16) + 1)]
    reads = iter(())
    for index in range(count):
        read = next(reads, None)
        if read is None:
            reads = world.reads(chance.randrange(2**32))
            read = next(reads)
        here = chance.randrange(1, len(blocks))
        block = blocks[here]
        named = chance.choice([block["number"], {"blockHash": block["hash"]}, {"blockNumber": block["number"]}])
        what = f"{read} at {named} (read {index} of seed {seed})"
        same(what, node.call(*at(read, named)), chain.call(*at(read, block["number"])))
        inside = named if isinstance(named, dict) else {"blockNumber": named}
        if len(block["transactions"]) == 1 and read[0] != "eth_call":
            # The environment of a call within a block is that of the block, whose number and time anvil's call at the parent does not have.
            for place, whole in ((0, blocks[here - 1]), (1, block)):
                ours = node.call(*at(read, {**inside, "transactionIndex": place}))
                same(f"{what}, after {place} transactions", ours, chain.call(*at(read, whole["number"])))


def memory(node):
    """Returns the resident memory of a node in MB."""
    status = pathlib.Path(f"/proc/{node.process.pid}/status").read_text()
    return next(int(line.split()[1]) >> 10 for line in status.splitlines() if line.startswith("VmRSS"))


def main():
    presim, anvil = sys.argv[1:3]
    chain = Node("chain", anvil, "--port", "0", "--hardfork", "prague", "--order", "fifo", "--max-persisted-states", "100000")
    nodes = [chain]
    try:
        world = World(presim, chain)
        seed = random.randrange(2**32)
        chance, first = random.Random(seed), int(chain.result("eth_blockNumber"), 16)
        for _ in range(BLOCKS):
            chain.result("eth_sendTransaction", transaction(world, chance))
        flags = ["--keep-blocks", "4", "--flashblocks-ahead", "2", "--archive-cache-mb", str(CACHE_MB), "--upstream-poll-ms", "100"]
        node = Node("presim", presim, "--listen", "127.0.0.1:0", "--upstream", chain.url, "--fork", "prague=0", *flags)
        nodes.append(node)
        node.url += "/standard"
        for branch in range(REORGS + 1):
            if branch > 0:
                depth = chance.randrange(2, 12)
                chain.result("anvil_reorg", depth, [[transaction(world, chance), place] for place in range(0, depth, 2)])
                for _ in range(4):
                    chain.result("eth_sendTransaction", transaction(world, chance))
            follow(node, chain)
            compare(world, node, chain, first, READS // (REORGS + 1), seed + branch)
        for mined in range(0, SCAN, 250):
            chain.result("anvil_mine", hex(min(250, SCAN - mined)))
            follow(node, chain)
        before, newest = memory(node), int(chain.result("eth_blockNumber"), 16)
        for number in range(newest - SCAN, newest):
            reserves = node.call("eth_call", {"to": world.pairs[0], "data": world.selectors.call("getReserves()")}, hex(number))
            if not isinstance(reserves, str):
                sys.exit(f"the scan at block {number}: {reserves}")
        grown = memory(node) - before
        if grown > CACHE_MB + SLACK_MB:
            sys.exit(f"{SCAN} blocks were scanned with a cache of {CACHE_MB} MB, and presim has grown by {grown} MB")
        print(f"{READS} reads at past blocks in {REORGS + 1} branches (seed {seed}): as on the anvil; {SCAN} blocks scanned, grown by {grown} MB")
    finally:
        for node in reversed(nodes):
            node.stop()


main()
