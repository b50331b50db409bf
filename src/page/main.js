// The page: what it knows of the node, the views, and the judgement of the feed.

import { announce, age, fill, say } from "./dom.js";
import { NodeConnection } from "./node.js";
import { NowView } from "./now.js";
import { PlaygroundView } from "./playground.js";
import { StreamView } from "./stream.js";
import { WalletView } from "./wallet.js";
import { Words } from "./words.js";

/** The most snapshots, statuses and blocks that are remembered. */
const MOST_POINTS = 120, MOST_BLOCKS = 6;
/** The number of sub-block times without a snapshot after which the feed counts as stalled, as for the node's health. */
const STALLED_AFTER = 5;
/** The milliseconds between two looks at the clock, between two polls, and between two while nobody looks. */
const TICK = 100, POLL = 1_000, POLL_HIDDEN = 10_000;

const at = (id) => document.getElementById(id);

/** What is known of the node. */
class Model {
  /** The newest snapshot, with the time `at` of its arrival; its age then is `age`. */
  snapshot = null;
  feed = null;
  status = null;
  accounts = [];
  /** The hash of the newest sealed block, once there was one. */
  head = null;
  /** The milliseconds between snapshots, and the requests a second, each with its time. */
  gaps = [];
  loads = [];
  /** The last blocks, oldest first, each with its sub-blocks and the gas used up to each. */
  blocks = [];

  age(now) {
    return this.snapshot && now - this.snapshot.at + this.snapshot.age;
  }

  take(snapshot, now) {
    const { id, blockNumber, index, gasUsed, transactions, sealed = [] } = snapshot;
    if (this.snapshot?.id === id) return;
    if (this.snapshot?.isTold) push(this.gaps, [now, now - this.snapshot.at]);
    this.snapshot = { id, block: Number(blockNumber), index: Number(index), at: now, age: 0, isTold: true };
    // Without pre-confirmations, a snapshot is a whole block.
    this.snapshot.isWhole = this.snapshot.index === 0 && Number(gasUsed) > 0;
    for (const one of sealed) {
      const block = this.blocks.find(({ number }) => number === Number(one.blockNumber));
      block?.parts.push({ index: (block.parts.at(-1)?.index ?? 0) + 1, used: block.sealed, count: one.transactions.length });
    }
    const block = this.#block(this.snapshot.block);
    // After a fallback a block is built once more.
    block.parts = block.parts.filter((part) => part.index < this.snapshot.index);
    block.parts.push({ index: this.snapshot.index, used: Number(gasUsed), count: transactions.length });
  }

  /** Takes the header of a sealed block. */
  seal({ number, hash, gasUsed }) {
    this.head = hash;
    const block = this.blocks.find((one) => one.number === Number(number));
    if (!block) return;
    block.sealed = Number(gasUsed);
    const last = block.parts.at(-1);
    if (last) last.used ??= block.sealed;
  }

  #block(number) {
    let block = this.blocks.find((one) => one.number === number);
    if (!block) {
      this.blocks.push(block = { number, parts: [], sealed: undefined });
      if (this.blocks.length > MOST_BLOCKS) this.blocks.shift();
    }
    return block;
  }
}

function push(list, item) {
  list.push(item);
  if (list.length > MOST_POINTS) list.shift();
}

const node = new NodeConnection();
const words = new Words(node);
const model = new Model();
const app = { node, words, model };
const views = { now: new NowView(at("now"), app), stream: new StreamView(at("stream"), app), playground: new PlaygroundView(at("playground"), app), wallet: new WalletView(at("wallet"), app) };
let shown = null;

