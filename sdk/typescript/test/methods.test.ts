import assert from 'node:assert/strict'
import { execFileSync } from 'node:child_process'
import { test } from 'node:test'
import {
  BaseError,
  InvalidInputRpcError,
  InvalidParamsRpcError,
  RpcRequestError,
  createPublicClient,
  createWalletClient,
  encodeFunctionData,
  http,
  parseEther,
  webSocket,
} from 'viem'
import { privateKeyToAccount } from 'viem/accounts'
import { foundry } from 'viem/chains'
import { PresimError, presimActions, presimClient } from '../src/index.js'
import { decode, encode } from '../src/codec.js'
import { methods } from '../src/generated.js'
import { ALICE, ALPHA, BETA, BOB, ROUTER, WETH, abi, startNode, swap } from './node.js'

const outputs = [
  'status',
  'gasUsed',
  'returnData',
  'error',
  'logs',
  'header',
  'transfers',
  'stateDiff',
  'accessList',
  'readSet',
  'assets',
  'coinbase',
  'trace',
] as const
const buy = { from: ALICE, to: ROUTER, value: parseEther('1'), gas: 500_000n, data: swap(ALICE) } as const
/** Returns the paths of the strings that are hex numbers: data always has whole bytes, and quantities no leading zero. */
function quantities(value: unknown, path = ''): string[] {
  if (typeof value === 'string') return /^0x(0|[1-9a-f]([0-9a-f]{2})*)$/.test(value) ? [path] : []
  if (value === null) return [path]
  return typeof value === 'object'
    ? Object.entries(value).flatMap(([name, member]) => quantities(member, `${path}.${name}`))
    : []
}

test('a simulation has numbers as bigint, at both paths', async (t) => {
  const { url } = await startNode(t, '--traffic', '0')
  for (const path of [url, url.replace('/standard', '/')]) {
    const client = presimClient({ chain: foundry, transport: http(path) })
    const [block, ...more] = await client.presimSimulate({
      blockStateCalls: [{ calls: [buy, { ...buy, data: '0x' }] }],
      outputs,
    })
    assert(block && more.length === 0)
    assert.deepEqual(quantities(block), [])
    const [bought, failed] = block.calls
    assert(bought?.logs && bought.gasUsed && failed)
    assert.deepEqual([bought.status, failed.status], [1n, 0n])
    assert(bought.gasUsed > 21_000n && bought.gasUsed < 500_000n)
    assert.equal(typeof failed.error?.message, 'string')
    assert.equal(bought.trace?.value, parseEther('1'))
    const assets = block.assets?.[ALICE.toLowerCase()]
    assert.deepEqual(
      assets?.map(({ type, symbol }) => symbol ?? type),
      ['ether', 'ALPHA'],
    )
    assert.equal(assets?.[0]?.change, -parseEther('1'))
    assert((assets?.[1]?.change ?? 0n) > 0n)
    assert.equal(block.number, (await client.presimSnapshot()).blockNumber)
  }
})

