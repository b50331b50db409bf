import { type Hex, numberToHex } from 'viem'
import { shapes } from './generated.js'

/** The reason why a simulated call has failed. Only nodes that are asked at `/standard` give a code and data. */
export interface CallError {
  message: string
  code?: number | undefined
  data?: Hex | undefined
}

/**
 * Where the numbers of a result are. A name is a key of `shapes`.
 *
 * `text` applies to a string, `list` to the elements of an array, `fields` and `map` to the members of an object.
 * Members that are null are left out. A value without a shape is returned as it is.
 */
export type Shape =
  | string
  | {
      readonly text?: 'bigint' | 'error'
      readonly list?: Shape
      readonly fields?: { readonly [name: string]: Shape }
      readonly map?: Shape
    }

/** Returns a result of JSON-RPC with its numbers as `bigint`. */
export function decode(shape: Shape | undefined, value: unknown): unknown {
  if (shape === undefined) return value
  const { text, list, fields, map } = typeof shape === 'string' ? inner(shape) : shape
  if (typeof value === 'string') {
    if (text === 'bigint') return BigInt(value)
    return text === 'error' ? { message: value } : value
  }
  if (Array.isArray(value)) return list ? value.map((item) => decode(list, item)) : value
  if (value === null || typeof value !== 'object' || !(fields || map)) return value
  const members = Object.entries(value).filter(([, member]) => member !== null)
  return Object.fromEntries(members.map(([name, member]) => [name, decode(fields?.[name] ?? map, member)]))
}

/** Returns a parameter as JSON-RPC has it: a `bigint` as a quantity, or in decimal if it is negative. */
export function encode(value: unknown): unknown {
  if (typeof value === 'bigint') return value < 0n ? value.toString() : numberToHex(value)
  if (Array.isArray(value)) return value.map(encode)
  if (value === null || typeof value !== 'object') return value
  return Object.fromEntries(Object.entries(value).map(([name, member]) => [name, encode(member)]))
}

function inner(name: string): Exclude<Shape, string> {
  const shape = shapes[name]
  if (shape === undefined) return {}
  return typeof shape === 'string' ? inner(shape) : shape
}