/** Shows the view that the address names. */
function route(isFirst) {
  const name = location.hash.slice(1).split("/")[0];
  // The link that skips to the content is no view.
  if (name === "main" && shown) return;
  const next = views[name] ? name : "now";
  if (next === shown) return;
  if (shown) views[shown].hide?.();
  shown = next;
  for (const other of Object.keys(views)) at(other).hidden = other !== next || node.state === "locked";
  for (const link of document.querySelectorAll("nav a")) {
    if (link.hash === `#${next}`) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  document.title = `${at(`${next}-title`).textContent} · presim`;
  views[next].show?.();
  if (!isFirst) at(`${next}-title`).focus();
}

/** Returns the state of the feed, as `{kind, word, fault}`: a class, a word for the pill, and a sentence if something is wrong. */
function judge(now) {
  if (node.state === "locked") return { kind: "bad", word: "locked" };
  if (node.state === "connecting" && !model.snapshot) return { kind: "", word: "connecting" };
  if (node.state !== "open") {
    const left = Math.ceil(Math.max(0, (node.retryAt ?? 0) - now) / 1000);
    return { kind: "bad", word: "no connection", fault: `There is no connection: ${node.reason || "the node does not answer"}. ${left > 0 ? `The page tries again in ${left} s.` : "The page tries again."}` };
  }
  const silent = node.silence();
  if (silent) return { kind: "bad", word: "silent", fault: `The node has sent nothing for ${age(silent)}.` };
  const { feed, status } = model, since = model.age(now);
  if (!feed || since === null) return { kind: "", word: "connecting" };
  const meaning = status?.feed.meaning;
  if (feed.state === "degraded") return { kind: "bad", word: "degraded", fault: `The feed is broken: ${meaning ?? feed.cause}. pending is the canonical head.` };
  if (feed.state === "static") return { kind: "", word: "static" };
  const every = status?.feed.everyMs;
  if (every && since > STALLED_AFTER * every) return { kind: "bad", word: "stalled", fault: `The feed stands still: the newest snapshot is ${age(since)} old, and one should come every ${every} ms.` };
  if (feed.state === "lagging") return { kind: "warn", word: "lagging", fault: `The feed is late by ${age(feed.lagMs ?? 0)}: ${meaning ?? feed.cause}.` };
  return { kind: "good", word: "live" };
}

let told = "";
function tick() {
  const now = performance.now(), verdict = judge(now);
  const pill = at("state");
  say(pill, verdict.word);
  pill.className = `pill ${verdict.kind}`;
  const fault = at("fault");
  say(fault, verdict.fault ?? "");
  fault.hidden = !verdict.fault;
  fault.className = `fault ${verdict.kind}`;
  // The state is said once, and not again for each second of its age.
  if (told !== verdict.word) {
    if (told) announce(verdict.fault ?? `The feed is ${verdict.word}.`);
    told = verdict.word;
  }
  if (!document.hidden) views[shown]?.tick?.(now, verdict);
}

let polling = false, polled = -Infinity;
async function poll() {
  const now = performance.now();
  if (polling || node.state !== "open" || now - polled < (document.hidden ? POLL_HIDDEN : POLL)) return;
  [polling, polled] = [true, now];
  try {
    const status = await node.call("presim_status");
    const isNew = model.status?.chainId !== status.chainId || model.status.uptimeMs > status.uptimeMs;
    model.status = status;
    push(model.loads, [now, status.requests.perSecond]);
    say(at("warning"), status.warning ? `Warning: ${status.warning}.` : "");
    at("warning").hidden = !status.warning;
    if (isNew) await meet();
    views[shown]?.update?.();
  } catch {
    // The next poll follows, and silence is told.
  }
  polling = false;
}

/** Learns what does not change while the node runs. */
async function meet() {
  const { version, chainId, contracts } = model.status;
  say(at("chain"), `${version}, chain ${Number(chainId)}`);
  // A node of a fleet that has no leader cannot tell them.
  model.accounts = await node.call("eth_accounts").catch(() => []);
  words.learn(contracts, model.accounts);
  for (const view of Object.values(views)) view.meet?.();
}

node.addEventListener("state", async () => {
  at("token").hidden = node.state !== "locked";
  for (const name of Object.keys(views)) at(name).hidden = name !== shown || node.state === "locked";
  if (node.state === "locked") {
    say(at("token-problem"), node.reason);
    at("token-problem").hidden = !node.reason;
    at("token-text").focus();
  }
  tick();
  if (node.state !== "open") return;
  polled = -Infinity;
  const { id, blockNumber, index, ageMs } = await node.call("presim_snapshot").catch(() => ({}));
  // A notification may have been faster.
  if (id && BigInt(model.snapshot?.id ?? 0) !== BigInt(id)) {
    model.snapshot = { id, block: Number(blockNumber), index: Number(index), at: performance.now(), age: ageMs };
    views[shown]?.update?.();
  }
});
node.subscribe(["presim_snapshots"], (snapshot) => {
  model.take(snapshot, performance.now());
  if (!document.hidden) views[shown]?.update?.();
});
node.subscribe(["newHeads"], (header) => model.seal(header));
node.subscribe(["presim_feed"], (feed) => {
  model.feed = feed;
  // The words for the cause come with the status.
  polled = -Infinity;
});

at("token").addEventListener("submit", (event) => {
  event.preventDefault();
  const field = at("token-text");
  node.unlock(field.value);
  field.value = "";
});
addEventListener("hashchange", () => route(false));
route(true);
setInterval(() => { tick(); poll(); }, TICK);
if (document.documentElement.dataset.token === "needed" && !node.token) node.lock("");
else node.open();
