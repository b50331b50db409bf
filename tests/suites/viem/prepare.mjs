// Copies what is tested of a checkout of viem, and compiles its contracts: node prepare.mjs CHECKOUT WORK. Contracts whose libraries are
// not in the checkout are left out; tests that need them fail on every node.
import { cpSync, mkdirSync, readFileSync, readdirSync, symlinkSync, writeFileSync } from 'node:fs'
import { dirname, join, relative } from 'node:path'
import { fileURLToPath } from 'node:url'
import solc from 'solc'

const [checkout, work] = process.argv.slice(2)
const here = dirname(fileURLToPath(import.meta.url))
mkdirSync(work, { recursive: true })
// Without the settings of the compiler, which name files that are not copied.
const filter = (path) => !path.endsWith('tsconfig.json')
for (const part of ['src', 'test', 'contracts']) cpSync(join(checkout, part), join(work, part), { recursive: true, filter })
for (const file of ['vitest.config.mjs', 'node.mjs', 'fresh.mjs']) cpSync(join(here, file), join(work, file))
symlinkSync(join(here, 'node_modules'), join(work, 'node_modules'))
writeFileSync(join(work, 'package.json'), '{"type": "module"}')
writeFileSync(join(work, 'tsconfig.json'), '{"compilerOptions": {"target": "ES2022", "verbatimModuleSyntax": true}}')

const folder = join(work, 'contracts/src')
const files = readdirSync(folder, { recursive: true }).filter((name) => name.endsWith('.sol'))
let generated = ''
for (const name of files) {
  const settings = { evmVersion: 'prague', outputSelection: { '*': { '*': ['abi', 'evm.bytecode.object'] } } }
  const sources = { [name]: { content: readFileSync(join(folder, name), 'utf8') } }
  const output = JSON.parse(solc.compile(JSON.stringify({ language: 'Solidity', sources, settings })))
  for (const [contract, { abi, evm }] of Object.entries(output.contracts?.[name] ?? {})) {
    const object = { abi, bytecode: { object: `0x${evm.bytecode.object}` } }
    generated += `export const ${contract} = ${JSON.stringify(object)} as const\n`
  }
  if (!output.contracts?.[name]) console.error(`left out: ${relative(work, join(folder, name))}`)
}
writeFileSync(join(work, 'contracts/generated.ts'), generated)
