// cast against a presim devnet. PRESIM_URL is the node's URL, and PRESIM_SOCKET the path of its Unix socket,
// if it has one. Each claim prints one line; the first failure ends with exit code 1.
import { execFileSync } from 'node:child_process'
import { dirname, join } from 'node:path'
import { fileURLToPath } from 'node:url'

const url = `${process.env.PRESIM_URL ?? 'http://127.0.0.1:8545'}/standard`
/** The last account of the banner. */
const key = '0x2a871d0798f97d79848a013d4936a73bf4cc922c825d33c1cf7073dff6d409c6'
const account = '0xa0Ee7A142d267C1f36714E4a8F75612F20a79720'
/** Keeps the first word of its input in slot 0, and returns it where there is no input. */
const store = '0x7236600d575f545f5260205ff3005b5f355f55005f526013600df3'

const program = join(dirname(fileURLToPath(import.meta.url)), 'node_modules/.bin/cast')
const env = { ...process.env, ETH_RPC_URL: url }
const cast = (...args) => execFileSync(program, args, { env, encoding: 'utf8' }).trim()
const send = (...args) => JSON.parse(cast('send', '--json', '--private-key', key, ...args))
const word = (value) => `0x${value.toString(16).padStart(64, '0')}`

let claims = 0
function claim(what, actual, expected) {
  if (JSON.stringify(actual) !== JSON.stringify(expected)) {
    console.error(`FAILED: ${what}\n  actual:   ${JSON.stringify(actual)}\n  expected: ${JSON.stringify(expected)}`)
    process.exit(1)
  }
  claims += 1
  console.log(`ok: ${what}`)
}

claim('cast chain-id', cast('chain-id'), '31337')
const first = Number(cast('nonce', account))
const { contractAddress, status } = send('--create', store)
claim('cast send --create', status, '0x1')
for (let value = 1; value <= 8; value += 1) {
  const receipt = send(contractAddress, word(value))
  claim(`cast send ${value} of 8`, receipt.status, '0x1')
  claim('cast call reads at latest what it wrote', cast('call', contractAddress), word(value))
  claim('cast nonce counts it', Number(cast('nonce', account)), first + 1 + value)
  claim('cast block has it', JSON.parse(cast('block', receipt.blockNumber, '--json')).transactions.includes(receipt.transactionHash), true)
}
const socket = process.env.PRESIM_SOCKET
if (socket) {
  claim('cast call --rpc-url PATH', cast('call', contractAddress, '--rpc-url', socket), word(8))
  const receipt = send(contractAddress, word(9), '--rpc-url', socket)
  claim('cast send --rpc-url PATH', [receipt.status, cast('call', contractAddress)], ['0x1', word(9)])
}
console.log(`cast: all ${claims} claims hold`)
