import assert from 'node:assert/strict'
import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { test } from 'node:test'
import { BaseError, type Hex, type Transport, encodeFunctionData, http, webSocket } from 'viem'
import { ipc } from 'viem/node'
import { PresimError, type WatchNews, type WatchedBundle, presimClient } from '../src/index.js'
import {
  ALICE,
  ALPHA,
  BOB,
  ROUTER,
  WETH,
  abi,
  answer,
  read,
  startNode,
  startProxy,
  startReaders,
  stopNode,
  swap,
} from './node.js'

/** Returns the next item. */
async function next<T>(items: AsyncIterator<T>): Promise<T> {
  const { done, value } = await items.next()
  assert(!done, 'the iteration has ended')
  return value
}
/** Returns the next item of a kind in which an answer has changed. */
async function nextChange(items: AsyncIterator<WatchNews>, ...kinds: WatchNews['kind'][]) {
  for (;;) {
    const news = await next(items)
    if (news.kind !== 'begun' && news.changed.length > 0) {
      assert(kinds.includes(news.kind), `${news.kind}, not ${kinds}`)
      return news
    }
  }
}
const values = ({ changed }: { changed: readonly { name: string; result?: unknown }[] }) =>
  Object.fromEntries(changed.map(({ name, result }) => [name, result]))
const socket = (url: string) => webSocket(url.replace('http', 'ws'), { keepAlive: false })
const close = async (client: { transport: { getRpcClient(): Promise<{ close(): void }> } }) =>
  (await client.transport.getRpcClient()).close()

test('over WebSocket every snapshot is an item, with the answers that it has changed', async (t) => {
  const { url, set, client: driver } = await startReaders(t)
  const client = presimClient({ transport: socket(url) })
  t.after(() => close(client))
  const items = client.watch([read('a', 0), read('b', 1)])
  const begun = await next(items)
  assert(begun.kind === 'begun')
  assert.match(begun.watch, /^0x[0-9a-f]{32}$/)
  const first = await nextChange(items, 'changes', 'snapshot')
  assert.deepEqual(values(first), { a: answer(1n), b: answer(1n) })

  await set(0, 5n)
  const news = await nextChange(items, 'snapshot')
  assert.deepEqual(values(news), { a: answer(5n) })
  const { id, blockNumber } = await driver.presimSnapshot()
  assert.deepEqual([news.id, news.blockNumber], [id, blockNumber])

  await items.return?.()
  assert.deepEqual(await items.next(), { done: true, value: undefined })
  assert.equal(await driver.presimUnwatch(begun.watch), false, 'the end of the iteration has ended the bundles')
})

test('an end while an item is waited for ends the wait', async (t) => {
  const { url } = await startReaders(t)
  const client = presimClient({ transport: socket(url) })
  t.after(() => close(client))
  const stop = new AbortController()
  const items = client.watch([read('a', 0)], { signal: stop.signal })
  await nextChange(items, 'changes', 'snapshot')
  const waiting = items.next()
  stop.abort()
  assert.deepEqual(await waiting, { done: true, value: undefined })
  const search = client.search({
    blockStateCalls: [{ calls: [{ from: ALICE, to: ALPHA, gas: 100_000n }] }],
    vary: [{ path: 'blocks[0].calls[0].value', values: [1n] }],
    objective: 'gasUsed',
  })
  await next(search)
  const more = search.next()
  await search.return?.()
  assert.deepEqual(await more, { done: true, value: undefined })
})

test('without a WebSocket the node is polled', async (t) => {
  const folder = await mkdtemp(join(tmpdir(), 'presim-'))
  t.after(() => rm(folder, { recursive: true }))
  const path = join(folder, 'ipc')
  const { url, set, client: driver } = await startReaders(t, `--ipc=${path}`)
  for (const transport of [http(url), ipc(path)]) {
    const client = presimClient<Transport>({ transport, pollingInterval: 10 })
    const items = client.watch([read('a', 0), read('b', 1)])
    const begun = await next(items)
    assert(begun.kind === 'begun')
    assert.deepEqual(Object.keys(values(await nextChange(items, 'changes'))), ['a', 'b'])
    for (const value of [7n, 8n, 9n]) {
      await set(1, value)
      assert.deepEqual(values(await nextChange(items, 'changes')), { b: answer(value) })
    }
    await items.return?.()
    assert.equal(await driver.presimUnwatch(begun.watch), false)
    if (client.transport.type === 'ipc') await close(client as never)
  }
})

