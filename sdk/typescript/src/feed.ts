/** Ends what a feed has opened. */
export type Close = () => Promise<void>

/** Where items are pushed. */
export type Sink<T> = Pick<Feed<T>, 'push' | 'fail' | 'isEnded'>

/**
 * An async iterator over items that are pushed. It opens with the first `next`, and holds items until they are read.
 *
 * `return` ends it at once, even while a `next` waits, which an async generator would not do.
 */
export class Feed<T> implements AsyncIterableIterator<T> {
  readonly #open: (feed: Feed<T>) => Promise<Close>
  readonly #items: T[] = []
  readonly #waiting: { resolve(result: IteratorResult<T, undefined>): void; reject(error: unknown): void }[] = []
  readonly #detach: () => void
  #opened: Promise<Close> | undefined
  #failure: { error: unknown } | undefined
  #isEnded = false

  constructor(open: (feed: Feed<T>) => Promise<Close>, signal?: AbortSignal | undefined) {
    this.#open = open
    if (signal?.aborted) this.#isEnded = true
    const end = () => void this.return()
    signal?.addEventListener('abort', end)
    this.#detach = () => signal?.removeEventListener('abort', end)
  }

  /** Whether nothing more is read. */
  isEnded(): boolean {
    return this.#isEnded
  }

  push(item: T): void {
    if (this.#isEnded) return
    const next = this.#waiting.shift()
    if (next) next.resolve({ done: false, value: item })
    else this.#items.push(item)
  }

  /** Ends the iteration with an error, after the items that were pushed. */
  fail(error: unknown): void {
    if (this.#isEnded) return
    this.#isEnded = true
    const next = this.#waiting.shift()
    if (next) next.reject(error)
    else this.#failure = { error }
    this.#release()
  }

  next(): Promise<IteratorResult<T, undefined>> {
    const item = this.#items.shift()
    if (item !== undefined) return Promise.resolve({ done: false, value: item })
    const failure = this.#failure
    this.#failure = undefined
    if (failure) return Promise.reject(failure.error)
    if (this.#isEnded) return Promise.resolve({ done: true, value: undefined })
    return new Promise((resolve, reject) => {
      this.#waiting.push({ resolve, reject })
      this.#opened ??= this.#open(this)
      this.#opened.catch((error: unknown) => this.fail(error))
    })
  }

  async return(): Promise<IteratorResult<T, undefined>> {
    this.#isEnded = true
    this.#items.length = 0
    this.#failure = undefined
    this.#release()
    const opened = this.#opened
    this.#opened = undefined
    const close = await opened?.catch(() => undefined)
    await close?.()
    return { done: true, value: undefined }
  }

  [Symbol.asyncIterator](): this {
    return this
  }

  #release(): void {
    this.#detach()
    for (const { resolve } of this.#waiting.splice(0)) resolve({ done: true, value: undefined })
  }
}
