import { WebSocket } from 'isows'
import { RpcRequestError, SocketClosedError, TimeoutError, WebSocketRequestError } from 'viem'
import { toPresimError } from './errors.js'

type Failure = { code: number; message: string; data?: unknown }
type Message = { id?: number; result?: unknown; error?: Failure; params?: { result?: unknown } }
type Options = { timeout?: number; onResult?: (result: unknown) => void }
type Pending = { resolve(result: unknown): void; reject(error: unknown): void }

/** Milliseconds that an answer may take. As viem's. */
const TIMEOUT_MS = 10_000

/**
 * A WebSocket of JSON-RPC that ends once. viem's own connects again by itself, but stops after an attempt that fails,
 * and sends subscriptions again from their beginning.
 */
export class RpcSocket {
  /** Receives the results of notifications. */
  onNotification: (result: unknown) => void = () => {}
  /** Rejects when the connection has ended. */
  readonly ended: Promise<never>
  readonly #socket: WebSocket
  readonly #url: string
  readonly #pending = new Map<number, Pending>()
  readonly #keepAlive: ReturnType<typeof setInterval>
  #id = 0
  #reject: (error: unknown) => void = () => {}

  private constructor(socket: WebSocket, url: string, keepAlive: number) {
    this.#socket = socket
    this.#url = url
    this.ended = new Promise((_, reject) => (this.#reject = reject))
    this.ended.catch(() => {})
    socket.onmessage = ({ data }) => this.#onMessage(JSON.parse(String(data)) as Message)
    socket.onclose = () => this.#end(new SocketClosedError({ url }))
    socket.onerror = () => this.#end(new SocketClosedError({ url }))
    // A connection that was lost without notice answers nothing. It is given half of the interval.
    const check = () =>
      this.request('net_version', [], { timeout: keepAlive / 2 }).catch((error: unknown) => this.#end(error))
    this.#keepAlive = setInterval(check, keepAlive)
  }

  /** Opens a connection, which is checked each `keepAlive` milliseconds. */
  static open(url: string, keepAlive: number): Promise<RpcSocket> {
    const socket = new WebSocket(url)
    return new Promise((resolve, reject) => {
      const fail = (event: object) => {
        const message = 'message' in event ? String(event.message) : ''
        reject(new WebSocketRequestError({ url, details: message || 'The connection failed.' }))
      }
      socket.onopen = () => resolve(new RpcSocket(socket, url, keepAlive))
      socket.onerror = fail
      socket.onclose = fail
    })
  }

  /** Calls a method. `onResult` runs before any message that follows the answer. */
  request(
    method: string,
    params: readonly unknown[],
    { timeout = TIMEOUT_MS, onResult }: Options = {},
  ): Promise<unknown> {
    const id = this.#id++
    const body = { method, params }
    if (this.#socket.readyState !== this.#socket.OPEN) return Promise.reject(new SocketClosedError({ url: this.#url }))
    return new Promise((resolve, reject) => {
      const timer = setTimeout(
        () => settle(() => reject(new TimeoutError({ body: { ...body }, url: this.#url }))),
        timeout,
      )
      const settle = (settled: () => void) => {
        clearTimeout(timer)
        this.#pending.delete(id)
        settled()
      }
      const toError = (error: unknown) =>
        error instanceof Error
          ? error
          : toPresimError(method, new RpcRequestError({ body, error: error as Failure, url: this.#url }))
      this.#pending.set(id, {
        resolve: (result) =>
          settle(() => {
            onResult?.(result)
            resolve(result)
          }),
        reject: (error) => settle(() => reject(toError(error))),
      })
      this.#socket.send(JSON.stringify({ jsonrpc: '2.0', id, ...body }))
    })
  }

  close(): void {
    this.#end(new SocketClosedError({ url: this.#url }))
  }

  #onMessage({ id, result, error, params }: Message): void {
    if (id === undefined) return this.onNotification(params?.result)
    const pending = this.#pending.get(id)
    if (error) pending?.reject(error)
    else pending?.resolve(result)
  }

  #end(error: unknown): void {
    clearInterval(this.#keepAlive)
    this.#socket.onclose = null
    this.#socket.onmessage = null
    this.#socket.onerror = () => {} // A socket that has no listener for an error throws it.
    this.#socket.close()
    for (const { reject } of [...this.#pending.values()]) reject(error)
    this.#reject(error)
  }
}
