// The view of the present: the feed, the block as its sub-blocks arrive, the load, and the bundles that stand.

import { age, bytes, el, fill, micros, rate, say, table, thousands, trim, units } from "./dom.js";
import { plot } from "./plot.js";

/** The time between two drawings of the plots and tables, in milliseconds. */
const REDRAW = 1_000;

export class NowView {
  #app;
  #tiles = {};
  #blocks = el("div", { class: "blocks" });
  #plots = el("div", { class: "charts" });
  #methods = table("Methods", ["Method", "Requests", "p50", "p99", "Errors", "Rejected", "Since the start"]);
  #window = el("p", { class: "soft" });
  #lanes = table("Lanes", ["Lane", "Waiting", "Running", "Rejected since the start", "State"]);
  #standing = table("Standing bundles", ["Bundle", "Objective", "÷ 10¹⁸", "Holds at", "State"]);
  #standingTitle = el("h3", {}, "Standing bundles");
  #standingNote = el("p", { class: "soft" });
  #drawn = -Infinity;

  constructor(section, app) {
    this.#app = app;
    const tile = (name, label) => {
      const value = el("b", {}, "–"), note = el("small", {});
      this.#tiles[name] = { value, note };
      return el("div", { class: "tile" }, el("span", {}, label), value, note);
    };
    section.append(
      el("div", { class: "tiles" },
        tile("feed", "Feed"), tile("snapshot", "Snapshot"), tile("age", "Age"), tile("block", "Block"), tile("lag", "Lag"), tile("verified", "Verified"),
        tile("requests", "Requests"), tile("rejected", "Rejections"), tile("queue", "Queue"), tile("cores", "Cores"), tile("memory", "Memory")),
      el("h3", {}, "Blocks, sub-block by sub-block"), this.#blocks, this.#plots,
      el("h3", {}, "Methods"), this.#window, this.#methods, el("h3", {}, "Lanes"), this.#lanes, this.#standingTitle, this.#standingNote, this.#standing);
  }

  show() {
    this.#drawn = -Infinity;
    this.update();
  }

  tick(now, { kind, word }) {
    const since = this.#app.model.age(now);
    this.#set("age", since === null ? "–" : age(since), "since it was published", word === "stalled" ? "bad" : "");
    this.#set("feed", word, this.#app.model.feed?.cause ?? "", kind);
  }

  update() {
    const { model } = this.#app, now = performance.now();
    if (model.snapshot) {
      const { id, block, index } = model.snapshot, isWhole = model.snapshot.isWhole || model.feed?.state === "static";
      this.#set("snapshot", id.length > 12 ? `…${id.slice(-8)}` : id, isWhole ? "a whole block" : `sub-block ${index}`);
      this.#tiles.snapshot.value.title = id;
      this.#set("block", thousands(block), isWhole ? "it is complete" : `sub-blocks so far: ${index}`);
      this.#drawBlocks(model.blocks);
    }
    if (model.feed) {
      const { lagMs, lagSubBlocks, verified } = model.feed;
      this.#set("lag", lagMs === undefined ? "none" : age(lagMs), lagSubBlocks ? `${lagSubBlocks} sub-blocks wait` : "", lagMs ? "warn" : "");
      this.#set("verified", verified, { full: "all was compared", partial: "a part was compared", none: "nothing to compare with" }[verified] ?? "");
    }
    const { status } = model;
    if (!status || now - this.#drawn < REDRAW) return;
    this.#drawn = now;
    const { requests, lanes, memory, workers, cpuPercent } = status;
    const all = Object.values(lanes), sum = (key) => all.reduce((total, lane) => total + lane[key], 0);
    this.#set("requests", rate(requests.perSecond), `${thousands(requests.total)} since the start`);
    this.#set("rejected", rate(requests.rejectedPerSecond), `${thousands(requests.rejected)} since the start`, requests.rejectedPerSecond > 0 ? "bad" : "");
    this.#set("queue", thousands(sum("waiting")), `${sum("running")} run${all.some((lane) => lane.overloaded) ? ", overloaded" : ""}`, all.some((lane) => lane.overloaded) ? "warn" : "");
    this.#set("cores", String(workers), cpuPercent === undefined ? "workers" : `workers, ${trim(cpuPercent / 100, 2)} cores in use`);
    this.#set("memory", bytes(memory.residentBytes ?? memory.ioBytes + memory.codeBytes), memory.residentBytes === undefined ? "requests and bytecode" : `${bytes(memory.ioBytes)} of requests, ${bytes(memory.codeBytes)} of bytecode`);
    const ago = (value) => (value === 0 ? "now" : `${age(Math.max(0, now - value))} ago`);
    // A plot that is being read stays.
    if (!this.#plots.matches(":hover, :focus-within")) fill(this.#plots,
      model.gaps.length > 1 && plot({ title: "Time between snapshots", note: "The last snapshots, in milliseconds.", points: model.gaps, x: ago, y: (value) => `${Math.round(value)} ms` }),
      model.loads.length > 1 && plot({ title: "Requests a second", note: `Over the last ${Math.max(1, Math.round(status.windowMs / 1000))} s each, this page's among them.`, points: model.loads, x: ago, y: rate, colour: "s3" }));
    this.#drawTables(status);
  }

  #set(name, value, note, kind = "") {
    const tile = this.#tiles[name];
    say(tile.value, value);
    say(tile.note, note ?? "");
    tile.value.className = kind;
  }

  #drawBlocks(blocks) {
    // Of a sub-block that came before the page there is no gas.
    const bars = new Map(blocks.map(({ number, parts }) => [number, parts.filter(({ index, used }) => index > 0 || used > 0).map((part) => {
      const before = part.index <= 1 ? 0 : parts.find(({ index }) => index === part.index - 1)?.used;
      return { ...part, gas: part.used === undefined || before === undefined ? undefined : Math.max(0, part.used - before) };
    })]));
    const most = Math.max(1, ...[...bars.values()].flat().map(({ gas }) => gas ?? 0));
    fill(this.#blocks, [...blocks].reverse().map(({ number, parts, sealed }, at) => {
      const used = sealed ?? parts.findLast((part) => part.used !== undefined)?.used ?? 0, shown = bars.get(number), count = shown.reduce((sum, part) => sum + part.count, 0);
      const cells = shown.map(({ index, gas, count }) => {
        const bar = el("i", {});
        bar.style.height = `${Math.round(((gas ?? 0) / most) * 100)}%`;
        return el("span", { class: "cell", title: `${index ? `sub-block ${index}` : "the block"}: ${count} transactions, ${gas === undefined ? "unknown" : thousands(gas)} gas` }, bar);
      });
      const last = shown.at(-1)?.index ?? 0;
      return el("div", { class: at === 0 ? "block open" : "block" }, el("b", {}, thousands(number)), el("div", { class: "cells", "aria-hidden": "true" }, cells),
        el("small", {}, `${last ? `${last} sub-blocks, ` : ""}${shown.length >= last ? thousands(count) : `${thousands(count)} or more`} transactions, ${thousands(used)} gas`));
    }));
  }

  #drawTables({ methods, windowMs, lanes, standing: { count, best } }) {
    say(this.#window, `Over the last ${Math.round(windowMs / 1000)} s. Percentiles are as fine as the buckets of the metrics.`);
    this.#methods.update(methods.slice(0, 40).map(({ method, total, perSecond, failedPerSecond, rejectedPerSecond, p50Us, p99Us }) => [
      el("code", {}, method), rate(perSecond), p99Us ? micros(p50Us) : "–", p99Us ? micros(p99Us) : "–", rate(failedPerSecond), rate(rejectedPerSecond), thousands(total)]));
    this.#lanes.update(Object.entries(lanes).map(([name, { waiting, running, rejected, overloaded }]) => [name, thousands(waiting), thousands(running), thousands(rejected), overloaded ? "overloaded" : "at ease"]));
    say(this.#standingTitle, `Standing bundles (${thousands(count)})`);
    say(this.#standingNote, count ? `The ${best.length} with the best objective of the last run.` : "None stands. presim_watch lets bundles stand: they run again whenever a snapshot changes what they read.");
    this.#standing.hidden = !count;
    this.#standing.update(best.map(({ name, objective, holdsAt, isDue }) => [name, objective === null ? "none" : objective, objective === null ? "–" : units(objective, 18), holdsAt ?? "not run yet", isDue ? "due" : "holds"]));
  }
}
