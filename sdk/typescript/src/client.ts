import {
  type Account,
  type Address,
  type Chain,
  type Client,
  type ParseAccount,
  type PublicActions,
  type PublicClientConfig,
  type PublicRpcSchema,
  type RpcSchema,
  type Transport,
  createPublicClient,
} from 'viem'
import {
  type BlockSelector,
  type Payload,
  type PresimMethods,
  type SearchPayload,
  type SimulatedBlock,
  type SimulatedBlocks,
  type WatchedBundle,
  methods,
} from './generated.js'
import type { WatchNews } from './progress.js'
import { type AnyClient, call } from './request.js'
import { type SearchNews, type SearchOptions, type WatchOptions, search, watch } from './watch.js'

/** The actions that a client is extended with. */
export type PresimActions = Omit<PresimMethods, 'presimSimulate'> & {
  /** Simulates blocks of calls. With `when` the result may be `{ dropped }` in place of the blocks. */
  presimSimulate: {
    (payload: Payload & { readonly when?: undefined }, block?: BlockSelector): Promise<readonly SimulatedBlock[]>
    (payload: Payload, block?: BlockSelector): Promise<SimulatedBlocks>
  }
  /**
   * Creates standing bundles, and iterates over their news until the iteration ends: by `break`, `return` or the signal.
   * The node keeps the answers, and runs a bundle again only when a snapshot changes something that it has read. Every
   * unsigned call must set `gas`.
   *
   * Over WebSocket and the Unix socket there is an item for each snapshot. If the connection is lost, the iteration
   * continues after the last snapshot that was read, as soon as viem has reconnected. It ends with an error if viem
   * gives up. Over other transports the node is polled, and there is an item for each change.
   */
  watch(bundles: readonly WatchedBundle[], options?: WatchOptions): AsyncIterableIterator<WatchNews>
  /**
   * Repeats a search on the snapshots that affect it, and iterates over its answers, as `watch` does. For one search,
   * use `presimSearch`.
   */
  search(payload: SearchPayload, options?: SearchOptions): AsyncIterableIterator<SearchNews>
}

/** The actions of a presim node, for `client.extend(presimActions())`. */
export const presimActions =
  () =>
  (client: AnyClient): PresimActions => {
    const names = Object.keys(methods) as (keyof PresimMethods)[]
    const calls = Object.fromEntries(names.map((name) => [name, (...args: never) => call(client, name, args)]))
    return {
      ...(calls as unknown as Omit<PresimActions, 'watch' | 'search'>),
      watch: (bundles, options) => watch(client, bundles, options),
      search: (payload, options) => search(client, payload, options),
    }
  }

/** Milliseconds between polls of `presimClient`: the time between two sub-blocks of presim's devnet. */
const SUB_BLOCK_MS = 200

/** Creates a public client of viem with the actions of presim, which polls at the pace of sub-blocks. */
export function presimClient<
  transport extends Transport,
  chain extends Chain | undefined = undefined,
  account extends Account | Address | undefined = undefined,
  schema extends RpcSchema | undefined = undefined,
>(
  config: PublicClientConfig<transport, chain, account, schema>,
): PresimClient<transport, chain, ParseAccount<account>, schema> {
  const client: unknown = createPublicClient({ pollingInterval: SUB_BLOCK_MS, ...config })
  return (client as Client<transport, chain, ParseAccount<account>>).extend(presimActions()) as never
}

/** A public client of viem with the actions of presim. */
export type PresimClient<
  transport extends Transport = Transport,
  chain extends Chain | undefined = Chain | undefined,
  account extends Account | undefined = Account | undefined,
  schema extends RpcSchema | undefined = undefined,
> = Client<
  transport,
  chain,
  account,
  schema extends RpcSchema ? [...PublicRpcSchema, ...schema] : PublicRpcSchema,
  PublicActions<transport, chain, account> & PresimActions
>
