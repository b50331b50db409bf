// A page on another origin tries to send from a node's accounts and to have them sign.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import http from "node:http";
import { after, before, test } from "node:test";

import { Node, browse, until } from "./node.js";

const TARGET = "0x00000000000000000000000000000000beefcafe";
/** The ways that a page of a listed origin may use. The others do not send JSON. */
const OPEN = ["fetch of JSON", "WebSocket"];
/** The methods that the page calls, and the wei that each sends. */
const METHODS = { eth_sendTransaction: 1, personal_sign: 0, wallet_sendCalls: 1 };
const QUIET = ["--traffic", "0", "--sub-block-ms", "100"];

let browser, server, port, report;

before(async () => {
  const page = readFileSync(new URL("stranger.html", import.meta.url));
  server = http.createServer((request, response) => {
    if (request.method === "POST") {
      let body = "";
      request.on("data", (part) => { body += part; });
      request.on("end", () => report(JSON.parse(body)));
      response.writeHead(204).end();
      return;
    }
    const found = new URL(request.url, "http://localhost").pathname === "/";
    response.writeHead(found ? 200 : 404, { "content-type": "text/html; charset=utf-8" }).end(found ? page : "");
  });
  server.listen(0, "127.0.0.1");
  await new Promise((resolve) => server.once("listening", resolve));
  ({ port } = server.address());
  browser = await browse();
});

after(async () => {
  await browser.close();
  server.close();
});

/** Returns the pending nonces of all accounts and the pending balance of the target. */
async function seen(node) {
  const accounts = await node.result("eth_accounts");
  const nonces = await Promise.all(accounts.map((account) => node.result("eth_getTransactionCount", account, "pending")));
  return { nonces, balance: BigInt(await node.result("eth_getBalance", TARGET, "pending")) };
}

/** Has the page try all its ways, in a new profile. Returns those that it reports as successful. */
async function attack(node, origin) {
  const asked = new URLSearchParams({ node: node.address, from: (await node.result("eth_accounts"))[0], to: TARGET, chainId: await node.result("eth_chainId") });
  const context = await browser.newContext();
  const told = new Promise((resolve) => { report = resolve; });
  await (await context.newPage()).goto(`${origin}/?${asked}`);
  const { results } = await told;
  await context.close();
  for (const [way, method, outcome] of results) console.log(`   ${origin}: ${way}: ${method}: ${outcome.slice(0, 160)}`);
  assert.equal(results.length, 7 * Object.keys(METHODS).length, "the page tried all ways");
  return results.filter(([, , outcome]) => outcome === "sent").map(([way, method]) => `${way}: ${method}`).sort();
}

// Another port is the same site to a browser; another name is another site.
for (const host of ["127.0.0.1", "localhost"]) {
  test(`a page of ${host} on another port sends nothing`, { timeout: 60_000 }, async () => {
    const node = await Node.start(QUIET);
    try {
      const before = await seen(node);
      assert.deepEqual(await attack(node, `http://${host}:${port}`), []);
      // What was accepted would be mined within two more blocks.
      const head = Number(await node.result("eth_blockNumber"));
      await until("two blocks", async () => Number(await node.result("eth_blockNumber")) > head + 1);
      assert.deepEqual(await seen(node), before);
    } finally {
      await node.stop();
    }
  });
}

test("a page of a listed origin sends, by the ways that send JSON", { timeout: 60_000 }, async () => {
  const origin = `http://localhost:${port}`, node = await Node.start([...QUIET, "--allow-origin", origin]);
  try {
    const { balance } = await seen(node), sent = await attack(node, origin);
    assert.deepEqual(sent, OPEN.flatMap((way) => Object.keys(METHODS).map((method) => `${way}: ${method}`)).sort());
    const wei = sent.reduce((sum, one) => sum + METHODS[one.split(": ")[1]], 0);
    await until(`${wei} wei arrive`, async () => (await seen(node)).balance === balance + BigInt(wei));
  } finally {
    await node.stop();
  }
});
