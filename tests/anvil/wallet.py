"""The wallet on anvil: wallet.py PRESIM ANVIL [--seconds S] [--rate R] [--rounds N] [--seeds N,N]

First S seconds of R batches a second of one call each, on blocks of a second: all must land. Then, for each seed, N rounds under
load on a new chain, each ended by kill -9, with reorgs (evm_revert), dropped transactions and foreign transactions that take
nonces. Without --seeds they are those of SEEDS and a random one. A contract counts every call: at the end each was made exactly
once, or its batch's status says that it was not made."""

import argparse
import concurrent.futures
import http.client
import json
import os
import pathlib
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

CHAIN = 31337
# With the first, batches waited behind authorizations that anvil's pool does not count.
SEEDS = [1795583480, 24, 5792]
# Seconds without progress after which the chain is looked at.
STALL = 3
COUNTER = "0x000000000000000000000000000000000000c0de"
PROXY = "0x4e59b44847b379578588920ca78fbf26c0b4956c"
PROXY_CODE = "0x7fffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffe03601600081602082378035828234f58015156039578182fd5b8082525050506014600cf3"
# Adds one to the slot that the first word of the input names.
COUNTER_CODE = "0x5f358054600101905500"
# The accounts of the test mnemonic, and their keys.
KEYS = [
    "ac0974bec39a17e36ba4a6b4d238ff944bacb478cbed5efcae784d7bf4f2ff80",
    "59c6995e998f97a5a0044966f0945389dc9e86dae88c7a8412f4603b6b78690d",
    "5de4111afa1a4b94908f83103eb1f1706367c2e68ca870fc3fb9a804cdab365a",
    "7c852118294e51e653712a81e05800f419141751be58f605c371e15141b007a6",
    "47e179ec197488593b187f80a00eb0da91f1b9d0b13f8733639f19c30a34926a",
    "8b3a350cf5c34c9194ca85829a2df0ec3153be0318b5e2d3348e872092edffba",
    "92db14e403b83dfe3df233f83dfa3a0d7096f21ca9b0d6d6b8d88b2b4ec1564e",
    "4bbbf85ce3377467afe5d46f804f221813b2bb87f24d81f60f1fcdbf7cbf4356",
    "dbda1821b80551c9d65939329250298aa3472ba22feea921c0cf5d620ea67b97",
    "2a871d0798f97d79848a013d4936a73bf4cc922c825d33c1cf7073dff6d409c6",
]
ACCOUNTS = [
    "0xf39fd6e51aad88f6f4ce6ab8827279cfffb92266",
    "0x70997970c51812dc3a010c7d01b50e0d17dc79c8",
    "0x3c44cdddb6a900fa2b585dd299e03d12fa4293bc",
    "0x90f79bf6eb2c4f870365e785982e1f101e93b906",
    "0x15d34aaf54267db7d7c367839aaf71a00a2c6a65",
    "0x9965507d1a55bcc2695c58ba16fb37d819b0a4dc",
    "0x976ea74026e726554db657fa54763abd0c3a0aa9",
    "0x14dc79964da2c08b23698b3d3cc7ca32193d9955",
    "0x23618e81e3f5cdf7f54c3d65f7fbc0abf5b21e8f",
    "0xa0ee7a142d267c1f36714e4a8f75612f20a79720",
]


class Refused(Exception):
    """A JSON-RPC error."""


class Endpoint:
    """A JSON-RPC server over HTTP, with a connection for each thread."""

    def __init__(self, address):
        self.address, self.local = address, threading.local()

    def call(self, method, *params):
        body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params})
        first = None
        for attempt in (0, 1):
            connection = getattr(self.local, "connection", None)
            if connection is None:
                connection = self.local.connection = http.client.HTTPConnection(self.address, timeout=30)
            try:
                connection.request("POST", "/", body, {"content-type": "application/json"})
                answer = json.loads(connection.getresponse().read())
                break
            except (OSError, http.client.HTTPException) as error:
                connection.close()
                self.local.connection = None
                # A connection that was kept open may have been closed meanwhile. What sends is not repeated.
                if attempt or method == "wallet_sendCalls":
                    raise error from first
                first = error
        if "error" in answer:
            raise Refused(answer["error"])
        return answer["result"]