test('a reconnect continues after the last snapshot that was read', async (t) => {
  const { port, set } = await startReaders(t)
  const proxy = await startProxy(t, port)
  const client = presimClient({ transport: socket(proxy.url) })
  t.after(() => close(client))
  const items = client.watch([read('a', 0), read('b', 1)], { reconnect: { delay: 10 } })
  const first = await nextChange(items, 'changes', 'snapshot')

  proxy.block()
  for (const value of [2n, 3n, 4n]) await set(0, value)
  proxy.open()
  const missed = await nextChange(items, 'changes')
  assert.deepEqual(values(missed), { a: answer(4n) }, 'the changes that were missed, as one')
  assert.equal(missed.id, first.id + 3n)

  await set(1, 6n)
  const news = await nextChange(items, 'snapshot')
  assert.deepEqual([news.id, values(news)], [missed.id + 1n, { b: answer(6n) }])

  // Nothing has changed while the connection was cut, so nothing is repeated.
  proxy.cut()
  await set(1, 7n)
  const more = await nextChange(items, 'changes', 'snapshot')
  assert.deepEqual([more.id, values(more)], [news.id + 1n, { b: answer(7n) }])
  await items.return?.()
})

test('a connection that falls silent is replaced', async (t) => {
  const { port, set } = await startReaders(t)
  const proxy = await startProxy(t, port)
  const client = presimClient({ transport: socket(proxy.url) })
  t.after(() => close(client))
  const items = client.watch([read('a', 0)], { keepAlive: 1_000 })
  await nextChange(items, 'changes', 'snapshot')
  proxy.silence()
  await set(0, 2n)
  assert.deepEqual(values(await nextChange(items, 'changes', 'snapshot')), { a: answer(2n) })
  await items.return?.()
})

test('cut anywhere, no sub-block is lost or read twice', async (t) => {
  const { url, port } = await startNode(t)
  const driver = presimClient({ transport: http(url) })
  const proxy = await startProxy(t, port)
  const client = presimClient({ transport: socket(proxy.url) })
  t.after(() => close(client))
  const quote = encodeFunctionData({ abi, functionName: 'getAmountsOut', args: [10n ** 18n, [WETH, ALPHA]] })
  const calls = [
    { to: ROUTER, gas: 1_000_000n, data: quote },
    { from: ALICE, to: ROUTER, gas: 1_000_000n, value: 10n ** 18n, data: swap(ALICE) },
  ] as const
  // PUSH20 payee BALANCE PUSH0 MSTORE PUSH1 32 PUSH0 RETURN: the balance of an account that is paid now and then.
  const [payee, probe] = [`0x${'ab'.repeat(20)}`, `0x${'cd'.repeat(20)}`] as const
  const stateOverrides = { [probe]: { code: `0x73${'ab'.repeat(20)}315f5260205ff3` } } as const
  const bundles: (WatchedBundle & { simulate: {} })[] = [
    {
      name: 'balance',
      simulate: {
        blockStateCalls: [{ stateOverrides, calls: [{ to: probe, gas: 100_000n }] }],
        outputs: ['returnData'],
      },
    },
    {
      name: 'symbol',
      simulate: {
        blockStateCalls: [{ calls: [{ to: ALPHA, gas: 100_000n, data: '0x95d89b41' }] }],
        outputs: ['returnData'],
      },
    },
    { name: 'quote', simulate: { blockStateCalls: [{ calls: calls.slice(0, 1) }], outputs: ['returnData'] } },
    {
      name: 'swap',
      simulate: { blockStateCalls: [{ calls: calls.slice(1) }], outputs: ['status', 'assets', 'logs', 'stateDiff'] },
    },
  ]
  let cuts = 0
  const cutAgain = () => {
    cuts += 1
    // The lengths of these steps fall into handshakes, answers and notifications.
    if (cuts < 12) proxy.cutAfter(130 + cuts * 937)
    else proxy.cutAfter(Infinity)
    proxy.nextCut().then(cutAgain, () => {})
  }
  const held = new Map<string, unknown>()
  let last = 0n
  let [snapshots, checked] = [0, 0]
  for await (const news of client.watch(bundles, { reconnect: { delay: 10 } })) {
    if (news.kind === 'begun') {
      assert.equal(last, 0n, 'the bundles are created once')
      last = news.id
      proxy.nextCut().then(cutAgain, () => {})
      proxy.cut()
      continue
    }
    if (news.kind === 'snapshot') {
      assert(news.id > last, `${news.id} after ${last}`)
      snapshots += 1
      if (snapshots % 3 === 0) {
        await driver.request({
          method: 'eth_sendTransaction',
          params: [{ from: BOB, to: payee, value: '0x1' }],
        } as never)
      }
    }
    for (const { name, result, error } of news.changed) {
      if (news.kind !== 'late') assert.notDeepEqual(result ?? error, held.get(name), `${name} is read twice`)
      held.set(name, result ?? error)
    }
    if (news.kind !== 'late' && news.id > last) last = news.id
    // The answers that the client holds are the node's at the snapshot.
    const isComplete = news.behind.length === 0 && news.changed.every(({ id }) => id === undefined || id === news.id)
    if (isComplete && news.kind === 'snapshot') {
      for (const { name, simulate } of bundles) {
        assert.deepEqual(
          held.get(name),
          await driver.presimSimulate(simulate, { snapshotId: news.id }),
          `${name} at ${news.id}`,
        )
      }
      checked += 1
    }
    if (cuts >= 12 && checked >= 15) break
  }
})

