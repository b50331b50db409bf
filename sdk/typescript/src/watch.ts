import { BaseError, type Hex, RpcRequestError, SocketClosedError, type WebSocketTransport, numberToHex } from 'viem'
import { PresimError, toPresimError } from './errors.js'
import { type Close, Feed, type Sink } from './feed.js'
import type { Every, Found, RunError, SearchPayload, WatchedBundle } from './generated.js'
import { Progress, type RawNews, type WatchNews } from './progress.js'
import { type AnyClient, call } from './request.js'

export type WatchOptions = {
  /** The snapshots on which the bundles run: `pending` (the default) for each sub-block, `latest` for each block. */
  block?: 'pending' | 'latest' | undefined
  /** Ends the iteration. */
  signal?: AbortSignal | undefined
}

export type SearchOptions = WatchOptions & {
  /** The bound of the objective above which answers are sent. */
  above?: bigint | undefined
  /** `block` runs the search on the first snapshot of each block only. */
  every?: Every | undefined
}

/** An answer of a search that is repeated. */
export type SearchNews = {
  /** The snapshot for which the answer holds. */
  readonly id: bigint
  readonly blockNumber?: bigint | undefined
  /** The answer, or null if there is none: the objective is no longer above the bound, or the search has failed. */
  readonly found: Found | null
  /** The error of a search that has failed. */
  readonly error?: RunError | undefined
}

type RpcClient = Awaited<ReturnType<NonNullable<ReturnType<WebSocketTransport>['value']>['getRpcClient']>>
type Message = {
  method?: string | undefined
  params?: { result?: RawNews | undefined } | undefined
  result?: RawNews | undefined
  error?: { code: number; message: string; data?: unknown } | undefined
}

/** Milliseconds that a poll waits for a change. Less than viem's usual time-out of a request. */
const POLL_MS = 5_000
/** Codes of `presim_rewatch` after which it is called again: an overload, a deadline, an internal error. */
const PASSING = [-32005, -32016, -32603]
/** The code of `presim_rewatch` and `presim_results` if the node does not know the bundles. */
const UNKNOWN = -32000
/** How often `presim_rewatch` is repeated, and the first pause in milliseconds. Each further one is twice as long. */
const [RETRIES, RETRY_PAUSE] = [5, 100]

/** Watches bundles until the iteration ends. See `PresimActions.watch`. */
export function watch(client: AnyClient, bundles: readonly WatchedBundle[], options: WatchOptions = {}): AsyncIterableIterator<WatchNews> {
  return new Feed<WatchNews>((feed) => open(client)(client, bundles, options.block ?? 'pending', feed), options.signal)
}

/** Repeats a search until the iteration ends. See `PresimActions.search`. */
export function search(client: AnyClient, payload: SearchPayload, options: SearchOptions = {}): AsyncIterableIterator<SearchNews> {
  const { above, every, block, signal } = options
  const bundle = { name: 'search', search: payload, every, only: above === undefined ? undefined : { above } }
  const push = (feed: Feed<SearchNews>, news: WatchNews) => {
    if (news.kind === 'begun') return
    for (const { id = news.id, blockNumber = news.blockNumber, result, error } of news.changed) {
      feed.push({ id, blockNumber, found: result && 'best' in result ? result : null, error })
    }
  }
  return new Feed<SearchNews>((feed) => {
    const sink = { push: (news: WatchNews) => push(feed, news), fail: (error: unknown) => feed.fail(error), isEnded: () => feed.isEnded() }
    return open(client)(client, [bundle], block ?? 'pending', sink)
  }, signal)
}

/** Returns the way in which a client's transport receives news. */
const open = (client: AnyClient) => ('getRpcClient' in client.transport ? follow : poll)

/** Creates the bundles on the node. */
async function begin(client: AnyClient, bundles: readonly WatchedBundle[], block: 'pending' | 'latest', feed: Sink<WatchNews>) {
  // A repeated request would create the bundles twice.
  const begun = await call(client, 'presimWatch', [bundles, block], { retryCount: 0 })
  feed.push({ kind: 'begun', ...begun })
  return begun
}

/** Removes the bundles from the node. If it cannot be reached, it drops them after a time. */
const end = (client: AnyClient, name: Hex) => call(client, 'presimUnwatch', [name], { retryCount: 0 }).catch(() => false)

