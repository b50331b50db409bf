// A wallet's preview: what requests of a page would change for an account, shown before anything is signed.
// Run `presim --traffic 0`, and this program with the packages viem and presim.
import {
  type Address,
  type Hex,
  decodeEventLog,
  encodeFunctionData,
  formatUnits,
  http,
  isAddressEqual,
  maxUint256,
  parseAbi,
  parseEther,
} from 'viem'
import { presimClient } from 'presim'

const client = presimClient({ transport: http(process.argv[2] ?? 'http://127.0.0.1:8545/standard') })
const account = '0xf39Fd6e51aad88F6F4ce6aB8827279cffFb92266'
const [WETH, ALPHA] = [
  '0x5FbDB2315678afecb367f032d93F642f64180aa3',
  '0x9fE46736679d2D9a65F0992F2272dE9f3c7fa6e0',
] as const
const ROUTER = '0xDc64a140Aa3E981100a9becA4E685f962f0cF6C9'
const abi = parseAbi([
  'function swapExactETHForTokens(uint256 min, address[] path, address to, uint256 deadline) payable returns (uint256[])',
  'function approve(address spender, uint256 value) returns (bool)',
  'function transfer(address to, uint256 value) returns (bool)',
  'event Transfer(address indexed from, address indexed to, uint256 value)',
  'event Approval(address indexed owner, address indexed spender, uint256 value)',
])

/** Prints what a request would do to the account. */
async function preview(title: string, request: { to: Address; value?: bigint; data: Hex }) {
  const [block] = await client.presimSimulate({
    blockStateCalls: [{ calls: [{ from: account, ...request }] }],
    outputs: ['status', 'gasUsed', 'error', 'logs', 'assets'],
    errors: ['error InsufficientBalance(uint256 have, uint256 want)'],
  })
  const call = block?.calls[0]
  if (!block || !call) throw new Error('the simulation has no call')
  console.log(`${title} (${call.gasUsed} gas)`)
  if (call.status !== 1n) return console.log(`  fails: ${call.error?.message}`)
  // Addresses in results are in lower case.
  for (const { type, change, symbol, decimals, token } of block.assets?.[account.toLowerCase()] ?? []) {
    const amount = formatUnits(change, type === 'ether' ? 18 : Number(decimals ?? 0n))
    console.log(`  ${change > 0n ? 'receives' : 'pays'} ${amount.replace('-', '')} ${symbol ?? token ?? type}`)
  }
  for (const { address, topics, data } of call.logs ?? []) {
    const [signature, ...indexed] = topics
    if (!signature || !isAddressEqual(address, ALPHA)) continue
    const event = decodeEventLog({ abi, data, topics: [signature, ...indexed], strict: false })
    if (event.eventName !== 'Approval' || !event.args.spender) continue
    const amount = event.args.value === maxUint256 ? 'any amount' : event.args.value
    console.log(`  lets ${event.args.spender} spend ${amount} of ALPHA`)
  }
}

const path = [WETH, ALPHA]
const swap = encodeFunctionData({ abi, functionName: 'swapExactETHForTokens', args: [0n, path, account, maxUint256] })
await preview('Swap 1 ether', { to: ROUTER, value: parseEther('1'), data: swap })
await preview('Approve', {
  to: ALPHA,
  data: encodeFunctionData({ abi, functionName: 'approve', args: [ROUTER, maxUint256] }),
})
await preview('Transfer', {
  to: ALPHA,
  data: encodeFunctionData({ abi, functionName: 'transfer', args: [ROUTER, maxUint256] }),
})

/* Output:
Swap 1 ether (99667 gas)
  pays 1 ether
  receives 1992.013962079806432986 ALPHA
Approve (26550 gas)
  lets 0xDc64a140Aa3E981100a9becA4E685f962f0cF6C9 spend any amount of ALPHA
Transfer (24677 gas)
  fails: execution reverted: InsufficientBalance(100000000000000000000000, 115792089237316195423570985008687907853269984665640564039457584007913129639935)
*/