test('every method has its result with bigint', async (t) => {
  const { url } = await startNode(t, '--traffic', '0', '--wallet-approval', 'auto')
  const client = presimClient({ transport: http(url) })
  const snapshot = await client.presimSnapshot()
  assert.equal(typeof snapshot.id, 'bigint')
  assert.deepEqual(quantities(snapshot), [])
  const status = await client.presimStatus()
  assert.equal(status.chainId, 31337n)
  assert(status.contracts.some(({ address }) => address.toLowerCase() === WETH.toLowerCase()))
  assert.deepEqual(await client.presimDivergences(), [])
  assert.deepEqual(await client.presimApprovals(), { batches: [], more: 0, withdrawn: [] })
  const found = await client.presimSearch({
    blockStateCalls: [{ calls: [{ from: ALICE, to: BOB }] }],
    vary: [{ path: 'blocks[0].calls[0].value', from: 1, to: 10n, step: 3n }],
    objective: { account: ALICE },
    require: { least: -100n },
    top: 2,
  })
  assert.deepEqual(
    found.best.map(({ values, objective, status }) => [values, objective, status]),
    [
      [[1n], -1n, 1n],
      [[4n], -4n, 1n],
    ],
  )
  assert.deepEqual([found.runs, found.complete], [4, true])

  const { watch, id } = await client.presimWatch([
    { name: 'one', simulate: { blockStateCalls: [{ calls: [{ to: BOB, gas: 30_000n }] }], outputs: ['status'] } },
  ])
  const results = await client.presimResults(watch, id, 5_000)
  const [fork] = [snapshot.fork]
  assert.deepEqual(
    results.changed.map(({ name, result }) => [name, result]),
    [['one', [{ calls: [{ status: 1n }], fork }]]],
  )
  assert(results.id > id)
  const socket = presimClient({ transport: webSocket(url.replace('http', 'ws'), { keepAlive: false }) })
  assert.deepEqual((await socket.presimRewatch(watch, id)).watch, watch)
  ;(await socket.transport.getRpcClient()).close()
  assert.deepEqual([await client.presimUnwatch(watch), await client.presimUnwatch(watch)], [true, false])

  // A bundle is sent by viem, and its outcome asked for.
  const account = privateKeyToAccount('0xac0974bec39a17e36ba4a6b4d238ff944bacb478cbed5efcae784d7bf4f2ff80')
  const wallet = createWalletClient({ account, chain: foundry, transport: http(url) }).extend(presimActions())
  const raw = await wallet.signTransaction(await wallet.prepareTransactionRequest({ to: BOB, value: 1n }))
  const send = { method: 'eth_sendBundle', params: [{ txs: [raw] }] }
  const { bundleHash } = (await wallet.request(send as never)) as { bundleHash: `0x${string}` }
  let outcome = await wallet.presimOutcome(bundleHash)
  while (outcome?.status === 'pending') outcome = await wallet.presimOutcome(bundleHash)
  assert.equal(outcome?.status, 'mined')
  assert.equal(typeof outcome?.blockNumber, 'bigint')
  assert.equal(await wallet.presimOutcome(`0x${'00'.repeat(32)}`), null)
})

test('with `when`, a bundle that does not end as required is dropped', async (t) => {
  const { url } = await startNode(t, '--traffic', '0')
  const client = presimClient({ transport: http(url) })
  const transfer = encodeFunctionData({ abi, functionName: 'transfer', args: [BOB, 2n ** 200n] })
  const dropped = await client.presimSimulate({
    blockStateCalls: [{ calls: [buy, { from: ALICE, to: ALPHA, data: transfer }] }],
    outputs: ['status'],
    when: [],
  })
  assert.deepEqual(dropped, { dropped: { block: 0, call: 1 } })
  const errors = ['error InsufficientBalance(uint256 have, uint256 want)']
  const [block] = await client.presimSimulate({
    blockStateCalls: [{ calls: [{ from: ALICE, to: ALPHA, data: transfer }] }],
    outputs: ['error'],
    errors,
  })
  assert.match(block?.calls[0]?.error?.message ?? '', /InsufficientBalance/)
})

test('overrides and selectors take bigint and null', async (t) => {
  const { url } = await startNode(t, '--traffic', '0')
  const client = presimClient({ transport: http(url) })
  const poor = '0x00000000000000000000000000000000000a11ce'
  const { id } = await client.presimSnapshot()
  const blocks = await client.presimSimulate(
    {
      validation: true,
      blockStateCalls: [
        {
          blockOverrides: { baseFeePerGas: 1n },
          stateOverrides: { [poor]: { balance: parseEther('1') } },
          calls: [
            { from: poor, to: null, data: '0x5f5ff3', maxFeePerGas: 10n, gas: 100_000n, nonce: 0n },
            { from: poor, to: BETA, gas: 100_000n, maxFeePerGas: 10n },
          ],
        },
      ],
      outputs: ['status', 'header'],
    },
    { snapshotId: id },
  )
  assert.deepEqual([blocks[0]?.calls[0]?.status, blocks[0]?.baseFeePerGas], [1n, 1n])
})

