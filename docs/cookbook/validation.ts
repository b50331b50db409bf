// A bundler's validation in the manner of ERC-4337 and ERC-7562: may the answer of an account's `validateUserOp` change
// before the operation is mined? The read set of the simulation lists everything that the answer depends on.
// ERC-7562 also allows some slots of other contracts, which are rejected here. Opcodes that read nothing of the chain,
// such as GAS and CREATE, need a trace (`debug_traceCall`).
// Run `presim --traffic 0`, and this program with the packages viem and presim.
import { type Address, type Hex, encodeFunctionData, http, parseAbi } from 'viem'
import { presimClient } from 'presim'

const client = presimClient({ transport: http(process.argv[2] ?? 'http://127.0.0.1:8545/standard') })
const ENTRY_POINT = '0x0000000071727De22E5E9d8BAf0edAc6f37da032'
const ACCOUNT = '0x00000000000000000000000000000000000a11ce'
const ALPHA = '0x9fE46736679d2D9a65F0992F2272dE9f3c7fa6e0'
const MOST_GAS = 150_000n
const abi = parseAbi([
  'struct UserOperation { address sender; uint256 nonce; bytes initCode; bytes callData; bytes32 accountGasLimits; uint256 preVerificationGas; bytes32 gasFees; bytes paymasterAndData; bytes signature }',
  'function validateUserOp(UserOperation op, bytes32 hash, uint256 missingFunds) returns (uint256)',
])
const zero: Hex = `0x${'00'.repeat(32)}`
const empty = { initCode: '0x', callData: '0x', paymasterAndData: '0x', signature: '0x' } as const
const op = { ...empty, sender: ACCOUNT, nonce: 0n, accountGasLimits: zero, preVerificationGas: 0n, gasFees: zero } as const
const data = encodeFunctionData({ abi, functionName: 'validateUserOp', args: [op, zero, 0n] })

/** Returns the rules that the validation of an account with the code breaks. */
async function violations(code: Hex): Promise<string[]> {
  const [block] = await client.presimSimulate({
    blockStateCalls: [
      { stateOverrides: { [ACCOUNT]: { code } }, calls: [{ from: ENTRY_POINT, to: ACCOUNT, gas: MOST_GAS, data }] },
    ],
    outputs: ['status', 'gasUsed', 'returnData', 'error', 'readSet', 'stateDiff', 'transfers'],
  })
  const call = block?.calls[0]
  if (!block?.readSet || !call) return ['the simulation has no read set']
  if (block.readSet.everything) return ['reads too much to list']
  const broken: string[] = []
  if (call.status !== 1n) broken.push(`reverts: ${call.error?.message}`)
  // The last 20 bytes are 0 if the signature is valid, and 1 if it is not.
  else if (BigInt(`0x${call.returnData?.slice(-40)}`) !== 0n) broken.push('the signature is rejected')
  const isOwn = (address: string) => address === ACCOUNT || address === ENTRY_POINT.toLowerCase()
  for (const field of block.readSet.block ?? []) broken.push(`reads ${field} of the block`)
  for (const number of block.readSet.blockHashes ?? []) broken.push(`reads the hash of block ${number}`)
  for (const [address, { parts, slots }] of Object.entries(block.readSet.accounts ?? {})) {
    if (parts.includes('balance') && !isOwn(address)) broken.push(`reads the balance of ${address}`)
    for (const slot of isOwn(address) ? [] : slots) broken.push(`reads slot ${slot} of ${address}`)
  }
  for (const [address, { storage }] of Object.entries(block.stateDiff ?? {})) {
    if (storage && !isOwn(address)) broken.push(`writes storage of ${address}`)
  }
  for (const { to } of call.transfers ?? []) if (!isOwn(to)) broken.push(`sends ether to ${to}`)
  return broken
}

// Accounts in bytecode. The end of each returns 0: PUSH0 PUSH0 MSTORE PUSH1 32 PUSH0 RETURN.
const end = '5f5f5260205ff3'
const balanceOf = (token: Address, holder: string) =>
  `6370a082315f5261${holder}60205260205f6024601c73${token.slice(2)}5afa50`
const accounts: Record<string, Hex> = {
  'reads its own slot': `0x5f5450${end}`, // PUSH0 SLOAD POP
  'reads the time': `0x4250${end}`, // TIMESTAMP POP
  'reads a token balance': `0x${balanceOf(ALPHA, 'dead')}${end}`, // STATICCALL
  'rejects the signature': '0x60015f5260205ff3', // returns 1
  reverts: '0x5f5ffd', // PUSH0 PUSH0 REVERT
}
for (const [name, code] of Object.entries(accounts)) {
  const broken = await violations(code)
  console.log(`an account that ${name}: ${broken.length ? broken.join('; ') : 'accepted'}`)
}

/* Output:
an account that reads its own slot: accepted
an account that reads the time: reads timestamp of the block
an account that reads a token balance: reads slot 0x44ad89ba62b98ff34f51403ac22759b55759460c0bb5521eb4b6ee3cff49cf83 of 0x9fe46736679d2d9a65f0992f2272de9f3c7fa6e0
an account that rejects the signature: the signature is rejected
an account that reverts: reverts: execution reverted
*/
