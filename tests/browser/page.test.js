// presim's own page: what it shows, what it runs, and what it says when something is wrong.

import assert from "node:assert/strict";
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, describe, test } from "node:test";

import { Node, browse, until } from "./node.js";

const AXE = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");
const VIEWS = ["now", "stream", "playground", "wallet"];
const LIMIT = { timeout: 90_000 };
/** What the browser itself writes when a node is gone or refuses. */
const NETWORK = /WebSocket connection to|Failed to load resource|net::ERR_/;

let browser;
before(async () => { browser = await browse(); });
after(() => browser.close());

/** Opens the page in a new profile. `problems` are the errors of its console. */
async function open(node, { hash = "", ...options } = {}) {
  const context = await browser.newContext({ viewport: { width: 1280, height: 900 }, ...options });
  const page = await context.newPage();
  page.problems = [];
  page.on("console", (message) => { if (["error", "warning"].includes(message.type())) page.problems.push(message.text()); });
  page.on("pageerror", (error) => page.problems.push(error.stack));
  await page.goto(node.url + hash);
  return page;
}

const state = (page) => page.locator("#state").textContent();
const becomes = (page, word, seconds) => until(`the page says ${word}`, async () => (await state(page)) === word, seconds);
const tile = (page, label) => page.locator(".tile", { has: page.getByText(label, { exact: true }) }).locator("b");

/** Goes to a view by its link. */
async function go(page, view) {
  await page.locator(`nav a[href="#${view}"]`).click();
  await page.locator(`#${view}`).waitFor({ state: "visible" });
}

