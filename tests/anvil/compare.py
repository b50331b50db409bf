"""Sends two nodes the same requests and reports differences: compare.py URL_A URL_B BODIES_DIR.

A is a presim on an upstream, B one with the same state of its own. Block hashes are not compared, because the
upstream's first block has no state root, and every later hash depends on it."""

import json
import pathlib
import sys
import urllib.request

DEPENDS_ON_THE_GENESIS_HASH = {"hash", "parentHash", "blockHash"}
EACH = 12


def ask(url, body):
    request = urllib.request.Request(url, body.encode(), {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.loads(answer.read())


def plain(value):
    if isinstance(value, dict):
        return {key: plain(inner) for key, inner in value.items() if key not in DEPENDS_ON_THE_GENESIS_HASH}
    if isinstance(value, list):
        return [plain(inner) for inner in value]
    return value


def bodies(folder):
    for file in sorted(pathlib.Path(folder).glob("*.ndjson")):
        for line in file.read_text().splitlines()[:EACH]:
            yield file.stem, line
            yield f"{file.stem} at pending", line.replace('"latest"', '"pending"')
    for method in ("eth_getBalance", "eth_getTransactionCount", "eth_getCode"):
        params = ["0xf39fd6e51aad88f6f4ce6ab8827279cfffb92266", "latest"]
        yield method, json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params})


def main():
    a, b, folder = sys.argv[1:]
    compared = 0
    for name, body in bodies(folder):
        ours, theirs = ask(a, body), ask(b, body)
        for answer in ours if isinstance(ours, list) else [ours]:
            if "error" in answer:
                sys.exit(f"{name}: the node on the upstream fails: {answer['error']}")
        if plain(ours) != plain(theirs):
            sys.exit(f"{name}: the nodes differ\n{json.dumps(ours)[:2000]}\n{json.dumps(theirs)[:2000]}")
        compared += 1
    if compared < 100:
        sys.exit(f"only {compared} requests were compared, at least 100 expected: are the bodies there?")
    print(f"{compared} calls and simulations: the same on the upstream's state as on its own")


main()
