// The view of the wallet: what waits for an approver, to read, and the addresses by which clients connect.

import { age, copier, el, fill, short, table, units } from "./dom.js";

const POLL = 2_000;
/** An id that a shell takes as one word, and no command as a flag. A batch with another id is named by its digest. */
const SHELL_WORD = /^[A-Za-z0-9._][A-Za-z0-9._-]*$/;

export class WalletView {
  #app;
  #waiting = el("div", { "aria-live": "polite" });
  #strings = el("div", {});
  #polled = -Infinity;
  #text = null;

  constructor(section, app) {
    this.#app = app;
    section.append(el("h3", {}, "Waits for approval"), this.#waiting, el("h3", {}, "Connect"), this.#strings);
  }

  show() {
    this.#polled = -Infinity;
  }

  meet() {
    const { node, model } = this.#app, { http, ws } = node.urls, id = Number(model.status.chainId);
    const lines = [
      ["HTTP, as geth speaks (viem, ethers, alloy, web3.py)", `${http}/standard`],
      ["WebSocket, as geth speaks", `${ws}/standard`],
      ["HTTP, presim's own dialect", `${http}/`],
      ["WebSocket, presim's own dialect", `${ws}/`],
      ["Chain id", String(id)],
      ["For a shell with foundry", `export ETH_RPC_URL=${http}/standard`],
      ["For a page's wallet (EIP-3085)", JSON.stringify({ chainId: model.status.chainId, chainName: `presim ${id}`, rpcUrls: [`${http}/standard`], nativeCurrency: { name: "Ether", symbol: "ETH", decimals: 18 } })],
      ["viem", `createPublicClient({ transport: webSocket('${ws}/standard') })`],
      ["alloy", `ProviderBuilder::new().connect("${ws}/standard").await?`],
    ];
    if (node.token) lines.push(["Header of each request", "authorization: Bearer TOKEN"]);
    fill(this.#strings, table("Connection strings", ["For", "text:Text", "text:Copy"], lines.map(([what, text]) => [what, el("code", {}, text), copier("Copy", text)])),
      model.accounts.length > 0 && [el("h3", {}, "Accounts that the node signs for"), el("ul", { class: "plain" }, model.accounts.map((account) => el("li", {}, el("code", {}, account), " ", copier("Copy", account))))]);
  }

  async tick(now) {
    const { node } = this.#app;
    if (node.state !== "open" || now - this.#polled < POLL) return;
    this.#polled = now;
    try {
      const { batches, more } = await node.call("presim_approvals");
      // The seconds that pass are no news to a screen reader.
      const text = JSON.stringify([batches.map(({ id, digest }) => [id, digest]), more]);
      if (text === this.#text) return;
      this.#text = text;
      fill(this.#waiting, batches.length ? batches.map((one) => this.#request(one)) : el("p", { class: "soft" }, "Nothing waits. With --wallet-approval ask, batches and messages wait here to be read; presim wallet watch decides on them."),
        more > 0 && el("p", { class: "soft" }, `${more} more are shown when these are decided.`));
    } catch (error) {
      this.#text = null;
      fill(this.#waiting, el("p", { class: "bad" }, error.message));
    }
  }

  #request(one) {
    const { words } = this.#app;
    const facts = [
      ["Account", [words.name(one.from), " ", el("code", {}, one.from)]],
      ["Asked by", asker(one)],
      ["Rejected in", age(one.leftMs)],
      ["Digest", el("code", {}, one.digest)],
      ...this.#act(one),
      ["To approve", el("code", {}, `presim wallet approve ${SHELL_WORD.test(one.id) ? one.id : one.digest} ${one.digest} --data-dir DIR`)],
    ];
    return el("article", { class: "box" }, el("h4", {}, `${{ batch: "Batch", message: "Message", typedData: "Typed data", transaction: "Transaction" }[one.kind] ?? one.kind} `, el("code", {}, one.id.length > 72 ? short(one.id) : one.id)),
      el("dl", {}, facts.map(([name, value]) => [el("dt", {}, name), el("dd", {}, value)])));
  }

  #act(one) {
    const lines = (list) => list.map((line) => el("div", {}, line));
    switch (one.kind) {
      case "batch":
        return [
          ["Mode", one.atomic ? "atomic: all calls or none" : "one after another: some may fail"],
          one.upgrade && ["Upgrade", ["the account is to be delegated to the code of ", el("code", {}, one.upgrade)]],
          ["Signs", `${one.transactions} transaction${one.transactions === 1 ? "" : "s"}, for at most ${units(one.mostFees, 18)} ether of gas fees${one.dataFees ? `, and about ${units(one.dataFees, 18)} more, set by the chain for data on L1` : ""}`],
          ["Calls", el("ol", {}, one.calls.map((call) => el("li", {},
            call.to ? ["to ", el("code", {}, call.to)] : "creates a contract", BigInt(call.value) > 0n && ` with ${units(call.value, 18)} ether`,
            call.words.length ? lines(call.words) : call.data !== "0x" && el("div", {}, el("code", {}, call.data.length > 200 ? `${call.data.slice(0, 200)}… (${call.data.length / 2 - 1} bytes)` : call.data)),
            el("div", { class: /^fails/.test(call.outcome) ? "bad" : "soft" }, call.outcome))))],
          one.assets.length > 0 && ["Assets", lines(one.assets)],
        ].filter(Boolean);
      case "message":
        return [["Message", el("pre", {}, messageText(one.message))], ["Signs", el("code", {}, one.hash)]];
      case "transaction":
        return [
          ["Fields", lines(one.fields.map(({ name, value }) => `${name}: ${value}`))],
          one.words.length > 0 && ["Means", lines(one.words)],
          ["Signs", [el("code", {}, one.hash), ", which whoever asks may send at any time"]],
        ].filter(Boolean);
      default:
        return [
          ["Type", one.primaryType],
          ["Domain", lines(one.domain.map(({ name, value }) => `${name}: ${value}`))],
          ["Fields", lines(one.fields.map(({ name, value }) => `${name}: ${value}`))],
          one.words.length > 0 && ["Means", lines(one.words)],
          ["Signs", el("code", {}, one.hash)],
        ].filter(Boolean);
    }
  }
}

/** Returns the client of a request: the name of its token, and the origin of the page that sent it. */
function asker({ client, page }) {
  const token = client && `the token ${client}`;
  return (page && token ? `${page}, with ${token}` : page ?? token) ?? "a program without a name";
}

/** Returns a message as a text, or as hex if it is no text. */
function messageText(data) {
  const bytes = Uint8Array.from(data.slice(2).match(/../g) ?? [], (two) => parseInt(two, 16));
  try {
    return new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(bytes);
  } catch {
    return data;
  }
}
