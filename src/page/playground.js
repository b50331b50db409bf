// The playground: any method of `rpc.discover`, with examples, run at a state of choice.

import { BundleBuilder, backrun, dataOf } from "./bundle.js";
import { languages } from "./copy.js";
import { copier, el, fill, hexOf, say, thousands, wei } from "./dom.js";
import { hidden } from "./hidden.js";
import { callTree, simulatedAssets } from "./trace.js";

/** The most characters of a result that are shown. All of it can be copied. */
const MOST_SHOWN = 200_000;
/** The outputs by which a simulation is shown. */
const OUTPUTS = ["status", "gasUsed", "returnData", "error", "logs", "trace", "assets"];
/** The methods that need a subscription's connection, which is this page's own. */
const LEFT_OUT = new Set(["eth_subscribe", "eth_unsubscribe", "presim_watch", "presim_rewatch"]);
/** The place of the block among the parameters, for methods whose parameter has another name. */
const BLOCK_NAMES = /^(block|blockSelector|selector|blockNumber|blockNumberOrTag|state)$/i;

export class PlaygroundView {
  #app;
  #methods = [];
  #method = el("select", { id: "method", change: () => this.#choose() });
  #find = el("input", { id: "method-find", type: "search", placeholder: "part of a name", input: () => this.#list() });
  #example = el("select", { id: "example", change: () => this.#fillIn() });
  #account = el("select", { id: "account", change: () => this.#fillIn() });
  #state = el("select", { id: "at-state" });
  #params = el("textarea", { id: "params", rows: 10, spellcheck: "false", autocapitalize: "off", keydown: (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) this.#run();
  } });
  #about = el("p", { class: "soft" });
  #problem = el("p", { class: "bad", role: "alert", hidden: true });
  #result = el("div", { "aria-live": "polite" });
  #copies = el("div", { class: "bar" });
  #builder;
  #asked = 0;

  constructor(section, app) {
    this.#app = app;
    this.#builder = new BundleBuilder(app, (method, params) => this.#take(method, params), (method, params) => this.run(method, params));
    const field = (label, input) => el("div", { class: "field" }, el("label", { for: input.id }, label), input);
    section.append(
      el("details", { class: "box", open: true }, el("summary", {}, el("h3", {}, "A request")),
        el("div", { class: "fields" }, field("Find", this.#find), field("Method", this.#method), field("Example", this.#example), field("Account", this.#account), field("State", this.#state)),
        this.#about, el("label", { for: "params" }, "Parameters"), this.#params, this.#problem,
        el("div", { class: "bar" }, el("button", { type: "button", class: "main", id: "run", click: () => this.#run() }, "Run"), el("small", { class: "soft" }, "or Ctrl and Enter"), this.#copies)),
      this.#builder.element,
      el("h3", {}, "Result"), this.#result);
    for (const language of Object.keys(languages)) this.#copies.append(copier(`Copy as ${language}`, () => this.#copy(language)));
    fill(this.#result, el("p", { class: "soft" }, "Nothing was run yet."));
  }

  async meet() {
    const { node, model } = this.#app;
    const document = await node.call("rpc.discover").catch(() => ({ methods: [] }));
    const testing = document.methods.filter(({ name }) => !LEFT_OUT.has(name));
    this.#methods = testing.sort((one, other) => one.name.localeCompare(other.name));
    fill(this.#account, model.accounts.map((address, index) => el("option", { value: address }, `${index}: ${address}`)), model.accounts.length === 0 && el("option", { value: `0x${"0".repeat(39)}1` }, "none of the node's"));
    this.#builder.meet();
    this.#list();
    this.show();
  }

  show() {
    const chosen = this.#state.value, { snapshot } = this.#app.model;
    fill(this.#state, el("option", { value: "pending" }, "pending"), el("option", { value: "latest" }, "latest"),
      snapshot && el("option", { value: snapshot.id }, `snapshot ${snapshot.id}`));
    if (chosen && [...this.#state.options].some(({ value }) => value === chosen)) this.#state.value = chosen;
  }

  #list() {
    const wanted = this.#find.value.trim().toLowerCase(), chosen = this.#method.value;
    const found = this.#methods.filter(({ name }) => name.toLowerCase().includes(wanted));
    const groups = Map.groupBy ? Map.groupBy(found, ({ name }) => name.split(/[_.]/)[0]) : new Map([["methods", found]]);
    fill(this.#method, [...groups].map(([group, methods]) => el("optgroup", { label: group }, methods.map(({ name }) => el("option", {}, name)))));
    const names = found.map(({ name }) => name);
    this.#method.value = names.includes(chosen) ? chosen : names.includes("eth_call") ? "eth_call" : names[0] ?? "";
    if (this.#method.value !== chosen) this.#choose();
  }

  #choose() {
    const method = this.#methods.find(({ name }) => name === this.#method.value);
    if (!method) return;
    const changes = /^(eth_send|eth_cancel|wallet_send|personal_|eth_sign|anvil_|hardhat_|evm_)/.test(method.name);
    say(this.#about, `${method.summary}${changes ? " This method changes something." : ""}`);
    fill(this.#example, examplesOf(method, this.#values()).map(({ title }, index) => el("option", { value: index }, title)));
    this.#fillIn();
  }

  #values() {
    const { model } = this.#app;
    const contract = (name) => model.status?.contracts.find((one) => one.name === name)?.address;
    const account = this.#account.value || model.accounts[0] || `0x${"0".repeat(39)}1`;
    const other = model.accounts.find((one) => one !== account) ?? `0x${"0".repeat(39)}2`;
    return { account, other, token: contract("ALPHA") ?? other, weth: contract("WETH"), router: contract("router"), bundle: backrun(model.status?.contracts ?? [], model.accounts), chainId: model.status?.chainId ?? "0x1", hash: model.head ?? `0x${"0".repeat(64)}` };
  }

  #fillIn() {
    const method = this.#methods.find(({ name }) => name === this.#method.value);
    const example = method && examplesOf(method, this.#values())[this.#example.value || 0];
    if (example) this.#params.value = pretty(example.params);
    this.#complain("");
  }

  /** Takes a request from the builder, to be edited. */
  #take(method, params) {
    this.#find.value = "";
    this.#list();
    this.#method.value = method;
    this.#choose();
    this.#params.value = pretty(params);
    this.#params.focus();
  }

  #complain(text) {
    say(this.#problem, text);
    this.#problem.hidden = !text;
  }

  /** Returns the parameters with the chosen state, or null if they are no JSON. */
  #read() {
    const method = this.#method.value;
    let params;
    try {
      params = JSON.parse(this.#params.value || "[]");
    } catch (error) {
      this.#complain(`The parameters are no JSON: ${error.message}`);
      return null;
    }
    if (!Array.isArray(params)) {
      this.#complain("The parameters: expected a list, in brackets");
      return null;
    }
    this.#complain("");
    const place = (this.#methods.find(({ name }) => name === method)?.params ?? []).findIndex(({ name }) => BLOCK_NAMES.test(name));
    const state = this.#state.value;
    // What was written as another block by hand stays.
    if (place >= 0 && place <= params.length && (params[place] === undefined || params[place] === "pending" || params[place] === "latest")) {
      params[place] = state.startsWith("0x") ? { snapshotId: state } : state;
    }
    return { method, params };
  }

  #copy(language) {
    const { node } = this.#app, read = this.#read();
    return read ? languages[language](node.urls, read.method, read.params, Boolean(node.token)) : "";
  }

  #run() {
    const read = this.#read();
    if (read) this.run(read.method, read.params);
  }

  /** Runs a request, and shows its result as JSON, and as a call tree and assets if it is a call or a simulation. */
  async run(method, params) {
    const { node } = this.#app, asked = ++this.#asked, began = performance.now();
    fill(this.#result, el("p", { class: "soft" }, `${method} runs …`));
    const simulated = simulationOf(method, params);
    const [answer, seen] = await Promise.all([
      node.call(method, params).then((result) => ({ result }), (error) => ({ error })),
      simulated ? node.call("presim_simulate", simulated).catch(() => null) : null,
    ]);
    if (asked !== this.#asked) return answer;
    const took = performance.now() - began;
    const parts = [el("p", { class: "soft" }, `${method}, ${Math.round(took)} ms to here and back`)];
    if (answer.error) {
      const { code, message, data } = answer.error;
      parts.push(el("p", { class: "bad" }, `${code === undefined ? "" : `${code} `}${message}`), data !== undefined && el("p", {}, "data ", el("code", {}, typeof data === "string" ? data : JSON.stringify(data))));
    }
    parts.push(...(await this.#shown(method, answer.result, seen)));
    if (!answer.error) parts.push(json(answer.result));
    if (asked === this.#asked) fill(this.#result, parts);
    return answer;
  }

  async #shown(method, result, seen) {
    const { words } = this.#app, parts = [];
    const frames = seen ? seen.flatMap(({ calls }) => calls.map((call) => ({ ...call.trace, failed: call.error }))) : method.startsWith("debug_trace") ? framesOf(result) : [];
    for (const [index, frame] of frames.slice(0, 50).entries()) {
      if (!frame?.type) continue;
      parts.push(el("h4", {}, frames.length > 1 ? `Call ${index + 1}, ${thousands(Number(frame.gasUsed))} gas` : "Calls"), callTree(words, frame));
    }
    for (const block of seen ?? []) {
      if (block.assets) parts.push(el("h4", {}, "Assets"), await simulatedAssets(words, block.assets));
    }
    return parts;
  }
}

/** Returns a value as JSON, whose hidden characters are escaped as JSON does. */
const pretty = (value) => JSON.stringify(value, null, 2)?.replace(hidden, (letter) => (letter === "\n" ? letter : letter.split("").map((unit) => `\\u${unit.charCodeAt(0).toString(16).padStart(4, "0")}`).join("")));

function json(result) {
  const text = pretty(result) ?? "null";
  const shown = text.length > MOST_SHOWN ? `${text.slice(0, MOST_SHOWN)}\n… ${thousands(text.length - MOST_SHOWN)} characters more` : text;
  return el("details", { open: text.length < 20_000 }, el("summary", {}, el("h4", {}, "JSON")), copier("Copy JSON", text), el("pre", { tabindex: 0, id: "json" }, shown));
}

/** Returns the frames in the result of a tracing method with `callTracer`. */
function framesOf(result) {
  if (Array.isArray(result)) return result.flatMap((one) => framesOf(one?.result ?? one));
  return result?.type ? [result] : [];
}

/** Returns the simulation that shows what a request does, if it is a call or a bundle. */
function simulationOf(method, params) {
  const [first, state = "latest", overrides] = params;
  if (["eth_call", "eth_estimateGas", "eth_createAccessList"].includes(method) && first) {
    return [{ blockStateCalls: [{ calls: [first], ...(overrides && { stateOverrides: overrides }) }], outputs: OUTPUTS }, state];
  }
  if (["eth_simulateV1", "presim_simulate"].includes(method) && first) {
    const { traceTransfers, returnFullTransactions, ...rest } = first;
    return [{ ...rest, outputs: OUTPUTS }, state];
  }
  return null;
}

/** Returns examples of a method's parameters on this chain: those of the usual methods, and else the document's own. */
function examplesOf({ name, examples = [] }, { account, other, token, weth, router, bundle, chainId, hash }) {
  const pad = (text) => text.replace(/^0x/, "").toLowerCase().padStart(64, "0");
  const amount = "0de0b6b3a7640000";
  const balance = { to: token, data: `0x70a08231${pad(account)}` };
  const transfer = { from: account, to: token, data: `0xa9059cbb${pad(other)}${pad(amount)}` };
  const ether = { from: account, to: other, value: `0x${amount.replace(/^0+/, "")}` };
  const quote = router && weth && { to: router, data: `0xd06ca61f${pad(amount)}${pad("40")}${pad("2")}${pad(weth)}${pad(token)}` };
  const calls = [
    ...(quote ? [{ title: "what 1 WETH buys", call: quote }] : []),
    { title: "the balance of a token", call: balance },
    { title: "a transfer of a token", call: transfer },
    { title: "a transfer of 1 ether", call: ether },
  ];
  const blocks = (list) => ({ blockStateCalls: [{ calls: list }] });
  const one = (title, ...list) => [{ title, params: list }];
  const here = ({ name, value }) => (name === "block" && /^0x[0-9a-f]{64}$/.test(value) ? hash : /^(account|address)$/.test(name) && /^0x[0-9a-f]{40}$/.test(value) ? account : value);
  switch (name) {
    case "eth_call":
    case "eth_estimateGas":
    case "eth_createAccessList":
      return calls.map(({ title, call }) => ({ title, params: [call, "pending"] }));
    case "debug_traceCall":
      return calls.map(({ title, call }) => ({ title, params: [call, "pending", { tracer: "callTracer", tracerConfig: { withLog: true } }] }));
    case "trace_call":
      return calls.map(({ title, call }) => ({ title, params: [call, ["trace"], "pending"] }));
    case "eth_simulateV1":
      return [{ title: "two transfers", params: [{ ...blocks([ether, transfer]), traceTransfers: true }, "pending"] }, ...calls.map(({ title, call }) => ({ title, params: [blocks([call]), "pending"] }))];
    case "presim_simulate":
      return [{ title: "two transfers, with assets", params: [{ ...blocks([ether, transfer]), outputs: ["status", "gasUsed", "logs", "assets"] }, "pending"] }];
    case "presim_search":
      if (bundle) {
        const list = bundle.map(({ from, to, value, signature, values }) => ({ from, to, ...(value && { value: hexOf(wei(value)) }), data: dataOf(signature, values) }));
        const [from, to] = ["10", "500000"].map((text) => hexOf(wei(text)));
        return one("the best amount to sell after a large trade", { ...blocks(list), vary: [{ path: "blocks[0].calls[2].data", word: 0, maximize: { from, to } }], objective: { account: list[2].from, token: list[1].to }, top: 20 }, "pending");
      }
      return one("the ether that is sent", { ...blocks([ether]), vary: [{ path: "blocks[0].calls[0].value", from: "0x1", to: "0xde0b6b3a7640000", points: 20, scale: "geometric" }], objective: { account }, top: 20 }, "pending");
    case "eth_callMany":
      return one("a transfer, and the balance after it", [{ transactions: [transfer, balance] }], { blockNumber: "pending", transactionIndex: -1 });
    case "eth_getStorageValues":
      return one("a slot of a token", { [token]: ["0x0"] }, "pending");
    case "eth_getLogs":
      return one("the transfers of a token in the newest blocks", { fromBlock: "latest", toBlock: "pending", address: token });
    case "debug_traceBlockByNumber":
      return one("the block being built", "pending", { tracer: "callTracer" });
    case "eth_getBlockByNumber":
      return one("the block being built", "pending", true);
    case "eth_feeHistory":
      return one("ten blocks", "0xa", "latest", [10, 50, 90]);
    case "eth_sendTransaction":
      return one("a transfer of 1 ether", ether);
    case "wallet_sendCalls":
      return one("two transfers", { version: "2.0.0", from: account, chainId, atomicRequired: false, calls: [{ to: other, value: "0x1" }, { to: token, value: "0x0", data: transfer.data }] });
    default:
      return examples.map(({ params }) => ({ title: "from its description", params: params.map(here) }));
  }
}
