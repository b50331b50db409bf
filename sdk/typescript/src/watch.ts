import { type Hex, WebSocketRequestError, type WebSocketTransport, numberToHex } from 'viem'
import { decode, encode } from './codec.js'
import { PresimError, toPresimError } from './errors.js'
import { type Close, Feed, type Sink } from './feed.js'
import type { Begun, Every, Found, RunError, SearchPayload, WatchedBundle } from './generated.js'
import { Progress, type RawNews, type WatchNews } from './progress.js'
import type { AnyClient } from './request.js'
import { RpcSocket } from './socket.js'

export type WatchOptions = {
  /** The snapshots on which the bundles run: `pending` (the default) for each sub-block, `latest` for each block. */
  block?: 'pending' | 'latest' | undefined
  /**
   * The number of attempts in a row to open a lost connection again, after which the iteration ends with an error, and
   * the pause between two attempts in milliseconds. By default 300 times with pauses of a second: the node keeps bundles for five minutes.
   */
  reconnect?: { attempts?: number | undefined; delay?: number | undefined } | undefined
  /** Milliseconds between two checks whether a WebSocket still answers. 30,000 by default. */
  keepAlive?: number | undefined
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

/** Watches bundles until the iteration ends. See `PresimActions.watch`. */
export function watch(
  client: AnyClient,
  bundles: readonly WatchedBundle[],
  options: WatchOptions = {},
): AsyncIterableIterator<WatchNews> {
  return new Feed<WatchNews>((feed) => open(client, bundles, options, feed), options.signal)
}

/** Repeats a search until the iteration ends. See `PresimActions.search`. */
export function search(
  client: AnyClient,
  payload: SearchPayload,
  options: SearchOptions = {},
): AsyncIterableIterator<SearchNews> {
  const { above, every, ...rest } = options
  const bundle = { name: 'search', search: payload, every, only: above === undefined ? undefined : { above } }
  const push = (feed: Feed<SearchNews>, news: WatchNews) => {
    if (news.kind === 'begun') return
    for (const { id = news.id, blockNumber = news.blockNumber, result, error } of news.changed) {
      feed.push({ id, blockNumber, found: result && 'best' in result ? result : null, error })
    }
  }
  return new Feed<SearchNews>(
    (feed) =>
      open(client, [bundle], rest, {
        push: (news) => push(feed, news),
        fail: (error) => feed.fail(error),
        isEnded: () => feed.isEnded(),
      }),
    options.signal,
  )
}

/** A connection over which the news of bundles are received. */
type Connection = {
  request(method: string, params: readonly unknown[]): Promise<unknown>
  /** Passes on what follows after `progress.last`, until the connection is lost. */
  receive(watch: Hex, progress: Progress, push: (news: WatchNews | undefined) => void): Promise<never>
  /** Ends the connection. */
  close(): void
}

/** Codes after which a request is repeated: an overload, a deadline, an internal error. */
const PASSING = [-32005, -32016, -32603]
/** The code of `presim_rewatch` and `presim_results` if the node does not know the bundles. */
const UNKNOWN = -32000
/** Milliseconds that a poll waits for a change. Less than viem's usual time-out of a request. */
const POLL_MS = 5_000

/** Creates bundles, and passes on their news. Connects again when the connection is lost. */
async function open(
  client: AnyClient,
  bundles: readonly WatchedBundle[],
  options: WatchOptions,
  sink: Sink<WatchNews>,
): Promise<Close> {
  const { block = 'pending', keepAlive = 30_000, reconnect: { attempts = 300, delay = 1_000 } = {} } = options
  const stop = new AbortController()
  const url = await urlOfSocket(client)
  const connect = async () => (url === undefined ? overTransport(client, stop.signal) : overSocket(url, keepAlive))
  let connection = await connect()
  let begun: Begun | undefined
  let progress = new Progress(0n)
  let failures = 0

  const begin = async () => {
    begun = decode('Begun', await connection.request('presim_watch', [encode(bundles), block])) as Begun
    progress = new Progress(begun.id)
    sink.push({ kind: 'begun', ...begun })
    return begun
  }
  const push = (news: WatchNews | undefined) => {
    failures = 0
    if (news) sink.push(news)
  }
  const run = async () => {
    while (!sink.isEnded()) {
      try {
        await connection.receive((begun ?? (await begin())).watch, progress, push)
      } catch (error) {
        if (sink.isEnded()) return
        const code = error instanceof PresimError ? error.code : undefined
        if (code === UNKNOWN) begun = undefined
        else if (code !== undefined && !PASSING.includes(code)) throw error
        if (failures === attempts) throw error
      }
      connection.close()
      // The first attempt is made at once.
      if (failures++ > 0) await pause(delay, stop.signal)
      await connect().then(
        (again) => (connection = again),
        () => {},
      )
    }
  }
  try {
    await begin()
  } catch (error) {
    connection.close()
    throw error
  }
  run()
    .catch((error: unknown) => sink.fail(error))
    .finally(() => connection.close())
  return async () => {
    stop.abort()
    // If the node cannot be reached, it drops the bundles after a time.
    if (begun) await connection.request('presim_unwatch', [begun.watch]).catch(() => false)
    connection.close()
  }
}

/** Waits for a time, or until the signal. */
const pause = (ms: number, signal: AbortSignal) =>
  new Promise<void>((resolve) => {
    const end = () => {
      clearTimeout(timer)
      signal.removeEventListener('abort', end)
      resolve()
    }
    const timer = setTimeout(end, signal.aborted ? 0 : ms)
    signal.addEventListener('abort', end)
  })

/** Returns the URL of a transport's WebSocket, or `undefined` if it has none. */
async function urlOfSocket({ transport }: AnyClient): Promise<string | undefined> {
  if (transport.type !== 'webSocket') return undefined
  const { getRpcClient } = transport as unknown as NonNullable<ReturnType<WebSocketTransport>['value']>
  return (await getRpcClient().catch(throwAsError)).url
}

/** Throws what viem rejects with if a WebSocket does not open, which may be an event, as an error. */
function throwAsError(error: unknown): never {
  if (error instanceof Error) throw error
  const { message, target } = error as { message?: string; target?: { url?: string } }
  throw new WebSocketRequestError({ url: target?.url ?? '', details: message || 'The connection failed.' })
}

/** Polls over the transport of the client, where it has no WebSocket. */
function overTransport(client: AnyClient, signal: AbortSignal): Connection {
  const request = async (method: string, params: readonly unknown[], options = {}) => {
    try {
      // A repeated `presim_watch` would create the bundles twice.
      return await client.request<{ Method: string; Parameters: readonly unknown[]; ReturnType: unknown }>(
        { method, params },
        { retryCount: 0, ...options },
      )
    } catch (error) {
      throw toPresimError(method, error)
    }
  }
  return {
    request,
    async receive(watch, progress, push) {
      for (;;) {
        const raw = await request('presim_results', [watch, numberToHex(progress.last), POLL_MS], { signal })
        const news = progress.changes(raw as RawNews)
        push(news)
        // If nothing is new, the poll may have ended at once, because an answer is listed that was read before.
        if (!news) await pause(client.pollingInterval, signal)
      }
    },
    close() {},
  }
}

/** Opens a WebSocket for the news of one iteration. */
async function overSocket(url: string, keepAlive: number): Promise<Connection> {
  const socket = await RpcSocket.open(url, keepAlive)
  return {
    request: (method, params) => socket.request(method, params),
    async receive(watch, progress, push) {
      progress.interrupt()
      // Notifications that arrive before the answer are also in the answer.
      socket.onNotification = () => {}
      await socket.request('presim_rewatch', [watch, numberToHex(progress.last)], {
        onResult(listed) {
          socket.onNotification = (raw) => push(progress.notification(raw as RawNews))
          push(progress.changes(listed as RawNews))
        },
      })
      return socket.ended
    },
    close: () => socket.close(),
  }
}
