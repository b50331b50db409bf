// The builder of bundles: calls in order, simulated by `presim_simulate` or searched by `presim_search`.

import { encode, parse, plain } from "./abi.js";
import { announce, el, fill, hexOf, say, table, thousands, trim, units, wei } from "./dom.js";
import { plot } from "./plot.js";
import { functions } from "./signatures.js";

const MOST_CALLS = 50;
/** The most that a word of the ABI holds: an approval without a limit, a deadline that never comes. */
const MOST = ((1n << 256n) - 1n).toString();
const SWAP = "swapExactTokensForTokens(uint256 amountIn, uint256 amountOutMin, address[] path, address to, uint256 deadline)";
const OBJECTIVES = { balance: "the balance of an account", coinbase: "what the block's producer gets", gasUsed: "less gas" };

let nextId = 1;
const labelled = (label, input, note) => {
  input.id ||= `field-${nextId++}`;
  return el("div", { class: "field" }, el("label", { for: input.id }, label), input, note && el("small", { class: "soft" }, note));
};

/** Returns the data of a call with values as a person writes them. */
export function dataOf(signature, values) {
  const [selector] = Object.entries(functions).find(([, known]) => known.startsWith(signature));
  return selector + encode(parse(signature).params, values);
}

/**
 * Returns the calls of a bundle that gains on the devnet, or null on another chain: somebody buys much ALPHA, and `from`
 * sells it dear and buys it back over BETA.
 */
export function backrun(contracts, accounts) {
  const [weth, alpha, beta, router] = ["WETH", "ALPHA", "BETA", "router"].map((name) => contracts.find((one) => one.name === name)?.address);
  const from = accounts[5], other = accounts[6];
  if (!router || !other) return null;
  return [
    { from: other, to: router, value: "200", signature: "swapExactETHForTokens(uint256 amountOutMin, address[] path, address to, uint256 deadline)", values: ["0", `[${weth}, ${alpha}]`, other, MOST] },
    { from, to: alpha, signature: "approve(address spender, uint256 value)", values: [router, MOST] },
    { from, to: router, signature: SWAP, values: ["1000000000000000000000", "0", `[${alpha}, ${weth}, ${beta}, ${alpha}]`, from, MOST] },
  ];
}

export class BundleBuilder {
  #app;
  #edit;
  #calls = [];
  #list = el("ol", { class: "calls" });
  #addresses = el("datalist", { id: "addresses" });
  #problem = el("p", { class: "bad", role: "alert", hidden: true });
  #found = el("div", { "aria-live": "polite" });
  #place = el("select", {});
  #from = el("input", { value: "10", inputmode: "decimal" });
  #to = el("input", { value: "500,000", inputmode: "decimal" });
  #decimals = el("input", { type: "number", min: 0, max: 77, value: 18 });
  #points = el("input", { type: "number", min: 2, max: 200, value: 40 });
  #how = el("select", {}, el("option", { value: "geometric" }, "at equal ratios"), el("option", { value: "linear" }, "at equal steps"), el("option", { value: "maximize" }, "narrow down to the maximum"));
  #objective = el("select", {}, Object.entries(OBJECTIVES).map(([value, text]) => el("option", { value }, text)));
  #who = el("input", { list: "addresses", spellcheck: "false", placeholder: "0x…" });
  #token = el("input", { list: "addresses", spellcheck: "false", placeholder: "none: ether" });
  #mode = "simulate";

