"""A page on another origin tries to send from a node's accounts and to have them sign, in a real browser: main.py PRESIM CHROMIUM"""

import http.server
import json
import os
import queue
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse
import urllib.request

BINARY, CHROMIUM = sys.argv[1:3]
TARGET = "0x00000000000000000000000000000000beefcafe"
# The ways that a page of a listed origin may use. The others do not send JSON.
OPEN = {"fetch of JSON", "WebSocket"}
# The methods that the page calls, and the wei that each sends.
METHODS = {"eth_sendTransaction": 1, "personal_sign": 0, "wallet_sendCalls": 1}
PATIENCE = 60
FLAGS = (
    "--headless --no-sandbox --disable-gpu --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --disable-dev-shm-usage"
).split()

reports = queue.Queue()


class Page(http.server.BaseHTTPRequestHandler):
    """Serves the page and receives its report."""

    def do_GET(self):
        found = urllib.parse.urlsplit(self.path).path == "/"
        body = open(os.path.join(os.path.dirname(__file__), "page.html"), "rb").read() if found else b""
        self.send_response(200 if found else 404)
        self.send_header("content-type", "text/html; charset=utf-8")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self):
        report = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.send_response(204)
        self.end_headers()
        reports.put(report)

    def log_message(self, *_):
        pass


class Node:
    """A devnet in which nothing happens by itself, in a process of its own."""

    def __init__(self, *flags):
        self.log = tempfile.TemporaryFile()
        command = [BINARY, "--listen", "127.0.0.1:0", "--traffic", "0", "--sub-block-ms", "100", *flags]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=self.log, text=True)
        self.address = None
        for line in self.process.stdout:
            if found := re.search(r" listens on http://(\S+?)/?(\s|$)", line):
                self.address = found[1]
            if line.startswith("curl "):
                break
        if self.address is None:
            self.log.seek(0)
            sys.exit(f"the node did not start with {flags}: {self.log.read().decode()}")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()

    def result(self, method, *params):
        body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).encode()
        request = urllib.request.Request(f"http://{self.address}/", body, {"content-type": "application/json"})
        answer = json.load(urllib.request.urlopen(request, timeout=10))
        if "error" in answer:
            sys.exit(f"{method}: {answer['error']}")
        return answer["result"]

    def seen(self):
        """Returns the pending nonces of all accounts and the pending balance of the target."""
        nonces = [int(self.result("eth_getTransactionCount", account, "pending"), 16) for account in self.result("eth_accounts")]
        return nonces, int(self.result("eth_getBalance", TARGET, "pending"), 16)


def browse(url):
    """Opens a page in a new browser and returns the page's report."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        # The browser has a process group of its own, to be killed as a whole. The debugging port keeps it open.
        command = [CHROMIUM, *FLAGS, f"--user-data-dir={profile}", "--remote-debugging-port=0", url]
        with tempfile.TemporaryFile() as log:
            browser = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
            try:
                return reports.get(timeout=PATIENCE)
            except queue.Empty:
                log.seek(0)
                sys.exit(f"no report of {url} within {PATIENCE} s: {log.read().decode(errors='replace')[-2000:]}")
            finally:
                os.killpg(browser.pid, signal.SIGKILL)
                browser.wait()


def attack(node, page):
    """Has the page try all its ways. Returns those that it reports as successful."""
    asked = {"node": node.address, "from": node.result("eth_accounts")[0], "to": TARGET, "chainId": node.result("eth_chainId")}
    report = browse(f"{page}/?{urllib.parse.urlencode(asked)}")
    for way, method, outcome in report["results"]:
        print(f"   {report['origin']}: {way}: {method}: {outcome[:160]}")
    return sorted((way, method) for way, method, outcome in report["results"] if outcome == "sent")


def main():
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Page)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    port = server.server_address[1]
    failures = []

    # Another port is the same site to a browser; another name is another site.
    for page in (f"http://127.0.0.1:{port}", f"http://localhost:{port}"):
        print(f"-- {page} is not listed")
        with Node() as node:
            before = node.seen()
            sent = attack(node, page)
            # An accepted transaction would be mined within a second.
            time.sleep(1)
            after = node.seen()
        if sent:
            failures.append(f"{page} is not listed, and was answered: {sent}")
        if after != before:
            failures.append(f"{page} is not listed, and something was sent: {before} before, {after} after")

    page = f"http://localhost:{port}"
    print(f"-- {page} is listed")
    with Node("--allow-origin", page) as node:
        _, balance = node.seen()
        sent = attack(node, page)
        if sent != sorted((way, method) for way in OPEN for method in METHODS):
            failures.append(f"{page} is listed, and only these were answered: {sent}")
        wei = sum(METHODS[method] for _, method in sent)
        deadline = time.monotonic() + 20
        while node.seen()[1] != balance + wei:
            if time.monotonic() > deadline:
                failures.append(f"{page} is listed: {wei} wei were sent: {balance} before, {node.seen()[1]} after")
                break
            time.sleep(0.1)

    for failure in failures:
        print(f"FAILED: {failure}")
    if failures:
        sys.exit(1)
    print("ok: a page sends where its origin is listed, and nowhere else")


main()
