// Transactions in words: swaps, transfers and calls, the names of contracts and tokens, and what changed hands.

import { decode, parse } from "./abi.js";
import { short, units } from "./dom.js";
import { errors, events, functions } from "./signatures.js";

const TRANSFER = "0xddf252ad1be2c89b69c2b068fc378daa952ba7f163c4a11628f55a4df523b3ef";
/** The most tokens that are remembered. The one that was asked for first goes first. */
const MOST_TOKENS = 500;
/** The most decimals of a token: 2 ** 256 has 78 digits. */
const MOST_DECIMALS = 77n;
const ZERO = `0x${"0".repeat(40)}`;

/** The functions that return an amount of the token that has them. */
const OF_AMOUNTS = new Set(["balanceOf", "totalSupply", "allowance"]);

const topics = Object.entries(events);
const topicsOf = (name) => new Set(topics.filter(([, text]) => text.startsWith(`${name}(`)).map(([topic]) => topic));
const SWAPS = topicsOf("Swap"), APPROVALS = topicsOf("Approval"), DEPOSITS = topicsOf("Deposit"), WITHDRAWALS = topicsOf("Withdrawal");

export class Words {
  #node;
  #names = new Map();
  #tokens = new Map();
  #learned;
  /** Resolves once the names are known. */
  learned = new Promise((resolve) => { this.#learned = resolve; });
  /** The symbol of the chain's own coin. */
  coin = "ETH";

  constructor(node) {
    this.#node = node;
  }

  /** Takes the contracts and the accounts that the node knows by name. */
  learn(contracts, accounts) {
    this.#names.clear();
    for (const { name, address } of contracts) this.#names.set(address.toLowerCase(), name);
    accounts.forEach((address, index) => this.#names.set(address.toLowerCase(), `account ${index}`));
    this.#learned();
  }

  /** Returns the name of an address, or its beginning and end. */
  name(address) {
    if (!address) return "a new contract";
    return this.#names.get(address.toLowerCase()) ?? short(address);
  }

  /** Returns the function that data calls, as `{name, params, values, results}`, or null if it is not known. */
  function(data) {
    const signature = functions[data.slice(0, 10)];
    return signature ? read(signature, (params) => decode(params, `0x${data.slice(10)}`)) : null;
  }

  /** Returns what a call of a known function returned, with amounts in units, or null if it cannot be read. */
  async returned(to, { name, params, values, results }, output) {
    let found;
    try {
      found = decode(results, output);
    } catch {
      return null;
    }
    if (!found.length) return null;
    const path = values[params.findIndex((param) => param.name === "path" && param.type === "address[]")];
    const texts = await Promise.all(found.map(async (value, at) => {
      const label = results[at].name && `${results[at].name} `;
      if (OF_AMOUNTS.has(name) && typeof value === "bigint") return `${label}${await this.#known(to, value)}`;
      // A router's amounts are those of the tokens on the way.
      if (Array.isArray(value) && value.length === path?.length && results[at].type === "uint256[]") {
        return `${label}[${(await Promise.all(value.map((one, index) => this.#known(path[index], one)))).join(", ")}]`;
      }
      return `${label}${this.value(value)}`;
    }));
    return texts.join(", ");
  }

  /** Returns an amount of a token, or the number itself if the contract is none. */
  async #known(token, value) {
    return value < 1n << 255n && (await this.token(token)).decimals !== null ? this.amount(token, value) : this.value(value);
  }

  /** Returns the event of a log in the same form. */
  event({ topics: [topic, ...indexed], data }) {
    const signature = events[topic];
    if (!signature) return null;
    return read(signature, (params) => {
      // ERC-721 has among the topics what ERC-20 has in the data.
      let more = indexed.length - params.filter((param) => param.indexed).length;
      const kinds = params.map((param) => ({ ...param, indexed: param.indexed || more-- > 0 }));
      const rest = decode(kinds.filter((param) => !param.indexed), data);
      return kinds.map((param) => {
        if (!param.indexed) return rest.shift();
        const topic = indexed.shift();
        // Of longer values there is only the hash.
        return /^(string|bytes|tuple)$|\]$/.test(param.type) ? topic : decode([param], topic)[0];
      });
    });
  }

  /** Returns a value of the ABI as a text. */
  value(value) {
    if (Array.isArray(value)) return `[${value.map((one) => this.value(one)).join(", ")}]`;
    if (typeof value === "bigint") return value === (1n << 256n) - 1n ? "unlimited" : value.toString();
    if (typeof value !== "string") return String(value);
    if (/^0x[0-9a-f]{40}$/.test(value)) return this.name(value);
    return value.length > 74 ? `${value.slice(0, 40)}… (${value.startsWith("0x") ? `${value.length / 2 - 1} bytes` : `${value.length} characters`})` : value;
  }

  /** Returns a call or an event in one line. */
  line({ name, params, values }) {
    return `${name}(${values.map((value, index) => `${params[index].name ? `${params[index].name} ` : ""}${this.value(value)}`).join(", ")})`;
  }

  /** Returns a token's `{symbol, decimals}`, once it is known. Asks the node about a token only once. */
  async token(address) {
    let asked = this.#tokens.get(address);
    if (!asked) {
      const call = (data) => this.#node.call("eth_call", [{ to: address, data }, "pending"]);
      asked = Promise.all([call("0x95d89b41"), call("0x313ce567")]).then(
        ([symbol, decimals]) => {
          const digits = uint(decimals);
          return { symbol: text(symbol) || short(address), decimals: digits === null ? null : Number(digits < MOST_DECIMALS ? digits : MOST_DECIMALS) };
        },
        // A contract that does not tell. Where there was no answer, it is asked again.
        (error) => {
          if (error.code === undefined) this.#tokens.delete(address);
          return { symbol: short(address), decimals: null };
        },
      );
      this.#tokens.set(address, asked);
      if (this.#tokens.size > MOST_TOKENS) this.#tokens.delete(this.#tokens.keys().next().value);
    }
    return asked;
  }

  /** Returns an amount of a token in words. `token` is null for the chain's own coin. */
  async amount(token, value, id) {
    if (token === null) return `${units(value, 18)} ${this.coin}`;
    const { symbol, decimals } = await this.token(token);
    if (id !== undefined) return `${value < 0n ? "−" : ""}${symbol} #${id}`;
    return `${decimals === null ? BigInt(value).toLocaleString("en").replace("-", "−") : units(value, decimals)} ${symbol}`;
  }

  /** Describes a transaction with the fields and logs of its receipt, in sentences without a subject. */
  async describe(tx) {
    const words = [];
    const value = BigInt(tx.value ?? 0);
    if (tx.status === "0x0") words.push("fails");
    const moved = transfers(tx.logs ?? []);
    const pools = new Set((tx.logs ?? []).filter((log) => SWAPS.has(log.topics[0])).map((log) => log.address));
    let open = null;
    for (const pool of pools) {
      const into = moved.filter(({ to, id }) => to === pool && id === undefined), out = moved.filter(({ from, id }) => from === pool && id === undefined);
      if (!into.length || !out.length) continue;
      const [paid, got] = [await this.#sum(into), await this.#sum(out)];
      // What one pool gives and the next takes is one swap.
      if (open && open.got === paid) Object.assign(open, { got, pools: open.pools + 1 });
      else words.push(open = { paid, got, pools: 1 });
    }
    const others = moved.filter(({ from, to }) => !pools.has(from) && !pools.has(to));
    for (const one of others.slice(0, 3)) {
      const amount = await this.amount(one.token, one.value, one.id);
      if (one.from === ZERO) words.push(`mints ${amount} to ${this.name(one.to)}`);
      else if (one.to === ZERO) words.push(`burns ${amount}`);
      else words.push(`sends ${amount} ${one.from === tx.from ? "" : `of ${this.name(one.from)} `}to ${this.name(one.to)}`);
    }
    if (others.length > 3) words.push(`and ${others.length - 3} transfers more`);
    for (const log of tx.logs ?? []) {
      const [topic] = log.topics, wrapped = wrapping(log), most = uint(log.data);
      if (wrapped) words.push(`${wrapped.isIn ? "wraps" : "unwraps"} ${await this.amount(null, wrapped.value)}`);
      if (APPROVALS.has(topic) && log.topics.length === 3 && most !== null && !moved.length) {
        words.push(`lets ${this.name(address(log.topics[2]))} take ${most > 1n << 255n ? `unlimited ${(await this.token(log.address)).symbol}` : await this.amount(log.address, most)}`);
      }
      if (words.length > 8) break;
    }
    if (value > 0n && !words.some((one) => one.paid || String(one).startsWith("wraps"))) words.push(`sends ${await this.amount(null, value)} to ${this.name(tx.to)}`);
    if (!tx.to) words.push(`creates ${this.name(tx.contractAddress)}`);
    if (words.length === 0 || (words.length === 1 && words[0] === "fails")) {
      const input = tx.input ?? "0x", known = this.function(input);
      if (known) words.push(`calls ${known.name} of ${this.name(tx.to)}`);
      else words.push(input === "0x" ? `calls ${this.name(tx.to)} without data` : `calls ${input.slice(0, 10)} of ${this.name(tx.to)}`);
    }
    return words.map((one) => (one.paid ? `swaps ${one.paid} for ${one.got}${one.pools > 1 ? ` over ${one.pools} pools` : ""}` : one)).join(", ");
  }

  async #sum(moved) {
    const byToken = new Map();
    for (const { token, value } of moved) byToken.set(token, (byToken.get(token) ?? 0n) + value);
    return (await Promise.all([...byToken].map(([token, value]) => this.amount(token, value)))).join(" and ");
  }
}

/** Returns the net changes of assets, by account: `[{account, changes: [{token, id, value}]}]`. */
export function netChanges(logs, ether) {
  const byAccount = new Map();
  const add = (account, token, id, value) => {
    if (!account || account === ZERO && token !== null) return;
    const changes = byAccount.get(account) ?? new Map(), key = `${token} ${id ?? ""}`;
    const known = changes.get(key) ?? { token, id, value: 0n };
    known.value += value;
    byAccount.set(account, changes.set(key, known));
  };
  for (const { token, from, to, value, id } of transfers(logs)) {
    add(from, token, id, -value);
    add(to, token, id, value);
  }
  // The wrapper of the coin has no transfer for what it takes and gives.
  for (const log of logs) {
    const wrapped = wrapping(log);
    if (wrapped) add(wrapped.account, log.address, undefined, wrapped.isIn ? wrapped.value : -wrapped.value);
  }
  for (const { from, to, value } of ether) {
    add(from, null, undefined, -value);
    add(to, null, undefined, value);
  }
  return [...byAccount].map(([account, changes]) => ({ account, changes: [...changes.values()].filter(({ value }) => value !== 0n) })).filter(({ changes }) => changes.length);
}

/** Returns the transfers of ERC-20 and ERC-721 among logs. A log whose data does not fit is none. */
function transfers(logs) {
  return logs.filter(({ topics: [topic], topics }) => topic === TRANSFER && topics.length >= 3).map((log) => {
    const [, from, to, id] = log.topics;
    const ends = { token: log.address.toLowerCase(), from: address(from), to: address(to) };
    return id ? { ...ends, value: 1n, id: BigInt(id) } : { ...ends, value: uint(log.data) };
  }).filter(({ value }) => value !== null);
}

/** Returns whether a contract unwrapped the chain's coin, which it may have sent to somebody: no log tells that. */
export const unwraps = (tx) => (tx.logs ?? []).some((log) => wrapping(log)?.isIn === false && address(log.topics[1]) !== tx.from);

/** Returns what a log of the coin's wrapper gave to an account (`isIn`) or took; null for another log. */
function wrapping({ topics, data }) {
  const isIn = DEPOSITS.has(topics[0]), value = (isIn || WITHDRAWALS.has(topics[0])) && topics.length === 2 ? uint(data) : null;
  return value === null ? null : { account: address(topics[1]), value, isIn };
}

/** Returns the first number of data; null if the data is shorter, because any contract may emit any log. */
const uint = (data) => (data.length >= 66 ? BigInt(data.slice(0, 66)) : null);

const address = (topic) => `0x${topic.slice(26)}`;

function read(signature, values) {
  const parsed = parse(signature);
  try {
    return { ...parsed, values: values(parsed.params) };
  } catch {
    // The selector is a short hash, and may be that of another function.
    return null;
  }
}

/** Reads a symbol: a string, or 32 bytes with zeros behind. Only what can be printed is left, and not much of it. */
function text(data) {
  let text;
  try {
    [text] = decode(parse("f(string)").params, data);
  } catch {
    text = new TextDecoder().decode(Uint8Array.from(data.slice(2, 66).match(/../g) ?? [], (two) => parseInt(two, 16)));
  }
  return text.replace(/[^\x20-\x7e]/g, "").slice(0, 20);
}

/** Explains the data of a revert. */
export function revertText(data) {
  const signature = data && errors[data.slice(0, 10)];
  const known = signature && read(signature, (params) => decode(params, `0x${data.slice(10)}`));
  if (known?.name === "Error") return known.values[0];
  if (known?.name === "Panic") return `panic 0x${known.values[0].toString(16)}`;
  if (known) return `${known.name}(${known.values.join(", ")})`;
  return data && data !== "0x" ? short(data) : "";
}
