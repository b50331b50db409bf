// The view of the stream: pre-confirmed transactions in words as they come, and the trace of one.

import { el, fill, say, short, thousands, units } from "./dom.js";
import { assetTable, callTree, effects, stateTable } from "./trace.js";
import { netChanges, unwraps } from "./words.js";

/** The most rows, and the most transactions that wait to be drawn. Of a faster stream, only the newest are shown. */
const MOST_ROWS = 200, MOST_WAITING = 100;
/** The most transactions of one drawing that are traced for the coin that they gave to their senders. */
const MOST_TRACED = 8;
const DRAW = 250;

export class StreamView {
  #app;
  #rows = el("ol", { class: "stream", "aria-label": "Pre-confirmed transactions, newest first" });
  #detail = el("div", { class: "box detail", hidden: true, role: "region", "aria-label": "A transaction", tabindex: -1 });
  #filter = el("input", { id: "stream-filter", type: "search", placeholder: "address, hash or word", input: () => this.#sift() });
  #pause = el("button", { type: "button", "aria-pressed": "false", click: () => this.#setPaused(!this.#paused) }, "Pause");
  #count = el("span", { class: "soft" });
  #waiting = [];
  #passed = 0;
  #seen = 0;
  #paused = false;
  #end = null;
  #timer = null;
  #chosen = 0;

  constructor(section, app) {
    this.#app = app;
    section.append(
      el("div", { class: "bar" }, this.#pause, el("label", { for: "stream-filter" }, "Show"), this.#filter, this.#count),
      el("div", { class: "beside" }, this.#rows, this.#detail));
  }

  show() {
    this.#setPaused(false);
  }

  hide() {
    this.#stop();
  }

  #setPaused(paused) {
    this.#paused = paused;
    this.#pause.setAttribute("aria-pressed", String(paused));
    say(this.#pause, paused ? "Go on" : "Pause");
    this.#stop();
    if (paused) return;
    this.#end = this.#app.node.subscribe(["newFlashblockTransactions", true], (tx) => {
      this.#seen++;
      this.#waiting.push(tx);
      if (this.#waiting.length > MOST_WAITING) {
        this.#waiting.shift();
        this.#passed++;
      }
    });
    this.#timer = setInterval(() => this.#draw(), DRAW);
  }

  #stop() {
    this.#end?.();
    clearInterval(this.#timer);
    this.#end = null;
    this.#waiting = [];
  }

  async #draw() {
    if (document.hidden || !this.#waiting.length) return;
    const batch = this.#waiting;
    this.#waiting = [];
    // A transaction that cannot be put in words is shown as it is, and keeps no other from being shown.
    let traces = MOST_TRACED;
    const rows = await Promise.all(batch.map((tx) => this.#row(tx, unwraps(tx) && traces-- > 0).catch(() => this.#plainRow(tx))));
    // Somebody who reads a row with the keyboard keeps it.
    this.#rows.prepend(...rows.reverse());
    while (this.#rows.children.length > MOST_ROWS) this.#rows.lastElementChild.remove();
    say(this.#count, `${thousands(this.#seen)} came${this.#passed ? `, ${thousands(this.#passed)} too fast to show` : ""}; the last ${MOST_ROWS} are kept`);
  }

  async #row(tx, isTraced) {
    const { words } = this.#app;
    const [text, ether] = await Promise.all([words.describe(tx), this.#ether(tx, isTraced)]);
    const own = netChanges(tx.status === "0x0" ? [] : tx.logs ?? [], ether).find(({ account }) => account === tx.from);
    const changes = await Promise.all((own?.changes ?? []).slice(0, 4).map(async ({ token, id, value }) =>
      el("span", { class: value < 0n ? "change bad" : "change good" }, `${value > 0n ? "+" : ""}${await words.amount(token, value, id).catch(() => short(token ?? ""))}`)));
    return this.#line(tx, text, changes);
  }

  /** Returns the movements of the chain's coin: all of them if the transaction is traced, and else that of its value. */
  async #ether(tx, isTraced) {
    if (tx.status === "0x0") return [];
    const traced = isTraced ? await this.#app.node.call("debug_traceTransaction", [tx.hash, { tracer: "callTracer" }]).catch(() => null) : null;
    if (traced) return effects(traced).ether;
    const value = BigInt(tx.value ?? 0);
    return value > 0n ? [{ from: tx.from, to: tx.to, value }] : [];
  }

  /** Creates the row of a transaction that cannot be put in words. */
  #plainRow(tx) {
    return this.#line(tx, `calls ${this.#app.words.name(tx.to)}; not decoded`, []);
  }

  #line(tx, text, changes) {
    const { words } = this.#app;
    const row = el("li", {},
      el("button", { type: "button", class: "row", click: () => this.#open(tx.hash, text) },
        el("span", { class: "who", title: tx.from }, words.name(tx.from)), " ",
        el("span", { class: tx.status === "0x0" ? "what bad" : "what" }, text),
        el("small", {}, `block ${thousands(Number(tx.blockNumber))}, ${thousands(Number(tx.gasUsed ?? 0))} gas, ${short(tx.hash)} `, changes)));
    row.dataset.text = [tx.hash, tx.from, tx.to, text, words.name(tx.from), ...(tx.logs ?? []).map((log) => log.address)].join(" ").toLowerCase();
    row.hidden = !this.#passes(row);
    return row;
  }

  #passes(row) {
    return row.dataset.text.includes(this.#filter.value.trim().toLowerCase());
  }

  #sift() {
    for (const row of this.#rows.children) row.hidden = !this.#passes(row);
  }

  /** Shows the trace of a transaction: it is run again, on the state before it. */
  async #open(hash, text) {
    const { node, words } = this.#app, chosen = ++this.#chosen;
    const close = el("button", { type: "button", class: "small", click: () => { this.#detail.hidden = true; } }, "Close");
    const head = [el("div", { class: "bar" }, el("h3", {}, text), close), el("p", {}, el("code", {}, hash))];
    this.#detail.hidden = false;
    fill(this.#detail, head, el("p", { class: "soft" }, "It is run again …"));
    this.#detail.focus();
    try {
      const trace = (tracer, tracerConfig) => node.call("debug_traceTransaction", [hash, { tracer, tracerConfig }]);
      const [frame, changes, receipt] = await Promise.all([
        trace("callTracer", { withLog: true }), trace("prestateTracer", { diffMode: true }), node.call("eth_getTransactionReceipt", [hash]), words.learned]);
      const { logs, ether } = effects(frame);
      const assets = await assetTable(words, logs, ether);
      if (chosen !== this.#chosen) return;
      const fee = receipt && BigInt(receipt.gasUsed) * BigInt(receipt.effectiveGasPrice ?? 0);
      fill(this.#detail, head,
        receipt && el("p", { class: "soft" }, `${receipt.status === "0x1" ? "Succeeded" : "Failed"} at place ${Number(receipt.transactionIndex)} of block ${thousands(Number(receipt.blockNumber))}, used ${thousands(Number(receipt.gasUsed))} gas, paid ${units(fee, 18)} ${words.coin}.`),
        el("h4", {}, "Calls"), callTree(words, frame), el("h4", {}, "Assets"), assets, el("h4", {}, "State"), stateTable(words, changes));
    } catch (error) {
      if (chosen === this.#chosen) fill(this.#detail, head, el("p", { class: "bad" }, `It cannot be traced: ${error.message}`));
    }
  }
}
