import assert from 'node:assert/strict'
import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'
import { type AddressInfo, type Socket, connect, createServer } from 'node:net'
import { createInterface } from 'node:readline'
import type { TestContext } from 'node:test'
import { type Address, type Hex, encodeFunctionData, http, numberToHex, parseAbi, toHex } from 'viem'
import { presimClient } from '../src/index.js'

const binary = process.env['PRESIM']
assert(binary, 'PRESIM is the path of a presim binary')

/** The accounts and contracts of presim's devnet. */
export const [ALICE, BOB] = [
  '0xf39Fd6e51aad88F6F4ce6aB8827279cffFb92266',
  '0x70997970C51812dc3A010C7d01b50e0d17dc79C8',
] as const
export const [WETH, ALPHA, BETA] = [
  '0x5FbDB2315678afecb367f032d93F642f64180aa3',
  '0x9fE46736679d2D9a65F0992F2272dE9f3c7fa6e0',
  '0xe7f1725E7734CE288F8367e1Bb143E90bb3F0512',
] as const
export const ROUTER = '0xDc64a140Aa3E981100a9becA4E685f962f0cF6C9'
export const abi = parseAbi([
  'function transfer(address to, uint256 value) returns (bool)',
  'function deposit() payable',
  'function getAmountsOut(uint256 amountIn, address[] path) view returns (uint256[])',
  'function swapExactETHForTokens(uint256 min, address[] path, address to, uint256 deadline) payable returns (uint256[])',
])
/** Returns the data of a swap of ether for ALPHA. */
export const swap = (to: Address) =>
  encodeFunctionData({ abi, functionName: 'swapExactETHForTokens', args: [0n, [WETH, ALPHA], to, 2n ** 256n - 1n] })

/** Starts a node, and stops it at the end of the test. */
export async function startNode(t: TestContext, ...flags: string[]) {
  const node = spawn(binary as string, ['--listen', '127.0.0.1:0', ...flags], { stdio: ['ignore', 'pipe', 'ignore'] })
  t.after(() => stopNode(node))
  for await (const line of createInterface({ input: node.stdout })) {
    const url = / listens on (http:\S+)/.exec(line)?.[1]
    // The rest of the banner is read, so that the node does not wait for the pipe.
    if (url) return (node.stdout.resume(), { url: `${url}/standard`, port: Number(new URL(url).port), node })
  }
  throw new Error('the node did not say where it listens')
}

/** Stops a node, and waits for its end. */
export async function stopNode(node: ChildProcess) {
  if (node.exitCode !== null || node.signalCode !== null) return
  const end = once(node, 'exit')
  node.kill()
  await end
}

/**
 * Starts a chain that moves only when the test moves it. `set` changes what the account with a number returns, and with
 * it the snapshot; `read` is a bundle that reads it.
 */
export async function startReaders(t: TestContext, ...flags: string[]) {
  const started = await startNode(t, '--testing', ...flags)
  const client = presimClient({ transport: http(started.url) })
  const send = (method: string, params: readonly unknown[]) =>
    client.request({ method, params } as never) as Promise<unknown>
  const set = (account: number, value: bigint) =>
    send('anvil_setStorageAt', [reader(account), toHex(0, { size: 32 }), toHex(value, { size: 32 })])
  // PUSH0 SLOAD PUSH0 MSTORE PUSH1 32 PUSH0 RETURN: slot 0 is returned.
  for (const account of [0, 1]) await send('anvil_setCode', [reader(account), '0x5f545f5260205ff3'])
  for (const account of [0, 1]) await set(account, 1n)
  return { ...started, client, send, set }
}
const reader = (account: number): Address => numberToHex(0xaa00 + account, { size: 20 })
export const read = (name: string, account: number) =>
  ({
    name,
    simulate: { blockStateCalls: [{ calls: [{ to: reader(account), gas: 100_000n }] }], outputs: ['returnData'] },
  }) as const
/** Returns the answer of a reader. */
export const answer = (value: bigint) => [{ calls: [{ returnData: toHex(value, { size: 32 }) as Hex }], fork: 'osaka' }]

/**
 * A TCP proxy before a node. `cut` ends its connections, and `block` also rejects new ones until `open`. After
 * `cutAfter(n)`, the next connection is cut when the node has sent n bytes on it, wherever that is in a message.
 */
export async function startProxy(t: TestContext, port: number) {
  const pairs = new Set<readonly [Socket, Socket]>()
  let isBlocked = false
  let budget = Infinity
  let refused = 0
  let isSilent = false
  const proxy = createServer((client) => {
    if (isBlocked) {
      refused += 1
      return void client.destroy()
    }
    const node = connect(port, '127.0.0.1')
    const pair = [client, node] as const
    pairs.add(pair)
    let left = budget
    isSilent = false
    node.on('data', (bytes) => {
      if (isSilent) return
      client.write(bytes.subarray(0, left))
      left -= bytes.length
      if (left <= 0) drop(pair)
    })
    client.on('data', (bytes) => node.write(bytes))
    for (const socket of pair) socket.on('error', () => drop(pair)).on('close', () => drop(pair))
  })
  const drop = (pair: readonly [Socket, Socket]) => {
    if (!pairs.delete(pair)) return
    proxy.emit('cut')
    pair[0].end()
    pair[1].destroy()
  }
  const cut = () => [...pairs].forEach(drop)
  proxy.listen(0, '127.0.0.1')
  await once(proxy, 'listening')
  t.after(() => {
    isBlocked = true
    cut()
    proxy.close()
  })
  return {
    url: `ws://127.0.0.1:${(proxy.address() as AddressInfo).port}/standard`,
    cut,
    refused: () => refused,
    block: () => ((isBlocked = true), cut()),
    open: () => void (isBlocked = false),
    cutAfter: (bytes: number) => void (budget = bytes),
    /** Drops what the node sends on the connections there are, without ending them. */
    silence: () => void (isSilent = true),
    nextCut: () => once(proxy, 'cut'),
  }
}