/** Polls the bundles, where the transport has no notifications. */
async function poll(client: AnyClient, bundles: readonly WatchedBundle[], block: 'pending' | 'latest', feed: Sink<WatchNews>): Promise<Close> {
  let { watch, id } = await begin(client, bundles, block, feed)
  const stop = new AbortController()
  const run = async () => {
    let progress = new Progress(id)
    while (!feed.isEnded()) {
      try {
        const params = [watch, numberToHex(progress.last), POLL_MS]
        const raw = await client.request<Poll>({ method: 'presim_results', params }, { signal: stop.signal })
        const news = progress.changes(raw)
        if (news) feed.push(news)
        // An answer that is behind is listed again at once, so the next poll would not wait for a change.
        else await new Promise((resolve) => setTimeout(resolve, client.pollingInterval))
      } catch (cause) {
        if (feed.isEnded()) return
        const error = toPresimError('presim_results', cause)
        if (!(error instanceof PresimError && error.code === UNKNOWN)) throw error
        ;({ watch, id } = await begin(client, bundles, block, feed))
        progress = new Progress(id)
      }
    }
  }
  run().catch((error: unknown) => feed.fail(error))
  return async () => {
    stop.abort()
    await end(client, watch)
  }
}
type Poll = { Method: string; Parameters: readonly unknown[]; ReturnType: RawNews }

/**
 * Receives the notifications of the bundles on viem's WebSocket or Unix socket.
 *
 * viem sends the body of each entry of `subscriptions` again when it has reconnected. The body here is a
 * `presim_rewatch` from the last snapshot that was read, so the notifications continue after it.
 */
async function follow(client: AnyClient, bundles: readonly WatchedBundle[], block: 'pending' | 'latest', feed: Sink<WatchNews>): Promise<Close> {
  const rpc: RpcClient = await client.transport['getRpcClient']()
  let begun = await begin(client, bundles, block, feed)
  let progress = new Progress(begun.id)
  let isResumed = false
  let retries = 0
  let timer: ReturnType<typeof setTimeout> | undefined

  const entry = {
    get body() {
      return { method: 'presim_rewatch', params: [begun.watch, numberToHex(progress.last)] }
    },
    onResponse(message: Message) {
      if (feed.isEnded()) return
      if (message.method === 'eth_subscription') {
        // What arrives before the answer of `presim_rewatch` is also in that answer.
        const news = message.params?.result
        if (isResumed && news) push(progress.notification(news))
      } else if (message.result) {
        isResumed = true
        retries = 0
        rpc.subscriptions.set(begun.watch, entry)
        push(progress.changes(message.result))
      } else if (message.error) onRejected(message.error)
    },
  }
  // viem sends an entry without a body never again, and removes it only when it gives the connection up.
  const connection = {
    onResponse: () => {},
    onError(cause?: unknown) {
      isResumed = false
      progress.interrupt()
      queueMicrotask(() => {
        if (!rpc.subscriptions.has(key)) feed.fail(cause instanceof BaseError ? cause : new SocketClosedError({ url: rpc.url }))
        // viem has removed it to send it again, and the new connection was cut before the answer.
        else if (!rpc.subscriptions.has(begun.watch)) rpc.subscriptions.set(begun.watch, entry)
      })
    },
  }
  const key = `presim ${begun.watch}`
  const push = (news: WatchNews | undefined) => news && feed.push(news)
  const resume = () => rpc.request({ body: entry.body, onResponse: entry.onResponse })
  const restart = async () => {
    rpc.subscriptions.delete(begun.watch)
    begun = await begin(client, bundles, block, feed)
    progress = new Progress(begun.id)
    rpc.subscriptions.set(begun.watch, entry)
    resume()
  }
  const onRejected = (error: NonNullable<Message['error']>) => {
    if (error.code === UNKNOWN) restart().catch((cause: unknown) => feed.fail(cause))
    else if (PASSING.includes(error.code) && retries < RETRIES) timer = setTimeout(() => isResumed || resume(), RETRY_PAUSE * 2 ** retries++)
    else feed.fail(toPresimError('presim_rewatch', new RpcRequestError({ body: entry.body, error, url: rpc.url })))
  }

  rpc.subscriptions.set(key, connection)
  rpc.subscriptions.set(begun.watch, entry)
  resume()
  return async () => {
    clearTimeout(timer)
    rpc.subscriptions.delete(key)
    rpc.subscriptions.delete(begun.watch)
    await end(client, begun.watch)
  }
}
