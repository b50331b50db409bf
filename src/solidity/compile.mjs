// Compiles the contracts and writes what Rust reads of them: one file for each entry of `targets`.
//
//   npm ci
//   node compile.mjs            writes the files
//   node compile.mjs --check    fails when a file is not what the sources give
//
// The compiler's version is pinned in package.json. The code carries no hash of its metadata, so it
// follows from the sources and the settings below alone.

import { existsSync, readFileSync, readdirSync, writeFileSync } from "node:fs";
import solc from "solc";

const root = new URL("../../", import.meta.url);

/**
 * What is compiled: the sources of `folder` (names in it that end in .sol, under `sources`) as one program, and what is kept
 * of it as the text of `file`.
 */
const targets = [
  {
    folder: "src/source/devnet/world/",
    sources: "contracts/",
    file: "artifacts.json",
    /** One line per contract, in this order. */
    text: (contract) => {
      const lines = ["Weth", "Token", "Factory", "Pair", "Router", "Load"].map((name) => {
        const { abi, bytecode } = contract(name);
        return `${JSON.stringify(name)}: ${JSON.stringify({ compiler: solc.version(), abi, creationCode: bytecode })}`;
      });
      return `{\n${lines.join(",\n")}\n}\n`;
    },
  },
  {
    folder: "src/wallet/executor/",
    sources: "",
    file: "BatchExecutor.json",
    /** The form of an artifact that Solidity's tools share, which `sol!` reads. */
    text: (contract) => `${JSON.stringify({ compiler: solc.version(), ...contract("BatchExecutor") })}\n`,
  },
];

const settings = {
  optimizer: { enabled: true, runs: 200 },
  evmVersion: "cancun",
  viaIR: false,
  metadata: { bytecodeHash: "none" },
  outputSelection: { "*": { "*": ["abi", "evm.bytecode.object", "evm.deployedBytecode.object"] } },
};

function readSources({ folder, sources }) {
  const place = new URL(folder + sources, root);
  const names = readdirSync(place).filter((name) => name.endsWith(".sol")).sort();
  return Object.fromEntries(
    names.map((name) => [
      sources + name,
      { content: readFileSync(new URL(name, place), "utf8").replaceAll("\r\n", "\n") },
    ]),
  );
}

function checkCompiler() {
  const { devDependencies } = JSON.parse(readFileSync(new URL("package.json", import.meta.url), "utf8"));
  if (!solc.version().startsWith(`${devDependencies.solc}+`)) {
    throw new Error(`the compiler is ${solc.version()}, package.json pins ${devDependencies.solc}: run npm ci`);
  }
}

/** The text of the target's file. */
function compile(target) {
  const output = JSON.parse(
    solc.compile(JSON.stringify({ language: "Solidity", sources: readSources(target), settings })),
  );
  if (output.errors?.length) {
    throw new Error(output.errors.map((error) => error.formattedMessage).join("\n"));
  }
  return target.text((name) => {
    const { abi, evm } = output.contracts[`${target.sources}${name}.sol`][name];
    return { abi, bytecode: `0x${evm.bytecode.object}`, deployedBytecode: `0x${evm.deployedBytecode.object}` };
  });
}

const args = process.argv.slice(2);
if (args.some((arg) => arg !== "--check")) {
  console.error("usage: node compile.mjs [--check]");
  process.exit(2);
}

try {
  checkCompiler();
  for (const target of targets) {
    const name = target.folder + target.file;
    const file = new URL(name, root);
    const text = compile(target);
    if (args.includes("--check")) {
      const current = existsSync(file) ? readFileSync(file, "utf8") : "";
      if (current !== text) throw new Error(`${name} differs from what the sources give: run node compile.mjs`);
      console.log(`${name} is up to date`);
    } else {
      writeFileSync(file, text);
      console.log(`wrote ${name}`);
    }
  }
} catch (error) {
  console.error(error.message);
  process.exitCode = 1;
}
