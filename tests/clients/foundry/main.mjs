// cast and forge against a presim node: node main.mjs NAME [URL]. Without URL, PRESIM_URL is the node's, and its standard dialect is
// asked. PRESIM_SOCKET is the path of its Unix socket, if it has one. Each claim prints one line; the first failure ends with exit code 1.
import { execFileSync, spawn } from 'node:child_process'
import { cpSync, mkdtempSync, readFileSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { dirname, join } from 'node:path'
import { fileURLToPath } from 'node:url'

const name = process.argv[2] ?? 'devnet'
const url = process.argv[3] ?? `${process.env.PRESIM_URL ?? 'http://127.0.0.1:8545'}/standard`
/** The last account of the banner. */
const key = '0x2a871d0798f97d79848a013d4936a73bf4cc922c825d33c1cf7073dff6d409c6'
const account = '0xa0Ee7A142d267C1f36714E4a8F75612F20a79720'
/** Keeps the first word of its input in slot 0, and returns it where there is no input. */
const store = '0x7236600d575f545f5260205ff3005b5f355f55005f526013600df3'

const here = dirname(fileURLToPath(import.meta.url))
// forge writes beside its sources, so it has a copy of them for each run. Its compiler is found from there.
const work = mkdtempSync(join(tmpdir(), 'presim-forge-'))
const project = join(work, 'project')
cpSync(join(here, 'project'), project, { recursive: true })
process.on('exit', () => rmSync(work, { recursive: true, force: true }))
const env = { ...process.env, ETH_RPC_URL: url, FOUNDRY_SOLC: join(here, 'solc.cjs'), FOUNDRY_DISABLE_NIGHTLY_WARNING: '1' }
const run = (program, args, more = {}) => {
  try {
    const options = { env: { ...env, ...more }, cwd: project, encoding: 'utf8', stdio: ['ignore', 'pipe', 'pipe'] }
    return execFileSync(join(here, 'node_modules/.bin', program), args, options).trim()
  } catch (error) {
    console.error(`FAILED: ${program} ${args.join(' ')}\n${error.stdout}${error.stderr}`)
    process.exit(1)
  }
}
const cast = (...args) => run('cast', args)
const forge = (...args) => run('forge', args)
const send = (...args) => JSON.parse(cast('send', '--json', '--private-key', key, ...args))
const rpc = (method, ...params) => JSON.parse(cast('rpc', method, ...params.map((param) => JSON.stringify(param))))
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
let last
for (let value = 1; value <= 4; value += 1) {
  last = send(contractAddress, word(value))
  claim(`cast send ${value} of 4`, last.status, '0x1')
  claim('cast call reads at latest what it wrote', cast('call', contractAddress), word(value))
  claim('cast nonce counts it', Number(cast('nonce', account)), first + 1 + value)
  claim('cast block has it', JSON.parse(cast('block', last.blockNumber, '--json')).transactions.includes(last.transactionHash), true)
}
claim('cast storage', cast('storage', contractAddress, '0'), word(4))
claim('cast estimate', Number(cast('estimate', '--from', account, contractAddress, word(5))) > 21_000, true)
const list = JSON.parse(cast('access-list', '--json', contractAddress, word(5)))
claim('cast access-list', list.accessList?.[0]?.storageKeys ?? list[0]?.storageKeys, [word(0)])
claim('cast receipt', JSON.parse(cast('receipt', last.transactionHash, '--json')).status, '0x1')
claim('cast run shows the call', cast('run', last.transactionHash).toLowerCase().includes(contractAddress.slice(2, 10).toLowerCase()), true)
const socket = process.env.PRESIM_SOCKET
if (socket && !process.argv[3]) {
  claim('cast call --rpc-url PATH', cast('call', contractAddress, '--rpc-url', socket), word(4))
  const receipt = send(contractAddress, word(9), '--rpc-url', socket)
  claim('cast send --rpc-url PATH', [receipt.status, cast('call', contractAddress)], ['0x1', word(9)])
}

const created = JSON.parse(forge('create', 'src/Counter.sol:Counter', '--private-key', key, '--broadcast', '--json', '--constructor-args', '7'))
claim('forge create', cast('call', created.deployedTo, 'number()(uint256)'), '7')
const set = send(created.deployedTo, 'set(uint256)', '8')
const logs = JSON.parse(cast('logs', '--json', '--from-block', set.blockNumber, '--to-block', set.blockNumber, '--address', created.deployedTo))
claim('cast logs', logs.map((log) => log.data), [word(8)])
// The proof is of a block that the node proves: of a fork, that on which it began.
const at = name === 'fork' ? String(JSON.parse(cast('rpc', 'anvil_nodeInfo')).forkConfig.forkBlockNumber) : set.blockNumber
const proof = JSON.parse(cast('proof', account, '--block', at))
claim('cast proof', proof.address.toLowerCase(), account.toLowerCase())

const script = ['script', 'script/Deploy.s.sol', '--rpc-url', url, '--private-key', key, '--broadcast']
forge(...script)
const sent = JSON.parse(readFileSync(join(project, 'broadcast/Deploy.s.sol/31337/run-latest.json'), 'utf8'))
claim('forge script --broadcast has the receipts', sent.receipts.map((receipt) => receipt.status), ['0x1', '0x1', '0x1', '0x1', '0x1'])
const counter = sent.transactions[0].contractAddress
claim('forge script --broadcast sends its five transactions', cast('call', counter, 'number()(uint256)'), '5')
const tested = run('forge', ['test', '--fork-url', url], { COUNTER: counter, NUMBER: '5' })
claim('forge test --fork-url', /1 tests? passed/.test(tested), true)
claim('and nothing of the test is on the chain', cast('call', counter, 'number()(uint256)'), '5')

if (name === 'testing' || name === 'fork') {
  // The script is killed while its transactions wait, and resumed when they are mined.
  rpc('evm_setAutomine', false)
  const before = Number(cast('nonce', account))
  const killed = spawn(join(here, 'node_modules/.bin/forge'), script, { env, cwd: project, stdio: 'ignore', detached: true })
  // Forge records a transaction after the node has it, and resumes what it has recorded.
  const recorded = () => {
    try {
      return JSON.parse(readFileSync(join(project, 'broadcast/Deploy.s.sol/31337/run-latest.json'), 'utf8')).pending.length
    } catch {
      // It is being written.
      return 0
    }
  }
  while (Number(rpc('txpool_status').pending) < 5 || recorded() < 5) {
    await new Promise((done) => setTimeout(done, 50))
  }
  const ended = new Promise((done) => killed.on('exit', done))
  process.kill(-killed.pid, 'SIGKILL')
  await ended
  rpc('evm_setAutomine', true)
  const resumed = forge(...script, '--resume')
  claim('forge script --resume', /COMPLETE & SUCCESSFUL/.test(resumed), true)
  claim('and nothing was sent twice', Number(cast('nonce', account)), before + 5)
}
console.log(`cast and forge on ${name}: all ${claims} claims hold`)
