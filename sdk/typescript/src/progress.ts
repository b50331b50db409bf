import type { Hex } from 'viem'
import { decode } from './codec.js'
import type { BehindBundle, ChangedAnswer, Changes } from './generated.js'

/** News of standing bundles. */
export type WatchNews =
  | {
      /**
       * The bundles were created: at the beginning, and again if the node had forgotten them, because it was started
       * again or the connection was lost for longer than it keeps bundles. Answers from before are void.
       */
      readonly kind: 'begun'
      /** The name of the bundles on the node. */
      readonly watch: Hex
      /** The snapshot after which changes are reported. */
      readonly id: bigint
    }
  | {
      /**
       * `snapshot`: all news of one snapshot. `late`: answers that arrived after the news of their snapshot. `changes`:
       * the changes of one or more snapshots together, after a reconnect or from a poll; each answer that is newer
       * than `id` has its own.
       */
      readonly kind: 'snapshot' | 'late' | 'changes'
      /** The snapshot for which the answers hold. */
      readonly id: bigint
      /** The block being built. With `latest` the sealed block on which the bundles ran. */
      readonly blockNumber?: bigint | undefined
      readonly timestamp?: bigint | undefined
      readonly baseFeePerGas?: bigint | undefined
      /** The answers that differ from before. */
      readonly changed: readonly ChangedAnswer[]
      /** The bundles whose answers hold only up to an earlier snapshot. */
      readonly behind: readonly BehindBundle[]
    }

/** The result of `presim_rewatch` and `presim_results`, and a notification, as JSON-RPC has them. */
export type RawNews = {
  id: Hex
  changed: ({ name: string } & Record<string, unknown>)[]
  behind: unknown[]
  part?: number
  last?: boolean
  late?: boolean
}

/**
 * The position up to which a client has read the news of its bundles.
 *
 * A connection that was cut in the middle of a snapshot's parts leaves no trace: their snapshot counts as read with its
 * last part. `presim_rewatch` and `presim_results` may list an answer that was read before; it is left out here.
 */
export class Progress {
  /** The last snapshot of which all news were read. */
  last: bigint
  #parts: RawNews[] = []
  /** The answers read since, by bundle. A call with `last` may list them again. */
  readonly #listed = new Map<string, string>()

  constructor(begun: bigint) {
    this.last = begun
  }

  /** Forgets the parts of a snapshot whose last part has not arrived. */
  interrupt(): void {
    this.#parts = []
  }

  /** Takes the result of `presim_rewatch` or `presim_results`. Returns the part of it that is new. */
  changes(raw: RawNews): WatchNews | undefined {
    const changed = this.#unread(raw.changed)
    const id = BigInt(raw.id)
    if (id <= this.last && changed.length === 0) return undefined
    this.#advance(id)
    this.#list(raw.changed)
    return toNews('changes', { ...raw, changed })
  }

  /** Takes a notification. Returns the news of its snapshot if it is the last part, or its late answers. */
  notification(raw: RawNews): WatchNews | undefined {
    if (raw.late) {
      this.#list(raw.changed)
      return toNews('late', raw)
    }
    if (raw.part === 0) this.#parts = []
    this.#parts.push(raw)
    if (!raw.last) return undefined
    const parts = this.#parts
    this.#parts = []
    const id = BigInt(raw.id)
    if (id <= this.last) return undefined
    const changed = this.#unread(parts.flatMap((part) => part.changed))
    this.#advance(id)
    return toNews('snapshot', { ...raw, changed, behind: parts.flatMap((part) => part.behind) })
  }

  #advance(id: bigint): void {
    if (id <= this.last) return
    this.last = id
    this.#listed.clear()
  }

  #list(changed: RawNews['changed']): void {
    for (const answer of changed) this.#listed.set(answer.name, textOf(answer))
  }

  #unread(changed: RawNews['changed']): RawNews['changed'] {
    return changed.filter((answer) => this.#listed.get(answer.name) !== textOf(answer))
  }
}

const textOf = ({ result, error, below }: RawNews['changed'][number]) => JSON.stringify([result, error, below])

function toNews(kind: 'snapshot' | 'late' | 'changes', raw: RawNews): WatchNews {
  const { id, blockNumber, timestamp, baseFeePerGas, changed, behind } = decode('Changes', raw) as Changes
  return { kind, id, blockNumber, timestamp, baseFeePerGas, changed, behind }
}