def spawn(command, log, pattern):
    """Starts a process, and returns it with what the pattern's group matches in its output."""
    with open(log, "ab") as out:
        begin = out.tell()
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        text = pathlib.Path(log).read_bytes()[begin:].decode(errors="replace")
        if found := re.search(pattern, text):
            return process, found.group(1)
        if process.poll() is not None:
            sys.exit(f"{command[0]} ended: {text}")
        time.sleep(0.02)
    sys.exit(f"{command[0]} does not say in time where it listens")


class Lab:
    """anvil, and a presim on it that is killed and started again."""

    def __init__(self, presim, anvil, work):
        self.presim_path, self.work = presim, work
        genesis = {
            "config": {
                "chainId": CHAIN, "homesteadBlock": 0, "eip150Block": 0, "eip155Block": 0, "eip158Block": 0, "byzantiumBlock": 0,
                "constantinopleBlock": 0, "petersburgBlock": 0, "istanbulBlock": 0, "berlinBlock": 0, "londonBlock": 0,
                "terminalTotalDifficulty": 0, "terminalTotalDifficultyPassed": True, "shanghaiTime": 0, "cancunTime": 0, "pragueTime": 0,
            },
            "alloc": {
                COUNTER: {"balance": "0x0", "code": COUNTER_CODE},
                PROXY: {"balance": "0x0", "code": PROXY_CODE},
                **{account: {"balance": "0x3635c9adc5dea00000"} for account in ACCOUNTS},
            },
            "difficulty": "0x0", "gasLimit": "0x1c9c380", "nonce": "0x0", "timestamp": "0x65000000", "extraData": "0x",
            "baseFeePerGas": "0x3b9aca00",
        }
        self.genesis = work / "genesis.json"
        self.genesis.write_text(json.dumps(genesis))
        self.keys = []
        for index, key in enumerate(KEYS):
            self.keys.append(work / f"key{index}")
            self.keys[-1].touch(0o600)
            self.keys[-1].write_text(key)
        command = [anvil, "--init", str(self.genesis), "--hardfork", "prague", "--port", "0", "--block-time", "1"]
        self.anvil_process, address = spawn(command, work / "anvil", r"Listening on ([0-9.:]*)")
        self.anvil = Endpoint(address)
        self.process = None
        self.starts = 0

    def start(self):
        command = [
            self.presim_path, "--listen", "127.0.0.1:0", "--genesis", str(self.genesis), "--block-time", "1", "--upstream",
            f"http://{self.anvil.address}", "--upstream-poll-ms", "100", "--data-dir", str(self.work / "data"),
            "--wallet-resend-ms", "1000", "--log", "warn", "--wallet-key-file", ",".join(map(str, self.keys)),
        ]
        self.starts += 1
        self.process, address = spawn(command, self.work / "presim", r" listens on http://([^ /\n]*)")
        self.presim = Endpoint(address)

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def stop(self):
        for process in (self.process, self.anvil_process):
            if process and process.poll() is None:
                process.kill()
                process.wait()

    def batch(self, account, markers, name, atomic=False):
        calls = [{"to": COUNTER, "value": "0x0", "data": f"0x{marker:064x}"} for marker in markers]
        request = {"version": "2.0.0", "id": name, "from": account, "chainId": hex(CHAIN), "atomicRequired": atomic, "calls": calls}
        return self.presim.call("wallet_sendCalls", request)


class Markers:
    """Unique markers of calls, and the batches that they belong to."""

    def __init__(self):
        self.next, self.batches, self.lock = 1, {}, threading.Lock()

    def take(self, count, account):
        with self.lock:
            markers = list(range(self.next, self.next + count))
            self.next += count
            name = f"batch-{markers[0]}"
            self.batches[name] = {"markers": markers, "account": account, "answered": False}
        return name, markers


def status_of(lab, name):
    try:
        return lab.presim.call("wallet_getCallsStatus", name)
    except Refused as refused:
        if refused.args[0]["code"] == 5730:
            return None
        raise


