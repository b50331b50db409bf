// Copies what is tested of a checkout of hardhat: node prepare.mjs CHECKOUT WORK. The tests connect to the node of node.mjs where they
// would start a network inside the process. Those of the plugin itself, which need no network, are left out.
import { cpSync, mkdirSync, readFileSync, readdirSync, symlinkSync, writeFileSync } from 'node:fs'
import { dirname, join, relative } from 'node:path'
import { fileURLToPath } from 'node:url'

const [checkout, work] = process.argv.slice(2)
const here = dirname(fileURLToPath(import.meta.url))
const helpers = join(checkout, 'packages/hardhat-network-helpers')
mkdirSync(work, { recursive: true })
cpSync(join(helpers, 'src'), join(work, 'src'), { recursive: true })
for (const part of ['helpers', 'network-helpers', 'time']) cpSync(join(helpers, 'test', part), join(work, 'test', part), { recursive: true })
cpSync(join(checkout, 'packages/hardhat-test-utils/src'), join(work, 'utils'), { recursive: true })
cpSync(join(here, 'node.mjs'), join(work, 'node.mjs'))
symlinkSync(join(here, 'node_modules'), join(work, 'node_modules'))
writeFileSync(join(work, 'package.json'), '{"type": "module"}')
writeFileSync(join(work, 'hardhat.config.ts'), 'export default {}')

const edit = (path, change) => writeFileSync(path, change(readFileSync(path, 'utf8')))
for (const name of readdirSync(join(work, 'test'), { recursive: true }).filter((name) => name.endsWith('.ts'))) {
  const path = join(work, 'test', name)
  const utils = relative(dirname(path), join(work, 'utils/index.js'))
  edit(path, (text) => text.replaceAll('"@nomicfoundation/hardhat-test-utils"', `"${utils}"`))
}
edit(join(work, 'test/helpers/helpers.ts'), (text) => {
  const network = '{ type: "edr-simulated", ...config }'
  if (!text.includes(network)) throw new Error(`test/helpers/helpers.ts has no ${network}`)
  return `import { start } from "../../node.mjs";\n${text.replace(network, '{ type: "http", url: await start() }')}`
})
