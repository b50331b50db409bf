import type { Account, Chain, Client, Transport } from 'viem'
import { decode, encode } from './codec.js'
import { toPresimError } from './errors.js'
import { methods, type PresimMethods } from './generated.js'

/** Any client of viem. */
export type AnyClient = Client<Transport, Chain | undefined, Account | undefined>

type Options = { retryCount?: number; signal?: AbortSignal }

/** Calls a method, and returns its result with `bigint`. A block that is left out is `pending`. */
export async function call<const name extends keyof PresimMethods>(
  client: AnyClient,
  name: name,
  args: Parameters<PresimMethods[name]>,
  options?: Options,
): Promise<Awaited<ReturnType<PresimMethods[name]>>> {
  const { method, params, result } = methods[name]
  const values = params.map((param, index) => args[index] ?? (param === 'block' ? 'pending' : undefined))
  while (values.length > 0 && values.at(-1) === undefined) values.pop()
  try {
    const answer = await client.request<Untyped>({ method, params: values.map(encode) }, options)
    return decode(result, answer) as Awaited<ReturnType<PresimMethods[name]>>
  } catch (error) {
    throw toPresimError(method, error)
  }
}

/** The request of a method that viem does not know. */
type Untyped = { Method: string; Parameters: readonly unknown[]; ReturnType: unknown }