def unstick(lab, waiting):
    """Does what others have to do where an account stands still. `waiting` has the nonces that wait, by account. Returns what it did.

    A foreign transaction before them was dropped, or a reorg has taken it back: another one takes its nonce. Or anvil has the next
    transaction of the account in its queue, where nothing finds it any more: it came with an earlier one missing, whose nonce was
    then used by an authorization, or in the moment when that one was mined. Other nodes look at the account's nonce."""
    done = []
    queued = {account.lower(): nonces for account, nonces in lab.anvil.call("txpool_content")["queued"].items()}
    for account, nonces in waiting.items():
        nonce = int(lab.anvil.call("eth_getTransactionCount", account, "latest"), 16)
        if nonce not in nonces:
            done.append(f"filled nonce {nonce} of {account}")
            try:
                lab.anvil.call("eth_sendTransaction", {"from": account, "to": PROXY[:-1] + "0", "nonce": hex(nonce), "gas": "0x5208"})
            except Refused:
                pass
        elif str(nonce) in queued.get(account, {}):
            done.append(f"anvil keeps nonce {nonce} of {account} in its queue: dropped all")
            lab.anvil.call("anvil_dropAllTransactions")
    return done


def settle(lab, markers, bound):
    """Waits until no batch is pending, and checks every call's count. Returns the batches by their status."""
    deadline, moved = time.monotonic() + bound, time.monotonic()
    pending = set(markers.batches)
    final, helped = {}, []
    while pending:
        before = len(pending)
        waiting = {}
        for name in list(pending):
            status = status_of(lab, name)
            if status is None or status["status"] != 100:
                final[name] = status
                pending.discard(name)
                continue
            for one in status.get("capabilities", {}).get("transactions", {}).get("waiting", []):
                waiting.setdefault(markers.batches[name]["account"], set()).add(int(one["nonce"], 16))
        if len(pending) < before:
            moved = time.monotonic()
        if pending and time.monotonic() - moved > STALL:
            helped += unstick(lab, waiting)
            moved = time.monotonic()
        if time.monotonic() > deadline:
            name = next(iter(pending))
            sys.exit(f"{len(pending)} batches are still pending, like {name}: {json.dumps(status_of(lab, name))}\n{helped}")
        time.sleep(0.3)
    counts = {}
    for name, status in final.items():
        code = status["status"] if status else None
        counts[code] = counts.get(code, 0) + 1
        made = [int(lab.anvil.call("eth_getStorageAt", COUNTER, hex(marker), "latest"), 16) for marker in markers.batches[name]["markers"]]
        landed = len([receipt for receipt in (status or {}).get("receipts", []) if receipt["status"] == "0x1"])
        if status and status["atomic"] and landed:
            landed = len(made)
        expected = {None: 0, 200: len(made), 400: 0, 500: 0, 600: landed}[code]
        if any(count > 1 for count in made) or sum(made) != expected:
            sys.exit(f"{name} has status {code}, and its calls were made {made} times: {json.dumps(status)}")
        if code is None and markers.batches[name]["answered"]:
            sys.exit(f"{name} was accepted, and is lost")
        if code == 400 and not status["capabilities"]["transactions"]["replaced"]:
            sys.exit(f"{name} has failed without a reason: {json.dumps(status)}")
    return counts, helped