test('bundles that the node has forgotten are created again', async (t) => {
  const { port, node } = await startNode(t, '--traffic', '0')
  const proxy = await startProxy(t, port)
  const client = presimClient({ transport: socket(proxy.url) })
  t.after(() => close(client))
  const items = client.watch([read('a', 0)], { reconnect: { delay: 10 } })
  const begun = await next(items)
  assert(begun.kind === 'begun')
  const first = await nextChange(items, 'changes', 'snapshot')
  // Another client ends the bundles, as a restart of the node does.
  proxy.block()
  const driver = presimClient({ transport: http(`http://127.0.0.1:${port}/standard`) })
  assert.equal(await driver.presimUnwatch(begun.watch), true)
  proxy.open()
  let again = await next(items)
  while (again.kind !== 'begun') again = await next(items)
  assert.notEqual(again.watch, begun.watch)
  assert.deepEqual(values(await nextChange(items, 'changes', 'snapshot')), values(first))
  await items.return?.()
  await stopNode(node)
})

test('the iteration ends with an error if the connection stays lost', async (t) => {
  const { port } = await startReaders(t)
  const proxy = await startProxy(t, port)
  const client = presimClient({ transport: socket(proxy.url) })
  t.after(() => close(client))
  let refused = 0
  for (const attempts of [0, 3]) {
    const items = client.watch([read('a', 0)], { reconnect: { attempts, delay: 1 } })
    await nextChange(items, 'changes', 'snapshot')
    proxy.block()
    await assert.rejects(
      async () => {
        for (;;) await next(items)
      },
      (error) => error instanceof BaseError && /Socket/.test(error.name),
    )
    assert.deepEqual(await items.next(), { done: true, value: undefined })
    proxy.open()
    refused += attempts
  }
  assert(proxy.refused() >= refused, 'each attempt was made')
})

test('bundles that the node rejects end the iteration with its error', async (t) => {
  const { url } = await startReaders(t)
  const bundles: WatchedBundle[] = [{ name: 'a', simulate: { blockStateCalls: [{ calls: [{ to: ALPHA }] }] } }]
  for (const transport of [http(url), socket(url)]) {
    const client = presimClient({ transport })
    const items = client.watch(bundles)
    await assert.rejects(
      items.next(),
      (error) => error instanceof PresimError && error.code === -32602 && /gas/.test(error.message),
    )
    assert.deepEqual(await items.next(), { done: true, value: undefined })
    if (client.transport.type === 'webSocket') await close(client as never)
  }
})

test('a search is repeated when its answer may have changed', async (t) => {
  const { url, send } = await startReaders(t)
  const client = presimClient({ transport: socket(url) })
  t.after(() => close(client))
  const sink: Hex = '0x000000000000000000000000000000000000beef'
  // SELFBALANCE is sent back to the caller: PUSH0 x4 SELFBALANCE CALLER GAS CALL STOP.
  await send('anvil_setCode', [sink, '0x5f5f5f5f47335af100'])
  await send('anvil_setBalance', [sink, '0x64'])
  const payload = {
    blockStateCalls: [{ calls: [{ from: ALICE, to: sink, gas: 100_000n }] }],
    vary: [{ path: 'blocks[0].calls[0].value', values: [1n, 2n] }],
    objective: { account: ALICE },
  } as const
  const items = client.search(payload, { above: 50n })
  const first = await next(items)
  assert.deepEqual([first.found?.best[0]?.objective, first.found?.best[0]?.values], [100n, [1n]])
  await send('anvil_setBalance', [sink, '0x96'])
  assert.equal((await next(items)).found?.best[0]?.objective, 150n)
  await send('anvil_setBalance', [sink, '0x1'])
  const below = await next(items)
  assert.deepEqual([below.found, below.error], [null, undefined])
  await send('anvil_setBalance', [sink, '0x3e8'])
  const last = await next(items)
  assert.equal(last.found?.best[0]?.objective, 1000n)
  assert.deepEqual((await client.presimSearch(payload, { snapshotId: last.id })).best, last.found?.best)
  await items.return?.()
})