describe("on a devnet", () => {
  let node;
  before(async () => { node = await Node.start(); });
  after(() => node.stop());

  for (const colorScheme of ["light", "dark"]) {
    for (const [width, name] of [[1280, "wide"], [390, "narrow"]]) {
      test(`each view is shown without a problem, ${colorScheme} and ${name}`, LIMIT, async () => {
        const page = await open(node, { colorScheme, viewport: { width, height: 900 } });
        await becomes(page, "live");
        for (const view of VIEWS) {
          await go(page, view);
          if (view === "now") await page.locator("#now .chart").first().waitFor();
          if (view === "stream") {
            await until("rows", async () => (await page.locator(".row").count()) > 5);
            await page.locator(".row .what", { hasText: "swaps" }).first().click();
            await page.locator(".detail .tree").waitFor();
            await page.getByRole("button", { name: "Pause" }).click();
          }
          if (view === "now" && name === "narrow") {
            const frame = page.getByRole("region", { name: "Methods" });
            await until("the table's last column can be reached", () => frame.evaluate((frame) => {
              frame.scrollLeft = frame.scrollWidth;
              return frame.scrollLeft > 0 && frame.querySelector("th:last-child").getBoundingClientRect().right <= innerWidth;
            }));
          }
          if (view === "playground") {
            await page.getByRole("button", { name: "Run", exact: true }).click();
            await page.locator("#playground .tree").waitFor();
            await until("the first example shows its number", async () => /returns \[1 WETH, [\d,.]+ ALPHA\]/.test(await page.locator("#playground .tree").textContent()));
            await page.getByText("Build a bundle").click();
            await page.getByLabel("Search the best amount").check();
            await page.getByRole("button", { name: "Run the bundle" }).click();
            await page.locator("#playground .chart").waitFor();
          }
          const beyond = await page.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth);
          assert.equal(beyond, 0, `${view} does not scroll sideways`);
          await page.evaluate(AXE);
          const { violations } = await page.evaluate(() => globalThis.axe.run(document, { runOnly: ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "best-practice"] }));
          assert.deepEqual(violations.map(({ id, nodes }) => `${view}: ${id}: ${nodes.map(({ html, any }) => html.slice(0, 200) + (any[0]?.message ?? "")).slice(0, 3).join(" | ")}`), []);
          if (process.env.PRESIM_SCREENSHOTS) {
            await page.screenshot({ path: join(process.env.PRESIM_SCREENSHOTS, `${view}-${colorScheme}-${name}.png`), fullPage: view !== "stream" });
          }
        }
        assert.deepEqual(page.problems, []);
        await page.context().close();
      });
    }
  }

  test("each snapshot is shown, and none is left out", LIMIT, async () => {
    const page = await open(node);
    await becomes(page, "live");
    const shown = await page.evaluate(() => new Promise((resolve) => {
      const find = (label) => [...document.querySelectorAll(".tile")].find((tile) => tile.firstChild.textContent === label).querySelector("b");
      const ids = [];
      new MutationObserver((records) => {
        for (const { addedNodes: [text] } of records) ids.push(Number(text.data));
        if (ids.length >= 15) resolve(ids);
      }).observe(find("Snapshot"), { childList: true });
    }));
    assert.deepEqual(shown, shown.map((_, index) => shown[0] + index));
    const block = Number((await page.locator(".block.open b").textContent()).replaceAll(",", ""));
    assert.ok(Math.abs(block - Number(await node.result("eth_blockNumber"))) <= 2, `block ${block}`);
    assert.deepEqual(page.problems, []);
    await page.context().close();
  });

  test("a simulation runs, and shows calls, assets and JSON", LIMIT, async () => {
    const page = await open(node, { hash: "#playground" });
    await becomes(page, "live");
    await until("methods", async () => (await page.locator("#method option").count()) > 50);
    await page.locator("#method").selectOption("eth_simulateV1");
    await page.locator("#example").selectOption({ label: "a transfer of a token" });
    await page.getByRole("button", { name: "Run", exact: true }).click();
    await page.locator("#json").waitFor();
    const [block] = JSON.parse(await page.locator("#json").textContent());
    assert.equal(block.calls[0].status, "0x1");
    assert.match(await page.locator("#playground .tree").textContent(), /call ALPHA transfer\(to account 1, value 1000000000000000000\)/);
    const assets = await page.getByRole("region", { name: "Assets that changed hands" }).locator("tbody tr").allTextContents();
    assert.deepEqual(assets.sort(), ["account 0−1 ALPHA", "account 1+1 ALPHA"]);
    // The same on a pinned snapshot, by the keyboard.
    await go(page, "now");
    await go(page, "playground");
    await page.locator("#method").selectOption("eth_getBlockByNumber");
    const pinned = (await page.locator("#at-state option").nth(2).textContent()).replace("snapshot ", "");
    await page.locator("#at-state").selectOption({ index: 2 });
    await page.locator("#params").press("Control+Enter");
    await until("the block of the snapshot", async () => /"transactions"/.test(await page.locator("#json").textContent().catch(() => "")));
    const expected = await node.result("eth_getBlockByNumber", { snapshotId: pinned }, false);
    assert.equal(JSON.parse(await page.locator("#json").textContent()).hash, expected.hash);
    // Parameters that are no JSON are told, and nothing runs.
    await page.locator("#params").fill("[{");
    await page.getByRole("button", { name: "Run", exact: true }).click();
    assert.match(await page.getByRole("alert").first().textContent(), /no JSON/);
    assert.deepEqual(page.problems, []);
    await page.context().close();
  });

  test("a method that fails says why", LIMIT, async () => {
    const page = await open(node, { hash: "#playground" });
    await until("methods", async () => (await page.locator("#method option").count()) > 50);
    await page.locator("#params").fill('[{"to":"0x00"},"pending"]');
    await page.getByRole("button", { name: "Run", exact: true }).click();
    await until("the error", async () => /-32602 .*to/.test(await page.locator("#playground").textContent()));
    assert.deepEqual(page.problems, []);
    await page.context().close();
  });

  test("every method's example is taken by the node", LIMIT, async () => {
    const page = await open(node, { hash: "#playground" });
    await until("methods", async () => (await page.locator("#method option").count()) > 50);
    const names = await page.locator("#method option").allTextContents(), wrong = [];
    for (const name of names.filter((name) => /^(eth_call$|eth_estimateGas|eth_createAccessList|eth_get(?!Proof)|eth_simulateV1|eth_callMany|presim_(s|a|d)|debug_trace(Call|BlockByNumber)$|trace_call$|net_|web3_client|txpool_|eth_feeHistory|eth_chainId)/.test(name))) {
      await page.locator("#method").selectOption(name);
      for (let at = 0; at < (await page.locator("#example option").count()); at++) {
        await page.locator("#example").selectOption(String(at));
        const params = JSON.parse(await page.locator("#params").inputValue());
        const { error } = await node.post(name, params);
        if (error?.code === -32602) wrong.push(`${name} ${JSON.stringify(params)}: ${error.message}`);
      }
    }
    assert.deepEqual(wrong, []);
    await page.context().close();
  });

  test("a request is copied as curl that runs", LIMIT, async () => {
    const page = await open(node, { hash: "#playground", permissions: ["clipboard-read", "clipboard-write"] });
    await until("methods", async () => (await page.locator("#method option").count()) > 50);
    for (const [language, pattern] of [["curl", /^curl -s .*eth_call/], ["viem", /createPublicClient[^]*'eth_call'/], ["alloy", /ProviderBuilder[^]*"eth_call"/]]) {
      await page.getByRole("button", { name: `Copy as ${language}` }).click();
      await until(language, async () => pattern.test(await page.evaluate(() => navigator.clipboard.readText())));
    }
    await page.getByRole("button", { name: "Copy as curl" }).click();
    await until("curl", async () => /^curl/.test(await page.evaluate(() => navigator.clipboard.readText())));
    const { execFileSync } = await import("node:child_process");
    const answer = execFileSync("bash", ["-c", await page.evaluate(() => navigator.clipboard.readText())], { encoding: "utf8" });
    assert.match(JSON.parse(answer).result, /^0x/);
    await page.context().close();
  });

  test("a bundle is built, simulated, and searched for the best amount", LIMIT, async () => {
    const page = await open(node, { hash: "#playground" });
    await becomes(page, "live");
    await page.getByText("Build a bundle").click();
    await page.getByRole("button", { name: "Run the bundle" }).click();
    await page.locator("#json").waitFor();
    const [{ calls, assets }] = JSON.parse(await page.locator("#json").textContent());
    assert.deepEqual(calls.map(({ status }) => status), ["0x1", "0x1", "0x1"]);
    assert.ok(Object.keys(assets).length > 2);
    await page.getByLabel("Search the best amount").check();
    for (const values of ["geometric", "linear", "maximize"]) {
      await page.getByLabel("Values").selectOption(values);
      await page.getByRole("button", { name: "Run the bundle" }).click();
      const plot = page.getByRole("img", { name: /Objective over amount: \d+ points/ });
      await plot.waitFor();
      assert.match(await page.locator("#playground").textContent(), /The best of \d+ variants: [\d,.]+ gives [\d,.]+ ALPHA/, "it pays");
      // A point is read with the keyboard.
      await plot.focus();
      await page.keyboard.press("ArrowRight");
      await until("the first point", async () => /ALPHA/.test(await page.locator("#playground .chart output").textContent()));
    }
    await page.getByRole("button", { name: "Edit as JSON" }).click();
    await until("the request is in the editor", async () => (await page.locator("#method").inputValue()) === "presim_search");
    assert.match(await page.locator("#params").inputValue(), /"maximize"/);
    await page.getByLabel("From", { exact: true }).first().fill("0x12");
    await page.getByRole("button", { name: "Run the bundle" }).click();
    await until("the problem", async () => /Call 1: from: 0x12: expected an address/.test(await page.locator("#playground").textContent()));
    assert.deepEqual(page.problems, []);
    await page.context().close();
  });

  test("standing bundles are listed by the objective of their last run", LIMIT, async () => {
    const page = await open(node);
    await becomes(page, "live");
    await page.evaluate(() => new Promise((resolve, reject) => {
      const socket = globalThis.watching = new WebSocket(`ws://${location.host}/`);
      const [account] = ["0x9965507d1a55bcc2695c58ba16fb37d819b0a4dc"];
      const search = (name, to) => ({ name, search: { blockStateCalls: [{ calls: [{ from: account, to: "0x00000000000000000000000000000000000000aa", value: "0x1", gas: "0x5208" }] }], vary: [{ path: "blocks[0].calls[0].value", values: [to] }], objective: { account } } });
      socket.onopen = () => socket.send(JSON.stringify({ jsonrpc: "2.0", id: 1, method: "presim_watch", params: [[search("worse", "0x5"), search("better", "0x2")], "pending"] }));
      socket.onmessage = ({ data }) => (JSON.parse(data).error ? reject(new Error(data)) : resolve());
    }));
    const rows = page.getByRole("region", { name: "Standing bundles" }).locator("tbody tr");
    await until("both have run", async () => /-2.*-5|−2.*−5/.test((await rows.allTextContents()).join(" ")));
    assert.match((await rows.allTextContents())[0], /^better/);
    await page.context().close();
  });

  test("the example of a search pays", LIMIT, async () => {
    const page = await open(node, { hash: "#playground" });
    await until("methods", async () => (await page.locator("#method option").count()) > 50);
    await page.locator("#method").selectOption("presim_search");
    await page.getByRole("button", { name: "Run", exact: true }).click();
    await page.locator("#json").waitFor();
    const { best: [{ objective, status }] } = JSON.parse(await page.locator("#json").textContent());
    assert.ok(status === "0x1" && BigInt(objective) > 0n, `${status} ${objective}`);
    assert.deepEqual(page.problems, []);
    await page.context().close();
  });

  test("the stream names the contracts of the world, and counts the ether that a swap gave", LIMIT, async () => {
    const page = await open(node, { hash: "#stream" });
    await page.locator(".row .what", { hasText: /^calls load without data$/ }).first().waitFor();
    await page.locator(".row", { hasText: /unwraps [\d.]+ ETH.*−[\d,.]+ (ALPHA|BETA)\+[\d.]+ ETH/ }).first().waitFor();
    assert.deepEqual(page.problems, []);
    await page.context().close();
  });

  test("a link leads to the documents, and theirs to each other", LIMIT, async () => {
    const page = await open(node, { viewport: { width: 390, height: 900 } });
    await page.getByRole("link", { name: "Documents" }).click();
    await page.getByRole("heading", { level: 1, name: "presim" }).waitFor();
    await page.locator('main a[href="src/rpc/README.md#methods"]').first().click();
    await page.locator("main h2").first().waitFor();
    assert.match(page.url(), /documents\/src\/rpc\/README\.md#methods$/);
    assert.equal(await page.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth), 0, "it does not scroll sideways");
    await page.evaluate(AXE);
    const { violations } = await page.evaluate(() => globalThis.axe.run(document, { runOnly: ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa"] }));
    assert.deepEqual(violations.map(({ id, nodes }) => `${id}: ${nodes[0].html.slice(0, 200)}`), []);
    await page.getByRole("link", { name: "The node", exact: true }).click();
    await becomes(page, "live");
    assert.deepEqual(page.problems, []);
    await page.context().close();
  });

  test("the page is used with the keyboard alone", LIMIT, async () => {
    const page = await open(node);
    await becomes(page, "live");
    await page.keyboard.press("Tab");
    assert.equal(await page.evaluate(() => document.activeElement.textContent), "Skip to the content");
    await page.keyboard.press("Enter");
    assert.equal(await page.evaluate(() => document.activeElement.id), "main");
    await page.locator("nav a").first().focus();
    for (const [view, title] of [["stream", "Stream"], ["playground", "Playground"], ["wallet", "Wallet"]]) {
      await page.locator(`nav a[href="#${view}"]`).press("Enter");
      await until("the title has the focus", () => page.evaluate((view) => document.activeElement.id === `${view}-title`, view));
      assert.equal(await page.title(), `${title} · presim`);
    }
    await page.context().close();
  });
});

test("a pre-confirmed transaction is shown in words, with its trace and its changes", LIMIT, async () => {
  // The block is never sealed, so all its transactions are pre-confirmed only.
  const node = await Node.start(["--sub-blocks", "10000"]);
  try {
    const page = await open(node, { hash: "#stream" });
    const swap = page.locator(".row .what", { hasText: /^swaps [\d,.]+ \w+ for [\d,.]+ \w+$/ }).first();
    await swap.click();
    await page.locator(".detail .tree").waitFor();
    const text = await page.locator(".detail").textContent();
    assert.match(text, /Succeeded at place \d+ of block 1, used [\d,]+ gas/);
    assert.match(text, /call router swap\w+\(amount/);
    assert.match(text, /log WETH\/ALPHA Swap\(|log ALPHA\/BETA Swap\(|log WETH\/BETA Swap\(/);
    assert.match(text, /−[\d,.]+ (ALPHA|BETA|WETH)/);
    assert.match(text, /slot 0x/);
    assert.equal(await node.result("eth_blockNumber"), "0x0");
    // The filter keeps what it names, and a pause keeps all.
    await page.getByRole("button", { name: "Pause" }).click();
    await page.locator("#stream-filter").fill("swaps");
    assert.ok((await page.locator(".stream li:not([hidden])").allTextContents()).every((row) => /swaps/.test(row)));
    assert.deepEqual(page.problems, []);
    await page.context().close();
  } finally {
    await node.stop();
  }
});

test("an event whose data does not fit is shown undecoded, and keeps no other transaction from being shown", LIMIT, async () => {
  const node = await Node.start(["--traffic", "2"]);
  try {
    const page = await open(node, { hash: "#stream" });
    await until("rows", async () => (await page.locator(".row").count()) > 0);
    const [from] = await node.result("eth_accounts");
    // Contracts that emit one event while they are created: its topics, of which the first is pushed last, and no data.
    const topic = (text) => `7f${text.replace("0x", "").padStart(64, "0")}`;
    const emit = (...topics) => `0x${topics.reverse().map(topic).join("")}5f5f${(0xa0 + topics.length).toString(16)}00`;
    const known = await page.evaluate(async () => Object.entries((await import("./page/signatures.js")).events));
    const named = (name) => known.filter(([, text]) => text.startsWith(`${name}(`)).map(([hash]) => hash);
    const bad = ["Deposit", "Withdrawal", "Approval", "Transfer", "Swap"].flatMap((name) => named(name).flatMap((hash) => [[hash], [hash, from], [hash, from, from], [hash, from, from, from]]));
    const sent = [];
    for (const topics of bad) sent.push(await node.result("eth_sendTransaction", { from, to: null, data: emit(...topics), gas: "0x30d40" }));
    const last = await node.result("eth_sendTransaction", { from, to: from, value: "0x1" });
    for (const hash of [...sent, last]) {
      const short = `${hash.slice(0, 8)}…${hash.slice(-4)}`;
      await until(`the row of ${hash}`, async () => (await page.locator(".row", { hasText: short }).count()) === 1);
    }
    // The trace of such a transaction is shown, too.
    await page.locator(".row", { hasText: `${sent[0].slice(0, 8)}…` }).first().click();
    await page.locator(".detail .tree").waitFor();
    assert.match(await page.locator(".detail").textContent(), /log .*\(0 bytes\)/);
    assert.deepEqual(page.problems, []);
    await page.context().close();
  } finally {
    await node.stop();
  }
});

test("what waits for approval is shown in words", LIMIT, async () => {
  const dir = mkdtempSync(join(tmpdir(), "presim-page-"));
  const node = await Node.start(["--data-dir", dir, "--wallet-approval", "ask", "--traffic", "0"]);
  try {
    const page = await open(node, { hash: "#wallet" });
    await until("nothing waits", async () => /Nothing waits/.test(await page.locator("#wallet").textContent()));
    const [from, to] = await node.result("eth_accounts"), token = "0x9fe46736679d2d9a65f0992f2272de9f3c7fa6e0";
    const data = `0xa9059cbb${to.slice(2).padStart(64, "0")}${"de0b6b3a7640000".padStart(64, "0")}`;
    const asked = node.post("wallet_sendCalls", [{ version: "2.0.0", id: "payroll-7", from, chainId: "0x7a69", atomicRequired: false, calls: [{ to: token, value: "0x0", data }] }]).catch(() => {});
    await until("the batch", async () => /payroll-7/.test(await page.locator("#wallet").textContent()));
    const text = await page.locator("#wallet article").textContent();
    assert.match(text, /1 ALPHA/);
    assert.match(text, /presim wallet approve payroll-7 0x[0-9a-f]{64}/);
    if (process.env.PRESIM_SCREENSHOTS) await page.screenshot({ path: join(process.env.PRESIM_SCREENSHOTS, "wallet-waiting.png"), fullPage: true });
    assert.match(await page.locator("#wallet").textContent(), new RegExp(`ws://${node.address}/standard`));
    assert.deepEqual(page.problems, []);
    await page.context().close();
    await node.stop();
    await asked;
  } finally {
    await node.stop();
    rmSync(dir, { recursive: true, force: true });
  }
});

test("what strangers write is shown with its hidden characters as escapes, and the command names the batch by its digest", LIMIT, async () => {
  const dir = mkdtempSync(join(tmpdir(), "presim-page-")), file = join(dir, "tokens.toml"), token = "a-token-of-the-desk";
  writeFileSync(file, `[[token]]\nname = "desk"\ntoken = "${token}"\nrate = 1000\n`, { mode: 0o600 });
  const node = await Node.start(["--data-dir", dir, "--wallet-approval", "ask", "--traffic", "0", "--wallet-token-file", file, "--allow-origin", "https://app.example"]);
  const hidden = "\u061c\u00ad\u180e\u115f\u3164\u{e0041}\u202e\u200b\u009b\u0003", escaped = "\\u{61c}\\u{ad}\\u{180e}\\u{115f}\\u{3164}\\u{e0041}\\u{202e}\\u{200b}\\u{9b}\\u{3}";
  try {
    const page = await open(node, { hash: "#wallet" });
    await becomes(page, "live");
    await page.evaluate((token) => sessionStorage.setItem("presim.token", token), token);
    await page.reload();
    await becomes(page, "live");
    // The table has all that Unicode calls a control, a format, a separator, or ignorable.
    const missed = await page.evaluate(async () => {
      const { hidden } = await import("./page/hidden.js"), found = [];
      for (let point = 0; point < 0x110000; point++) {
        const letter = String.fromCodePoint(point);
        if (letter !== " " && /[\p{Cc}\p{Cf}\p{Zl}\p{Zp}\p{Zs}\p{Default_Ignorable_Code_Point}]/u.test(letter) && !new RegExp(hidden).test(letter)) found.push(point.toString(16));
      }
      return found;
    });
    assert.deepEqual(missed, []);
    const headers = { authorization: `Bearer ${token}`, origin: "https://app.example" };
    const [from] = (await node.post("eth_accounts", [], headers)).result, asked = [];
    const send = (id, calls) => asked.push(node.post("wallet_sendCalls", [{ version: "2.0.0", id, from, chainId: "0x7a69", atomicRequired: false, calls }], headers).catch(() => {}));
    send(`pay${hidden}roll`, [{ to: from, value: "0x1" }]);
    send("-rf", [{ to: from, value: "0x2" }]);
    asked.push(node.post("personal_sign", [`0x${Buffer.from(`first\nsecond${hidden}`).toString("hex")}`, from], headers).catch(() => {}));
    const boxes = page.locator("#wallet article");
    await until("all wait", async () => (await boxes.count()) === 3);
    const texts = await boxes.allTextContents(), box = (part) => texts.find((text) => text.includes(part));
    const batch = box(`pay${escaped}roll`);
    assert.ok(batch, texts.join("\n"));
    const [digest] = /0x[0-9a-f]{64}/.exec(batch.split("Digest")[1]);
    assert.ok(batch.includes(`presim wallet approve ${digest} ${digest} --data-dir DIR`), batch);
    assert.match(box("-rf"), /presim wallet approve (0x[0-9a-f]{64}) \1 --data-dir DIR/);
    assert.ok(batch.includes("https://app.example, with the token desk"), batch);
    assert.equal(await boxes.locator("pre").textContent(), `first\nsecond${escaped}`);
    assert.ok(![...texts.join("")].some((letter) => hidden.includes(letter)), texts.join("\n"));
    // The digest is a name for the command, too.
    const { execFileSync } = await import("node:child_process");
    assert.match(execFileSync(process.env.PRESIM, ["wallet", "approve", digest, digest, "--data-dir", dir], { encoding: "utf8" }), /^approved /);
    assert.deepEqual(page.problems, []);
    await page.context().close();
    await node.stop();
    await Promise.all(asked);
  } finally {
    await node.stop();
    rmSync(dir, { recursive: true, force: true });
  }
});

/** Returns the forks of the devnet, as a genesis file has them. */
async function config(node) {
  const blocks = ["homestead", "eip150", "eip155", "eip158", "byzantium", "constantinople", "petersburg", "istanbul", "berlin", "london"];
  const blob = { target: 6, max: 9, baseFeeUpdateFraction: 5007716 };
  return {
    chainId: Number(await node.result("eth_chainId")), terminalTotalDifficulty: 0,
    ...Object.fromEntries(blocks.map((name) => [`${name}Block`, 0])),
    ...Object.fromEntries(["shanghai", "cancun", "prague", "osaka"].map((name) => [`${name}Time`, 0])),
    blobSchedule: { cancun: { target: 3, max: 6, baseFeeUpdateFraction: 3338477 }, prague: blob, osaka: blob },
  };
}

test("the age of a snapshot ticks", LIMIT, async () => {
  const node = await Node.start(["--sub-block-ms", "2000"]);
  try {
    const page = await open(node), age = page.locator(".tile", { hasText: "Age" }).locator("b"), seen = new Set();
    await becomes(page, "live");
    await until("ten ages", async () => seen.add(await age.textContent()).size >= 10);
    await page.context().close();
  } finally {
    await node.stop();
  }
});

test("a fork that the node does not execute is shown, and a fault when the feed stalls, until it goes on", LIMIT, async () => {
  const upstream = await Node.start(["--sub-block-ms", "50", "--sub-blocks", "10"]);
  const dir = mkdtempSync(join(tmpdir(), "presim-page-")), genesis = join(dir, "genesis.json");
  writeFileSync(genesis, JSON.stringify({ config: await config(upstream), alloc: {}, gasLimit: "0x1", difficulty: "0x0" }));
  const node = await Node.start(["--upstream", upstream.url, "--genesis", genesis, "--fork", "bogota=4000000000"]);
  try {
    const page = await open(node);
    await until("the page shows the feed", async () => ["live", "lagging"].includes(await state(page)));
    const warning = page.locator("#warning");
    await warning.waitFor({ state: "visible" });
    assert.match(await warning.textContent(), /bogota.*4000000000/);
    const fault = page.locator("#fault");
    upstream.signal("SIGSTOP");
    await until("a fault", async () => (await fault.isVisible()) && /stalled|degraded|lagging/.test(await state(page)), 60);
    assert.match(await fault.textContent(), /The feed (stands still|is broken|is late)/);
    assert.match(await page.getByRole("status").textContent(), /feed/, "a screen reader hears of it");
    if (process.env.PRESIM_SCREENSHOTS) await page.screenshot({ path: join(process.env.PRESIM_SCREENSHOTS, "fault.png") });
    upstream.signal("SIGCONT");
    await until("the fault is gone", async () => (await state(page)) === "live" && !(await fault.isVisible()), 60);
    assert.deepEqual(page.problems, []);
    await page.context().close();
  } finally {
    upstream.signal("SIGCONT");
    await node.stop();
    await upstream.stop();
    rmSync(dir, { recursive: true, force: true });
  }
});

test("a node that is silent or gone is told, and the page comes back with it", LIMIT, async () => {
  let node = await Node.start();
  try {
    const page = await open(node), fault = page.locator("#fault");
    await becomes(page, "live");
    node.signal("SIGSTOP");
    await until("a fault", async () => ["silent", "stalled"].includes(await state(page)));
    await becomes(page, "silent");
    assert.match(await fault.textContent(), /The node has sent nothing for/);
    node.signal("SIGCONT");
    await becomes(page, "live");
    assert.deepEqual(page.problems, []);
    await node.stop();
    await becomes(page, "no connection");
    assert.match(await fault.textContent(), /There is no connection.*The page tries again/);
    node = await Node.start([], node.address);
    await becomes(page, "live", 40);
    const first = await tile(page, "Snapshot").textContent();
    await until("snapshots of the new node", async () => (await tile(page, "Snapshot").textContent()) !== first);
    assert.deepEqual(page.problems.filter((text) => !NETWORK.test(text)), []);
    await page.context().close();
  } finally {
    await node.stop();
  }
});

test("a token is asked for, kept for the tab, sent as a subprotocol, and nowhere written", LIMIT, async () => {
  const dir = mkdtempSync(join(tmpdir(), "presim-page-")), file = join(dir, "tokens.toml"), token = "a-token/and+more~of.the_desk=";
  writeFileSync(file, `[[token]]\nname = "desk"\ntoken = "${token}"\nrate = 1000\n`, { mode: 0o600 });
  const node = await Node.start(["--token-file", file, "--log", "trace"]);
  try {
    const page = await open(node), urls = [];
    page.on("websocket", (socket) => urls.push(socket.url()));
    page.on("request", (request) => urls.push(request.url()));
    const field = page.locator("#token-text");
    await field.waitFor();
    assert.equal(await page.locator("#now").isVisible(), false);
    assert.deepEqual(page.problems, [], "the page does not try without one");
    await field.fill("a wrong token of some length");
    await page.getByRole("button", { name: "Connect" }).click();
    await until("it is refused", async () => /does not know this token/.test(await page.locator("#token").textContent()));
    await field.fill(token);
    await page.keyboard.press("Enter");
    await becomes(page, "live");
    await page.reload();
    await becomes(page, "live");
    const encoded = Buffer.from(token).toString("base64url");
    assert.ok(urls.length > 3 && urls.every((url) => !url.includes(encoded) && !url.includes(encodeURIComponent(token))), urls.join(" "));
    assert.deepEqual(await page.evaluate(() => [localStorage.length, document.cookie]), [0, ""]);
    const log = Buffer.concat(node.log).toString();
    assert.ok(log.length > 10_000, "the log has every detail");
    for (const secret of [token, encoded]) assert.ok(!log.includes(secret), "the log does not have it");
    // Another tab knows nothing of it.
    const other = await page.context().newPage();
    await other.goto(node.url);
    await other.locator("#token-text").waitFor();
    await page.context().close();
  } finally {
    await node.stop();
    rmSync(dir, { recursive: true, force: true });
  }
});