def speed(lab, seconds, rate):
    """Sends single-call batches at a rate, and returns the latencies of their answers."""
    markers, latencies = Markers(), []
    lab.start()

    def send(account, due):
        name, taken = markers.take(1, account)
        lab.batch(account, taken, name)
        latencies.append(time.monotonic() - due)

    for account in ACCOUNTS:
        send(account, time.monotonic())
    latencies.clear()
    began = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(32) as pool:
        tasks = []
        for number in range(rate * seconds):
            due = began + number / rate
            time.sleep(max(0, due - time.monotonic()))
            tasks.append(pool.submit(send, ACCOUNTS[number % len(ACCOUNTS)], due))
        for task in tasks:
            task.result()
    took = time.monotonic() - began
    counts, _ = settle(lab, markers, 60 + seconds)
    all_in = time.monotonic() - began
    lab.kill()
    latencies.sort()
    p50, p99 = latencies[len(latencies) // 2], latencies[len(latencies) * 99 // 100]
    print(f"{len(latencies)} batches of one call in {took:.1f} s, {len(latencies) / took:.0f} a second: p50 {1000 * p50:.1f} ms, "
          f"p99 {1000 * p99:.1f} ms; all landed after {all_in:.1f} s: {counts}")
    if set(counts) != {200}:
        sys.exit("not every batch has landed")


def disturb(lab, chance, snapshots):
    """One disturbance of the chain or of anvil's pool."""
    kind = chance.random()
    account = chance.choice(ACCOUNTS)
    try:
        if kind < 0.5:
            lab.anvil.call("eth_sendTransaction", {"from": account, "to": PROXY[:-1] + "0", "gas": "0x5208"})
        elif kind < 0.7:
            content = lab.anvil.call("txpool_content")
            hashes = [tx["hash"] for part in content.values() for txs in part.values() for tx in txs.values()]
            for one in chance.sample(hashes, min(3, len(hashes))):
                lab.anvil.call("anvil_dropTransaction", one)
        elif kind < 0.85:
            snapshots.append(lab.anvil.call("evm_snapshot"))
        elif snapshots:
            lab.anvil.call("evm_revert", snapshots.pop())
            snapshots.clear()
    except Refused:
        pass


def rounds(lab, count, seed):
    chance, markers, snapshots = random.Random(seed), Markers(), []
    for number in range(count):
        lab.start()
        end = time.monotonic() + chance.uniform(0.8, 2.5)

        def client(seed):
            own = random.Random(seed)
            while time.monotonic() < end + 1:
                account = own.choice(ACCOUNTS)
                name, taken = markers.take(own.choice([1, 1, 1, 3]), account)
                try:
                    lab.batch(account, taken, name, own.random() < 0.2)
                    markers.batches[name]["answered"] = True
                except Refused:
                    pass
                except (OSError, http.client.HTTPException, ValueError):
                    return
                time.sleep(own.uniform(0, 0.06))

        clients = [threading.Thread(target=client, args=(chance.random(),)) for _ in range(6)]
        for one in clients:
            one.start()
        while time.monotonic() < end:
            disturb(lab, chance, snapshots)
            time.sleep(chance.uniform(0.02, 0.2))
        lab.kill()
        for one in clients:
            one.join()
        # anvil goes on meanwhile, without what waits in its pool now and then.
        if chance.random() < 0.3:
            lab.anvil.call("anvil_dropAllTransactions")
        if chance.random() < 0.3:
            disturb(lab, chance, snapshots)
    lab.start()
    began = time.monotonic()
    counts, helped = settle(lab, markers, 120 + 10 * count)
    took = time.monotonic() - began
    answered = len([batch for batch in markers.batches.values() if batch["answered"]])
    lab.kill()
    print(f"seed {seed}, {count} rounds of kill -9: {len(markers.batches)} batches, {answered} accepted, by status {counts} "
          f"after {took:.1f} s and {len(helped)} helping hands: each of {markers.next - 1} calls was made once, or its batch says "
          "that it was not", flush=True)
    for help in helped:
        print(f"  {help}", flush=True)
    if answered < 10 * count:
        sys.exit("too few batches were accepted for the rounds to say anything")


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("presim")
    arguments.add_argument("anvil")
    arguments.add_argument("--rounds", type=int, default=5)
    arguments.add_argument("--seconds", type=int, default=10)
    arguments.add_argument("--rate", type=int, default=200)
    arguments.add_argument("--seeds", type=lambda text: [int(seed) for seed in text.split(",")])
    given = arguments.parse_args()
    work = pathlib.Path(tempfile.mkdtemp(prefix="presim-wallet-"))
    lab = None
    seeds = given.seeds or [*SEEDS, int(time.time())]
    print(f"seeds {','.join(map(str, seeds))}", flush=True)
    runs = [lambda: speed(lab, given.seconds, given.rate)] if given.seconds else []
    if given.rounds:
        runs += [lambda seed=seed: rounds(lab, given.rounds, seed) for seed in seeds]
    try:
        for run in runs:
            (work / "run").mkdir()
            lab = Lab(os.path.realpath(given.presim), given.anvil, work / "run")
            run()
            lab.stop()
            shutil.rmtree(work / "run")
    except BaseException:
        for log in sorted((work / "run").glob("presim")):
            print(f"-- the end of {log.name}'s log\n{log.read_text()[-4000:]}", file=sys.stderr)
        raise
    finally:
        if lab:
            lab.stop()
        shutil.rmtree(work, ignore_errors=True)


main()
