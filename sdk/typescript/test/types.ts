// Assertions on types. `tsc` checks them, nothing runs.
import {
  type Address,
  type Hash,
  type Hex,
  type HttpTransport,
  type WebSocketTransport,
  createPublicClient,
  createTestClient,
  createWalletClient,
  http,
  webSocket,
} from 'viem'
import { foundry } from 'viem/chains'
import {
  type CallError,
  type ChangedAnswer,
  type Found,
  type NewestSnapshot,
  type Payload,
  type PresimClient,
  type SearchNews,
  type SentOutcome,
  type SimulatedBlock,
  type SimulatedBlocks,
  type WatchNews,
  presimActions,
  presimClient,
} from '../src/index.js'

type Equal<A, B> = (<T>() => T extends A ? 1 : 2) extends <T>() => T extends B ? 1 : 2 ? true : false
const is = <_ extends true>() => {}

const client = presimClient({ chain: foundry, transport: http() })
const extended = createPublicClient({ transport: webSocket('ws://127.0.0.1:8545/standard') }).extend(presimActions())
createWalletClient({ chain: foundry, transport: http() }).extend(presimActions())
  .presimSnapshot satisfies () => Promise<NewestSnapshot>
// The actions of a test client keep their names.
const tests = createTestClient({ mode: 'anvil', chain: foundry, transport: http() }).extend(presimActions())
is<Equal<Awaited<ReturnType<typeof tests.snapshot>>, `0x${string}`>>()

is<Equal<typeof client, PresimClient<HttpTransport, typeof foundry, undefined>>>()
is<Equal<typeof client.chain, typeof foundry>>()
is<Equal<Awaited<ReturnType<typeof client.getBlockNumber>>, bigint>>()
is<Equal<ReturnType<typeof client.watch>, AsyncIterableIterator<WatchNews>>>()
is<Equal<ReturnType<typeof client.search>, AsyncIterableIterator<SearchNews>>>()
extended satisfies { watch: typeof client.watch }
const socket = presimClient({ transport: webSocket() })
is<Equal<typeof socket, PresimClient<WebSocketTransport, undefined, undefined>>>()

export async function results(bundleHash: Hash) {
  is<Equal<Awaited<ReturnType<typeof client.presimOutcome>>, SentOutcome | null>>()
  const outcome = await client.presimOutcome(bundleHash)
  is<Equal<NonNullable<typeof outcome>['blockNumber'], bigint | undefined>>()
  const snapshot = await client.presimSnapshot()
  is<Equal<typeof snapshot.id, bigint>>()
  is<Equal<typeof snapshot.head.hash, Hash>>()
  is<Equal<typeof snapshot.ageMs, number>>()
  is<Equal<typeof snapshot.feed, 'live' | 'lagging' | 'static' | 'degraded'>>()

  // Without `when` there is always a list of blocks.
  const blocks = await client.presimSimulate({ blockStateCalls: [{ calls: [] }], outputs: ['status'] })
  is<Equal<typeof blocks, readonly SimulatedBlock[]>>()
  const dropped = await client.presimSimulate({
    blockStateCalls: [{ calls: [] }],
    when: [{ block: 0, call: 0, status: 'any' }],
  })
  is<Equal<typeof dropped, SimulatedBlocks>>()
  const [block] = blocks
  is<Equal<typeof block, SimulatedBlock | undefined>>()
  const call = block?.calls[0]
  is<Equal<NonNullable<typeof call>['status'], bigint | undefined>>()
  is<Equal<NonNullable<typeof call>['error'], CallError | undefined>>()
  is<Equal<NonNullable<typeof call>['returnData'], Hex | undefined>>()
  const change = block?.assets?.['0x']?.[0]?.change
  is<Equal<typeof change, bigint | undefined>>()

  const found = await client.presimSearch({
    blockStateCalls: [],
    vary: [{ path: 'blocks[0].calls[0].value', values: [1, 2n] }],
    objective: 'coinbase',
  })
  is<Equal<typeof found, Found>>()
  is<Equal<(typeof found.best)[number]['values'], readonly bigint[]>>()
  is<Equal<(typeof found.best)[number]['objective'], bigint | undefined>>()

  for await (const news of extended.watch([{ name: 'a', simulate: { blockStateCalls: [] } }], { block: 'latest' })) {
    if (news.kind === 'begun') is<Equal<typeof news.watch, Hex>>()
    else is<Equal<typeof news.changed, readonly ChangedAnswer[]>>()
  }
  for await (const { found, id } of extended.search(
    { blockStateCalls: [], vary: [], objective: { account: '0x00' } },
    { above: 1n },
  )) {
    is<Equal<typeof found, Found | null>>()
    is<Equal<typeof id, bigint>>()
  }
}

export function mistakes(account: Address) {
  // @ts-expect-error a quantity is a bigint
  const hex: Payload = { blockStateCalls: [{ calls: [{ from: account, to: account, value: '0x1' }] }] }
  // @ts-expect-error a quantity is no number
  const number: Payload = { blockStateCalls: [{ calls: [{ from: account, to: account, gas: 21_000 }] }] }
  // @ts-expect-error there is no such output
  const output: Payload = { blockStateCalls: [], outputs: ['gas'] }
  // @ts-expect-error there is no such field
  const field: Payload = { blockStateCalls: [{ calls: [{ form: account }] }] }
  // @ts-expect-error an address begins with 0x
  const address: Payload = { blockStateCalls: [{ calls: [{ to: 'alice' }] }] }
  // @ts-expect-error a search has an objective
  void client.presimSearch({ blockStateCalls: [], vary: [] })
  // @ts-expect-error bundles run at pending or latest
  client.watch([], { block: 'finalized' })
  // @ts-expect-error the parameters of a request are no hex
  void client.presimResults('0x12', '0x1')
  void client.presimSimulate({ blockStateCalls: [{ calls: [{ to: null, data: '0x' }] }] }, 5n)
  return [hex, number, output, field, address]
}
