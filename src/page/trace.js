// A call tree with gas, names and logs, changes of assets, and changes of state.

import { el, hexOf, say, short, table, thousands, units } from "./dom.js";
import { netChanges, revertText } from "./words.js";

/** The most frames and logs that are shown. A tree may have thousands, and the browser would stand still. */
const MOST_LINES = 500;

/** Creates the tree of a frame of `callTracer`. What calls returned is filled in as soon as their tokens are known. */
export function callTree(words, frame) {
  const room = { left: MOST_LINES };
  const tree = el("div", { class: "tree" }, node(words, frame, room, 0));
  if (room.left < 0) tree.append(el("p", { class: "soft" }, `${thousands(-room.left)} lines more are not shown.`));
  return tree;
}

function node(words, frame, room, depth) {
  if (--room.left < 0) {
    (frame.calls ?? []).forEach((call) => node(words, call, room, depth + 1));
    return null;
  }
  const known = frame.type.startsWith("CREATE") ? null : words.function(frame.input ?? "0x");
  const call = known ? words.line(known) : frame.type.startsWith("CREATE") ? "creates a contract" : frame.input?.length > 2 ? `${frame.input.slice(0, 10)} (${(frame.input.length - 2) / 2} bytes)` : "no data";
  const reason = frame.error && (frame.revertReason || revertText(frame.output) || frame.error);
  const line = [
    el("span", { class: frame.error ? "kind bad" : "kind" }, frame.type.toLowerCase()),
    " ", el("span", { class: "to", title: frame.to ?? "" }, words.name(frame.to)), " ",
    el("code", { title: (frame.input ?? "").slice(0, 2000) }, call),
    BigInt(frame.value ?? 0) > 0n && el("span", { class: "value" }, ` ${units(frame.value, 18)} ${words.coin}`),
    el("span", { class: "gas" }, ` ${thousands(Number(frame.gasUsed ?? 0))} gas`),
    frame.error && el("span", { class: "bad" }, ` ✗ ${reason}`),
  ];
  const inner = [
    ...(frame.calls ?? []).map((one) => node(words, one, room, depth + 1)),
    ...(frame.logs ?? []).map((log) => logLine(words, log, room)),
    returned(words, frame, known),
  ].filter(Boolean);
  if (!inner.length) return el("div", { class: "leaf" }, line);
  return el("details", { open: depth < 8 }, el("summary", {}, line), inner);
}

function returned(words, frame, known) {
  if (frame.error || !frame.output || frame.output === "0x" || frame.type.startsWith("CREATE")) return null;
  const shown = frame.output.length === 66 ? BigInt(frame.output) : null;
  const text = el("code", { title: frame.output.slice(0, 2000) }, shown === null ? `${frame.output.slice(0, 42)}… (${frame.output.length / 2 - 1} bytes)` : shown < 1n << 64n ? shown.toString() : frame.output);
  if (known) words.returned(frame.to, known, frame.output).then((read) => read && say(text, read)).catch(() => {});
  return el("div", { class: "leaf soft" }, "returns ", text);
}

function logLine(words, log, room) {
  if (--room.left < 0) return null;
  const known = words.event(log);
  return el("div", { class: "leaf" }, el("span", { class: "kind log" }, "log"), " ", el("span", { class: "to", title: log.address }, words.name(log.address)), " ",
    el("code", {}, known ? words.line(known) : `${short(log.topics[0] ?? "no topic")} (${log.data.length / 2 - 1} bytes)`));
}

/** Returns all logs of a frame that did not revert, and all its movements of the chain's coin. */
export function effects(frame) {
  const logs = [], ether = [];
  const visit = (one) => {
    if (one.error) return;
    logs.push(...(one.logs ?? []));
    const value = BigInt(one.value ?? 0);
    if (value > 0n && one.type !== "DELEGATECALL" && one.type !== "CALLCODE") ether.push({ from: one.from, to: one.to, value });
    (one.calls ?? []).forEach(visit);
  };
  visit(frame);
  return { logs, ether };
}

/** Creates a table of the assets that changed hands. */
export async function assetTable(words, logs, ether) {
  const changes = netChanges(logs, ether);
  if (!changes.length) return el("p", { class: "soft" }, "No assets changed hands.");
  return assetsOf(words, changes);
}

/** Creates the same of the `assets` that `presim_simulate` returns. */
export async function simulatedAssets(words, assets) {
  const changes = Object.entries(assets).map(([account, list]) => ({
    account,
    changes: list.map(({ type, token, address, id, change }) => ({ token: type === "ether" ? null : token ?? address, id, value: BigInt(change) })),
  })).filter(({ changes }) => changes.length);
  return changes.length ? assetsOf(words, changes) : el("p", { class: "soft" }, "No assets changed hands.");
}

async function assetsOf(words, accounts) {
  const rows = await Promise.all(accounts.slice(0, 100).map(async ({ account, changes }) => [
    el("span", { title: account }, words.name(account)),
    await Promise.all(changes.slice(0, 20).map(async ({ token, id, value }) => el("div", { class: value < 0n ? "bad" : "good" }, `${value > 0n ? "+" : ""}${await words.amount(token, value, id)}`))),
  ]));
  return table("Assets that changed hands", ["Account", "text:Change"], rows);
}

/** Creates a table of what `prestateTracer` with `diffMode` found. */
export function stateTable(words, { pre, post }) {
  const rows = [];
  for (const account of new Set([...Object.keys(pre), ...Object.keys(post)])) {
    const before = pre[account] ?? {}, after = post[account] ?? {};
    const add = (what, from, to) => rows.push([el("span", { title: account }, words.name(account)), what, from, to]);
    if (after.balance !== undefined) add("balance", `${units(before.balance ?? 0, 18, 9)} ${words.coin}`, `${units(after.balance, 18, 9)} ${words.coin}`);
    if (after.nonce !== undefined) add("nonce", String(before.nonce ?? 0), String(after.nonce));
    if (after.code !== undefined) add("code", before.code ? `${before.code.length / 2 - 1} bytes` : "none", `${after.code.length / 2 - 1} bytes`);
    const slots = new Set([...Object.keys(before.storage ?? {}), ...Object.keys(after.storage ?? {})]);
    // A slot that became zero is only in the state before.
    for (const slot of slots) add(el("code", { title: slot }, `slot ${short(hexOf(slot))}`), word(before.storage?.[slot]), word(after.storage?.[slot]));
  }
  if (!rows.length) return el("p", { class: "soft" }, "Nothing else changed.");
  const shown = rows.slice(0, 200);
  return [table("Changes of state", ["Account", "text:What", "text:Before", "text:After"], shown), rows.length > shown.length && el("p", { class: "soft" }, `${rows.length - shown.length} changes more are not shown.`)];
}

const word = (value) => el("code", { title: value ?? "0x0" }, short(hexOf(value ?? 0)));