test('an error of the node is an error of viem, with its code and data', async (t) => {
  const { url } = await startNode(t, '--traffic', '0')
  const [client, socket] = [
    presimClient({ transport: http(url) }),
    presimClient({ transport: webSocket(url.replace('http', 'ws'), { keepAlive: false }) }),
  ]
  t.after(async () => (await socket.transport.getRpcClient()).close())
  for (const each of [client, socket]) {
    const unknown = await each.presimResults(`0x${'12'.repeat(16)}`, 1n).then(
      () => assert.fail('no such watch'),
      (error: unknown) => error,
    )
    assert(unknown instanceof PresimError && unknown instanceof BaseError)
    assert.deepEqual([unknown.code, unknown.name], [-32000, 'PresimError'])
    assert.match(unknown.message, /^presim_results was rejected: .*no such watch/)
    assert(
      unknown.walk((cause) => cause instanceof InvalidInputRpcError) &&
        unknown.walk((cause) => cause instanceof RpcRequestError),
    )
    const invalid = await each.presimSimulate({ blockStateCalls: [] }).then(
      () => assert.fail('no blocks'),
      (error: unknown) => error,
    )
    assert(invalid instanceof PresimError && invalid.cause instanceof InvalidParamsRpcError)
    assert.equal(invalid.code, -32602)
  }
  // The data of an error that has some, from viem's own error.
  const cause = new RpcRequestError({
    body: {},
    error: { code: -32005, message: 'full', data: { flag: '--queue-wait-ms' } } as never,
    url,
  })
  const { data } = new PresimError('presim_simulate', cause, cause)
  assert.deepEqual(data, { flag: '--queue-wait-ms' })
})

test("errors of the transport are viem's", async () => {
  const client = presimClient({ transport: http('http://127.0.0.1:9', { retryCount: 0 }) })
  await assert.rejects(client.presimSnapshot(), { name: 'HttpRequestError' })
  const socket = presimClient({ transport: webSocket('ws://127.0.0.1:9', { keepAlive: false, reconnect: false }) })
  await assert.rejects(socket.watch([]).next(), { name: 'WebSocketRequestError' })
})

test('a client polls at the pace of sub-blocks', () => {
  const transport = http('http://127.0.0.1:9')
  assert.equal(presimClient({ transport }).pollingInterval, 200)
  assert.equal(presimClient({ transport, pollingInterval: 1_000 }).pollingInterval, 1_000)
  const client = createPublicClient({ transport }).extend(presimActions())
  for (const name of Object.keys(methods)) assert.equal(typeof client[name as keyof typeof methods], 'function')
})

test('the examples of the document have no quantity left, and are encoded as they were', () => {
  const text = execFileSync(process.env['PRESIM'] as string, ['print', 'openrpc'], {
    encoding: 'utf8',
    maxBuffer: 1 << 26,
  })
  type Method = { name: string; examples: { result: { value: unknown } }[] }
  let examples = 0
  for (const { name, examples: list } of (JSON.parse(text) as { methods: Method[] }).methods) {
    const method = Object.values(methods).find((one) => one.method === name)
    for (const { result } of method ? list : []) {
      const value = decode(method?.result, result.value)
      assert.deepEqual(quantities(value), [], name)
      // Decimal texts are quantities after that.
      const texts = JSON.stringify(result.value).replace(
        /"objective":"(\d+)"/g,
        (_, digits) => `"objective":"0x${BigInt(digits).toString(16)}"`,
      )
      assert.equal(JSON.stringify(encode(value)), texts, name)
      examples += 1
    }
  }
  assert.equal(examples, Object.keys(methods).length)
})
