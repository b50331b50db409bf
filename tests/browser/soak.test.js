// The page stays open for a time, and neither the tab nor the node grows. PRESIM_SOAK_MINUTES=30 is the long run.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";

import { Node, browse, until } from "./node.js";

const MINUTES = Number(process.env.PRESIM_SOAK_MINUTES ?? 0.5);
const MIB = 1 << 20;

test(`${MINUTES} minutes open grow neither tab nor node`, { timeout: MINUTES * 60_000 + 120_000 }, async () => {
  // The chain itself keeps little, so that what grows is the page's doing.
  const node = await Node.start(["--keep-blocks", "4", "--keep-history", "4", "--keep-snapshots", "4", "--sub-block-ms", "100"]);
  const browser = await browse();
  try {
    const page = await browser.newPage(), problems = [];
    page.on("console", (message) => { if (["error", "warning"].includes(message.type())) problems.push(message.text()); });
    page.on("pageerror", (error) => problems.push(error.stack));
    await page.goto(node.url);
    await until("the page is live", async () => (await page.locator("#state").textContent()) === "live");
    const devtools = await page.context().newCDPSession(page);
    const measure = async () => {
      await devtools.send("HeapProfiler.collectGarbage");
      const { usedSize } = await devtools.send("Runtime.getHeapUsage");
      const counters = await devtools.send("Memory.getDOMCounters");
      const status = readFileSync(`/proc/${node.pid}/status`, "utf8");
      return { tab: usedSize / MIB, elements: counters.nodes, listeners: counters.jsEventListeners, node: Number(/VmRSS:\s+(\d+)/.exec(status)[1]) / 1024 };
    };
    // One round through the views, with a trace and a simulation.
    const round = async (seconds) => {
      for (const view of ["now", "stream", "playground", "wallet"]) {
        await page.locator(`nav a[href="#${view}"]`).click();
        await page.waitForTimeout((1000 * seconds * (view === "now" || view === "stream" ? 0.4 : 0.1)) | 0);
        if (view === "stream") {
          await page.getByRole("button", { name: "Pause" }).click();
          await page.locator(".row").first().click();
          await page.locator(".detail .tree").waitFor();
        }
        if (view === "playground") {
          await page.getByRole("button", { name: "Run", exact: true }).click();
          await page.locator("#json").waitFor();
        }
      }
    };
    const seconds = MINUTES * 60, each = Math.max(10, Math.min(60, seconds / 6)), points = [];
    // Rows, points and tokens fill up to their bounds in the first round.
    await page.locator('nav a[href="#stream"]').click();
    await until("the rows are full", async () => (await page.locator(".row").count()) >= 200, 60);
    const end = performance.now() + 1000 * seconds;
    do {
      await round(each);
      points.push(await measure());
      const { tab, elements, listeners, node } = points.at(-1);
      console.log(`   tab ${tab.toFixed(1)} MiB, ${elements} elements, ${listeners} listeners, node ${node.toFixed(1)} MiB`);
    } while (performance.now() < end);
    // The least of the first third against the least of the last, so that a single peak means nothing.
    const third = Math.max(1, Math.floor(points.length / 3));
    const least = (list, key) => Math.min(...list.map((point) => point[key]));
    const grown = (key) => [least(points.slice(0, third), key), least(points.slice(-third), key)];
    for (const [key, factor, room] of [["tab", 1.1, 2], ["elements", 1.2, 2000], ["listeners", 1.2, 200], ["node", 1.1, 24]]) {
      const [first, last] = grown(key);
      assert.ok(last <= first * factor + room, `${key}: ${first} at first, ${last} at last`);
    }
    assert.deepEqual(problems, []);
  } finally {
    await browser.close();
    await node.stop();
  }
});
