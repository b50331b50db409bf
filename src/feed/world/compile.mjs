// Compiles contracts/*.sol into artifacts.json, one line per contract.
//
//   npm ci
//   node compile.mjs            writes artifacts.json
//   node compile.mjs --check    fails when artifacts.json is not what the sources give
//
// The compiler's version is pinned in package.json. The code carries no hash of its metadata, so it
// follows from the sources and the settings below alone.

import { existsSync, readFileSync, readdirSync, writeFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import solc from "solc";

const here = new URL(".", import.meta.url);
const artifactsFile = new URL("artifacts.json", here);

/** The contracts that are written out, in this order. */
const wanted = ["Weth", "Token", "Factory", "Pair", "Router"];

const settings = {
  optimizer: { enabled: true, runs: 200 },
  evmVersion: "cancun",
  viaIR: false,
  metadata: { bytecodeHash: "none" },
  outputSelection: { "*": { "*": ["abi", "evm.bytecode.object"] } },
};

function readSources() {
  const folder = new URL("contracts/", here);
  const names = readdirSync(folder).filter((name) => name.endsWith(".sol")).sort();
  return Object.fromEntries(
    names.map((name) => [
      `contracts/${name}`,
      { content: readFileSync(new URL(name, folder), "utf8").replaceAll("\r\n", "\n") },
    ]),
  );
}

function checkCompiler() {
  const pinned = JSON.parse(readFileSync(new URL("package.json", here), "utf8")).devDependencies.solc;
  if (!solc.version().startsWith(`${pinned}+`)) {
    throw new Error(`the compiler is ${solc.version()}, package.json pins ${pinned}: run npm ci`);
  }
}

function compile() {
  checkCompiler();
  const output = JSON.parse(
    solc.compile(JSON.stringify({ language: "Solidity", sources: readSources(), settings })),
  );
  if (output.errors?.length) {
    throw new Error(output.errors.map((e) => e.formattedMessage).join("\n"));
  }
  const entries = wanted.map((name) => {
    const { abi, evm } = output.contracts[`contracts/${name}.sol`][name];
    return [name, { compiler: solc.version(), abi, creationCode: `0x${evm.bytecode.object}` }];
  });
  const lines = entries.map(([name, artifact]) => `${JSON.stringify(name)}: ${JSON.stringify(artifact)}`);
  return { text: `{\n${lines.join(",\n")}\n}\n`, entries };
}

const args = process.argv.slice(2);
if (args.some((arg) => arg !== "--check")) {
  console.error("usage: node compile.mjs [--check]");
  process.exit(2);
}

try {
  const { text, entries } = compile();
  if (args.includes("--check")) {
    const current = existsSync(artifactsFile) ? readFileSync(artifactsFile, "utf8") : "";
    if (current !== text) throw new Error("artifacts.json differs from what the sources give: run node compile.mjs");
    console.log("artifacts.json is up to date");
  } else {
    writeFileSync(artifactsFile, text);
    for (const [name, { creationCode }] of entries) {
      console.log(`${name.padEnd(8)} ${(creationCode.length - 2) / 2} bytes of creation code`);
    }
    console.log(`wrote ${fileURLToPath(artifactsFile)}`);
  }
} catch (error) {
  console.error(error.message);
  process.exitCode = 1;
}