  /** `edit` takes a request to be edited as JSON, `run` runs one and shows its result. */
  constructor(app, edit, run) {
    this.#app = app;
    this.#edit = edit;
    const search = el("fieldset", { hidden: true }, el("legend", {}, "Search"),
      el("div", { class: "fields" }, labelled("What varies", this.#place), labelled("From", this.#from), labelled("To", this.#to), labelled("Decimals", this.#decimals, "of both amounts"), labelled("Values", this.#how), labelled("How many", this.#points),
        labelled("Objective", this.#objective), labelled("Account", this.#who), labelled("Token", this.#token)));
    const mode = (value, label) => el("label", { class: "choice" }, el("input", { type: "radio", name: "bundle-mode", value, ...(value === "simulate" && { checked: true }), change: () => {
      this.#mode = value;
      search.hidden = value !== "search";
    } }), label);
    this.#how.addEventListener("change", () => { this.#points.disabled = this.#how.value === "maximize"; });
    this.#objective.addEventListener("change", () => { this.#who.disabled = this.#token.disabled = this.#objective.value !== "balance"; });
    this.element = el("details", { class: "box" }, el("summary", {}, el("h3", {}, "Build a bundle")),
      this.#addresses, el("datalist", { id: "signatures" }, [...new Set(Object.values(functions).map((text) => text.split(" returns ")[0]))].map((text) => el("option", { value: text }))),
      this.#list, el("div", { class: "bar" }, el("button", { type: "button", click: () => this.#add({}).focus() }, "Add a call"), mode("simulate", "Simulate"), mode("search", "Search the best amount")),
      search, this.#problem,
      el("div", { class: "bar" },
        el("button", { type: "button", class: "main", id: "run-bundle", click: () => this.#try(async () => {
          // Clears the last result first: what is on the page never answers another request than the one that runs.
          fill(this.#found);
          const [method, params] = await this.#request();
          const answer = await run(method, params);
          if (method === "presim_search" && answer.result) await this.#show(answer.result, params[0]);
        }) }, "Run the bundle"),
        el("button", { type: "button", click: () => this.#try(async () => this.#edit(...(await this.#request()))) }, "Edit as JSON")),
      this.#found);
  }

  /** Begins with what this chain offers: a trade on the devnet, or an empty call. */
  meet() {
    const { model } = this.#app, contracts = model.status.contracts;
    fill(this.#addresses, contracts.map(({ name, address }) => el("option", { value: address }, name)), model.accounts.map((address, index) => el("option", { value: address }, `account ${index}`)));
    if (this.#calls.length) return;
    const calls = backrun(contracts, model.accounts);
    if (!calls) {
      this.#add({ from: model.accounts[0] ?? "" });
      return;
    }
    for (const call of calls) this.#add(call);
    [this.#who.value, this.#token.value] = [calls[2].from, calls[1].to];
    this.#places("2:word:0");
  }

  #add({ from = this.#calls.at(-1)?.from.value ?? "", to = "", value = "", gas = "", signature = "", values = [] }) {
    if (this.#calls.length >= MOST_CALLS) {
      announce(`A bundle here has at most ${MOST_CALLS} calls.`);
      return this.#calls.at(-1).to;
    }
    const call = {
      from: el("input", { value: from, list: "addresses", spellcheck: "false", placeholder: "0x…" }),
      to: el("input", { value: to, list: "addresses", spellcheck: "false", placeholder: "0x…, or nothing to create a contract" }),
      value: el("input", { value, inputmode: "decimal", placeholder: "0" }),
      gas: el("input", { value: gas, inputmode: "numeric", placeholder: "all there is" }),
      signature: el("input", { value: signature, list: "signatures", spellcheck: "false", placeholder: "transfer(address to, uint256 value), or data in hex", change: () => { this.#arguments(call, []); this.#places(); } }),
      arguments: el("div", { class: "fields" }),
      inputs: [],
    };
    const move = (by) => {
      const at = this.#calls.indexOf(call), other = at + by;
      if (other < 0 || other >= this.#calls.length) return;
      [this.#calls[at], this.#calls[other]] = [this.#calls[other], this.#calls[at]];
      this.#draw();
    };
    const button = (text, label, click) => el("button", { type: "button", class: "small", "aria-label": label, click }, text);
    call.item = el("li", {}, el("div", { class: "fields" }, labelled("From", call.from), labelled("To", call.to), labelled("Value in ether", call.value), labelled("Gas", call.gas), labelled("Function", call.signature)), call.arguments,
      el("div", { class: "bar" }, button("↑", "Move this call up", () => move(-1)), button("↓", "Move this call down", () => move(1)), button("Remove", "Remove this call", () => {
        this.#calls.splice(this.#calls.indexOf(call), 1);
        this.#draw();
      })));
    this.#calls.push(call);
    this.#arguments(call, values);
    this.#draw();
    return call.to;
  }

  #draw() {
    fill(this.#list, this.#calls.map(({ item }) => item));
    this.#places();
  }

  /** Makes a field for each parameter of the function. */
  #arguments(call, values) {
    call.inputs = [];
    const text = call.signature.value.trim();
    if (text && !text.startsWith("0x")) {
      try {
        call.inputs = parse(text).params.map((param, index) => ({ param, input: el("input", { value: values[index] ?? "", spellcheck: "false", list: param.type === "address" ? "addresses" : null }) }));
      } catch {
        // The problem is told when the bundle runs.
      }
    }
    fill(call.arguments, call.inputs.map(({ param, input }) => labelled(`${param.name || "value"} (${param.type})`, input)));
  }

  /** Lists the places that can vary: values, and whole numbers among the arguments. */
  #places(wanted = this.#place.value) {
    const options = this.#calls.flatMap((call, index) => [
      el("option", { value: `${index}:value` }, `call ${index + 1}: its ether`),
      ...(call.inputs.every(({ param }) => !param.parts && !/\[\d+\]/.test(param.type)) ? call.inputs.map(({ param }, word) => /^uint\d+$/.test(param.type) && el("option", { value: `${index}:word:${word}` }, `call ${index + 1}: ${param.name || `argument ${word + 1}`}`)) : []),
    ].filter(Boolean));
    fill(this.#place, options);
    if (options.some(({ value }) => value === wanted)) this.#place.value = wanted;
  }

  async #try(work) {
    say(this.#problem, "");
    this.#problem.hidden = true;
    try {
      await work();
    } catch (error) {
      say(this.#problem, error.message);
      this.#problem.hidden = false;
    }
  }

  /** Returns the bundle as a method and its parameters. */
  async #request() {
    const calls = [];
    for (const [index, call] of this.#calls.entries()) {
      try {
        calls.push(await this.#call(call));
      } catch (error) {
        throw new Error(`Call ${index + 1}: ${error.message}`);
      }
    }
    const bundle = { blockStateCalls: [{ calls }] };
    if (this.#mode === "simulate") return ["presim_simulate", [{ ...bundle, outputs: ["status", "gasUsed", "returnData", "error", "logs", "assets"] }, "pending"]];
    const [index, kind, word] = this.#place.value.split(":"), decimals = Number(this.#decimals.value);
    const [from, to] = [this.#from, this.#to].map((input) => hexOf(wei(input.value, decimals)));
    if (BigInt(from) >= BigInt(to)) throw new Error(`Search: from ${this.#from.value} to ${this.#to.value}: expected an end above the beginning`);
    if (this.#how.value === "geometric" && BigInt(from) === 0n) throw new Error("Search: from 0: equal ratios begin above 0");
    const path = `blocks[0].calls[${index}].${kind === "value" ? "value" : "data"}`;
    const points = Number(this.#points.value);
    const values = this.#how.value === "maximize" ? { maximize: { from, to } } : { from, to, points, scale: this.#how.value };
    const objective = this.#objective.value === "balance" ? { account: this.#address(this.#who.value, "Search: account"), ...(this.#token.value && { token: this.#address(this.#token.value, "Search: token") }) } : this.#objective.value;
    return ["presim_search", [{ ...bundle, vary: [{ path, ...(kind === "word" && { word: Number(word) }), ...values }], objective, top: this.#how.value === "maximize" ? 200 : points }, "pending"]];
  }

  async #call({ from, to, value, gas, signature, inputs }) {
    const call = { from: this.#address(from.value, "from"), to: to.value.trim() ? this.#address(to.value, "to") : null };
    if (value.value.trim()) call.value = hexOf(wei(value.value));
    if (gas.value.trim()) {
      if (!/^\d+$/.test(gas.value.trim())) throw new Error(`gas: ${gas.value}: expected a whole number`);
      call.gas = hexOf(gas.value.trim());
    }
    const text = signature.value.trim();
    if (text.startsWith("0x")) call.data = text;
    else if (text) {
      const parsed = parse(text), name = plain(parsed);
      const hash = await this.#app.node.call("web3_sha3", [`0x${[...new TextEncoder().encode(name)].map((byte) => byte.toString(16).padStart(2, "0")).join("")}`]);
      call.data = hash.slice(0, 10) + encode(parsed.params, inputs.map(({ input }) => input.value));
    }
    return call;
  }

  #address(text, field) {
    if (!/^0x[0-9a-fA-F]{40}$/.test(text.trim())) throw new Error(`${field}: ${text || "nothing"}: expected an address, 0x and 40 digits`);
    return text.trim();
  }

  /** Shows the result of a search: the objective over the amount, and the best. */
  async #show({ best, runs, complete }, payload) {
    const { words } = this.#app, decimals = Number(this.#decimals.value), ofToken = payload.objective.account !== undefined;
    const token = ofToken ? payload.objective.token ?? null : null;
    const shape = token ? await words.token(token) : { symbol: words.coin, decimals: 18 };
    const scale = payload.objective === "gasUsed" ? 0 : shape.decimals ?? 0, unit = payload.objective === "gasUsed" ? "gas" : shape.symbol;
    const rows = best.filter(({ values, objective }) => values && objective != null).map(({ values, objective, gasUsed, status }) => ({ amount: BigInt(values[0]), objective: BigInt(objective), gasUsed, status }));
    const [first] = rows;
    if (!first) {
      fill(this.#found, el("p", { class: "bad" }, `No variant has an objective: ${best[0]?.error?.message ?? (best[0]?.dropped ? "each broke a requirement" : "none ran")}.`));
      return;
    }
    const amount = (value) => trim(value, value < 1 ? 6 : 3), gain = (value) => `${trim(value, Math.abs(value) < 1 ? 6 : 3)} ${unit}`;
    const number = (value, digits) => Number(value) / 10 ** digits;
    const points = rows.map((row) => [number(row.amount, decimals), number(row.objective, scale)]).sort(([one], [other]) => one - other);
    fill(this.#found,
      el("p", {}, `The best of ${thousands(runs)} variants: `, el("b", {}, `${units(first.amount, decimals)} gives ${units(first.objective, scale)} ${unit}`), `, for ${thousands(Number(first.gasUsed))} gas`, !complete && ". The time was up before all had run", "."),
      el("div", { class: "charts" }, plot({ title: "Objective over amount", note: `In ${unit}. Each point is one variant of the bundle, on the same snapshot.`, points, x: amount, y: gain, tick: (value) => trim(value, Math.abs(value) < 1 ? 6 : 3), logarithmic: this.#how.value !== "linear" && points.every(([at]) => at > 0) })),
      el("details", {}, el("summary", {}, "The variants as a table"), table("Variants", ["Amount", "Objective", "Gas", "Call"], rows.slice(0, 50).map((row) => [units(row.amount, decimals), `${units(row.objective, scale)} ${unit}`, thousands(Number(row.gasUsed)), row.status === "0x1" ? "succeeds" : "fails"]))));
  }
}
