// The contract ABI, as far as calls and logs need it: data into values by a signature, and values into data.
// https://docs.soliditylang.org/en/latest/abi-spec.html

/** Parses `name(type name,…) returns (type name,…)` into its name, its parameters and its results, each with `type`, `name`, `indexed` and `parts`. */
export function parse(signature) {
  const open = signature.indexOf("(");
  const name = signature.slice(0, open).replace(/^function\s+/, "").trim();
  if (open < 1 || !/^[A-Za-z_$][\w$]*$/.test(name)) throw new Error(`${signature}: expected a function like transfer(address to, uint256 value)`);
  const end = closing(signature, open);
  const results = /^\s*returns\s*\(/.exec(signature.slice(end + 1)), from = end + 1 + (results?.[0].length ?? 0);
  return { name, params: list(signature.slice(open + 1, end)), results: results ? list(signature.slice(from, closing(signature, from - 1))) : [] };
}

/** Returns the signature that is hashed: the types alone. */
export const plain = ({ name, params }) => `${name}(${params.map(typeText).join(",")})`;

const typeText = (param) => (param.parts ? `(${param.parts.map(typeText).join(",")})${param.type.slice(5)}` : param.type);

function closing(text, open) {
  let depth = 0;
  for (let at = open; at < text.length; at++) {
    if (text[at] === "(") depth++;
    if (text[at] === ")" && --depth === 0) return at;
  }
  throw new Error(`${text}: a bracket is not closed`);
}

function list(text) {
  const params = [];
  let depth = 0, from = 0;
  for (let at = 0; at <= text.length; at++) {
    if (text[at] === "(") depth++;
    if (text[at] === ")") depth--;
    if (at === text.length || (text[at] === "," && depth === 0)) {
      const part = text.slice(from, at).trim();
      if (part) params.push(param(part));
      from = at + 1;
    }
  }
  return params;
}

function param(text) {
  let parts, type, rest;
  if (text.startsWith("(") || text.startsWith("tuple(")) {
    const open = text.indexOf("("), end = closing(text, open);
    parts = list(text.slice(open + 1, end));
    const [suffix, ...words] = text.slice(end + 1).split(/\s+/);
    [type, rest] = [`tuple${suffix}`, words];
  } else {
    [type, ...rest] = text.split(/\s+/);
    type = type.replace(/^(u?int)(?=$|\[)/, "$1256");
    if (!/^(address|bool|string|bytes\d*|u?int\d+)(\[\d*\])*$/.test(type)) throw new Error(`${type}: no type of the ABI`);
  }
  const indexed = rest.includes("indexed");
  return { type, parts, indexed, name: rest.filter((word) => !["indexed", "memory", "calldata"].includes(word))[0] ?? "" };
}

/** Returns the type of an array's items and their number (null if it varies), or null if the type is no array. */
function items(one) {
  const match = /^(.*)\[(\d*)\]$/.exec(one.type);
  return match && { item: { ...one, type: match[1] }, count: match[2] === "" ? null : Number(match[2]) };
}

function isDynamic(one) {
  const array = items(one);
  if (array) return array.count === null || isDynamic(array.item);
  if (one.parts) return one.parts.some(isDynamic);
  return one.type === "bytes" || one.type === "string";
}

function size(one) {
  const array = items(one);
  if (isDynamic(one)) return 32;
  if (array) return array.count * size(array.item);
  return one.parts ? one.parts.reduce((sum, part) => sum + size(part), 0) : 32;
}

const LONGEST = 1_000;

/** Decodes hex data by parameters. Throws if the data is of another form. */
export function decode(params, data) {
  const bytes = data.replace(/^0x/, "");
  return sequence(params, bytes, 0);
}

function sequence(params, bytes, base) {
  let head = base;
  return params.map((one) => {
    const at = isDynamic(one) ? base + number(bytes, head) : head;
    head += size(one);
    return value(one, bytes, at);
  });
}

function word(bytes, at) {
  const text = bytes.slice(2 * at, 2 * at + 64);
  if (text.length < 64) throw new Error("the data is too short");
  return text;
}

function number(bytes, at) {
  const big = BigInt(`0x${word(bytes, at)}`);
  if (big > BigInt(bytes.length)) throw new Error("an offset points beyond the data");
  return Number(big);
}

function value(one, bytes, at) {
  const array = items(one);
  if (array) {
    const count = array.count ?? number(bytes, at);
    if (count > LONGEST) throw new Error("the array is too long");
    return sequence(Array(count).fill(array.item), bytes, array.count === null ? at + 32 : at);
  }
  if (one.parts) return sequence(one.parts, bytes, at);
  if (one.type === "bytes" || one.type === "string") {
    const length = number(bytes, at), hex = bytes.slice(2 * (at + 32), 2 * (at + 32 + length));
    if (hex.length < 2 * length) throw new Error("the data is too short");
    return one.type === "bytes" ? `0x${hex}` : new TextDecoder().decode(Uint8Array.from(hex.match(/../g) ?? [], (two) => parseInt(two, 16)));
  }
  const text = word(bytes, at);
  if (one.type === "address") return `0x${text.slice(24)}`;
  if (one.type === "bool") return BigInt(`0x${text}`) !== 0n;
  if (one.type.startsWith("bytes")) return `0x${text.slice(0, 2 * Number(one.type.slice(5)))}`;
  const big = BigInt(`0x${text}`);
  return one.type.startsWith("int") ? BigInt.asIntN(256, big) : big;
}

/** Encodes values by parameters, without a selector. Texts are values as a person writes them, arrays as JSON. */
export function encode(params, values) {
  const heads = [], tails = [];
  let offset = params.reduce((sum, one) => sum + size(one), 0);
  params.forEach((one, index) => {
    const text = single(one, values[index]);
    if (isDynamic(one)) {
      heads.push(padded(BigInt(offset)));
      tails.push(text);
      offset += text.length / 2;
    } else heads.push(text);
  });
  return heads.concat(tails).join("");
}

const padded = (big) => BigInt.asUintN(256, big).toString(16).padStart(64, "0");

function single(one, given) {
  const array = items(one);
  const wrong = (expected) => new Error(`${one.name || one.type}: ${given === "" || given == null ? "nothing" : String(given)}: expected ${expected}`);
  if (array || one.parts) {
    let values = given;
    if (typeof given === "string") {
      // Addresses and large numbers need no quotes.
      const quoted = given.trim().replace(/(?<!["\w])(0x[0-9a-fA-F]+|-?\d{16,})(?!["\w])/g, '"$1"');
      try { values = JSON.parse(quoted); } catch { throw wrong(`a list like [1, 2] for ${one.type}`); }
    }
    if (!Array.isArray(values)) throw wrong("a list");
    if (!array) return encode(one.parts, values);
    if (array.count !== null && array.count !== values.length) throw wrong(`${array.count} items`);
    return (array.count === null ? padded(BigInt(values.length)) : "") + encode(values.map(() => array.item), values);
  }
  const text = String(given ?? "").trim();
  if (one.type === "string" || one.type === "bytes") {
    if (one.type === "bytes" && !/^0x([0-9a-fA-F]{2})*$/.test(text)) throw wrong("bytes in hex");
    const hex = one.type === "bytes" ? text.slice(2) : [...new TextEncoder().encode(String(given ?? ""))].map((byte) => byte.toString(16).padStart(2, "0")).join("");
    return padded(BigInt(hex.length / 2)) + hex.padEnd(64 * Math.ceil(hex.length / 64), "0");
  }
  if (one.type === "address") {
    if (!/^0x[0-9a-fA-F]{40}$/.test(text)) throw wrong("an address");
    return text.slice(2).toLowerCase().padStart(64, "0");
  }
  if (one.type === "bool") {
    if (!/^(true|false|0|1)$/.test(text)) throw wrong("true or false");
    return padded(/^(true|1)$/.test(text) ? 1n : 0n);
  }
  if (one.type.startsWith("bytes")) {
    const length = 2 * Number(one.type.slice(5));
    if (!/^0x[0-9a-fA-F]*$/.test(text) || text.length - 2 !== length) throw wrong(`${length / 2} bytes in hex`);
    return text.slice(2).padEnd(64, "0");
  }
  if (!/^(-?\d+|0x[0-9a-fA-F]+)$/.test(text)) throw wrong("a whole number");
  const big = BigInt(text), bits = Number(one.type.replace(/^u?int/, ""));
  const isFit = one.type.startsWith("u") ? big >= 0n && big < 1n << BigInt(bits) : big === BigInt.asIntN(bits, big);
  if (!isFit) throw wrong(`a number that ${one.type} holds`);
  return padded(big);
}
