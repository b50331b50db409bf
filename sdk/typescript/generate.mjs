// Writes src/generated.ts from the OpenRPC document of a presim binary:
// npm run generate -- PATH_OF_PRESIM [FILE]
// Without the second argument the file is src/generated.ts.
import { execFileSync } from 'node:child_process'
import { writeFileSync } from 'node:fs'
import { fileURLToPath } from 'node:url'

/** @typedef {Record<string, any>} Schema */
/** @typedef {import('./src/codec.js').Shape} Shape */

/** Named schemas that are one value in TypeScript. `bigint` is written as a hex quantity, and read from one. */
const SCALARS = /** @type {Record<string, string>} */ ({
  Quantity: 'bigint',
  SignedNumber: 'bigint',
  Number: 'bigint | number',
  TransactionType: 'bigint | number',
  TransactionIndex: 'number',
  Address: 'Address',
  Hash: 'Hash',
  Bytes: 'Hex',
  Word: 'Hex',
  WatchId: 'Hex',
})

/** Strings of results that are numbers, but have no schema of their own. */
const NUMBERS = [
  'AskedBatch.dataFees',
  'AskedBatch.mostFees',
  'AskedCall.value',
  'AssetChange.change',
  'BalanceDifference.change',
  'CoinbaseIncome.transfers',
  'FoundVariant.objective',
  'StandingSummary.holdsAt',
  'StandingSummary.objective',
]

const presim = process.argv[2]
if (!presim) throw new Error('usage: npm run generate -- PATH_OF_PRESIM [FILE]')
const target = process.argv[3] ?? fileURLToPath(new URL('src/generated.ts', import.meta.url))

const document = JSON.parse(execFileSync(presim, ['print', 'openrpc'], { encoding: 'utf8', maxBuffer: 1 << 26 }))
/** @type {Record<string, Schema>} */
const schemas = document.components.schemas
/** @type {{ name: string, summary: string, params: Schema[], result: Schema }[]} */
const methods = document.methods.filter((/** @type {Schema} */ { name }) => name.startsWith('presim_'))

const referenced = (/** @type {Schema} */ schema) => schema.$ref?.replace('#/components/schemas/', '')
const isNull = (/** @type {Schema} */ schema) => schema.type === 'null'
const alternatives = (/** @type {Schema} */ schema) => schema.anyOf ?? schema.oneOf ?? []
/** Whether a schema has null among its values. */
const isNullable = (/** @type {Schema | true} */ schema) =>
  schema !== true && (alternatives(schema).some(isNull) || (Array.isArray(schema.type) && schema.type.includes('null')))

/** Adds the names of the schemas that a part of the document refers to. */
function collect(/** @type {any} */ part, /** @type {Set<string>} */ names) {
  if (part === null || typeof part !== 'object') return names
  const name = referenced(part)
  if (name && !names.has(name)) collect(schemas[name], names.add(name))
  for (const [key, value] of Object.entries(part)) if (key !== 'examples') collect(value, names)
  return names
}
const inputs = collect(
  methods.map(({ params }) => params),
  new Set(),
)
const outputs = collect(
  methods.map(({ result }) => result),
  new Set(),
)
const names = [...new Set([...inputs, ...outputs])].sort()

const unused = new Set(NUMBERS)
const isNumber = (/** @type {string} */ path) => NUMBERS.includes(path) && (unused.delete(path), true)

/** Returns a comment with the description of a schema. */
const comment = (/** @type {string | undefined} */ text, indent = '') =>
  text
    ? `${indent}/** ${text
        .replaceAll('*/', '* /')
        .split(/\s*\n\s*/)
        .join(`\n${indent} *  `)} */\n`
    : ''

const union = (/** @type {string[]} */ types) => [...new Set(types)].join(' | ')

/** Returns the type of an object's fields. A field that may be null or absent is optional. */
function fieldsOf(/** @type {Schema} */ schema, /** @type {string} */ path, indent = '') {
  const fields = Object.entries(schema.properties).map(([name, field]) => {
    const isOptional = !schema.required?.includes(name) || isNullable(field)
    // Only a field whose default is null means something else if it is null.
    const may = field.default === null ? ' | null' : ''
    const type = typeOf(field, `${path}.${name}`, `${indent}  `)
    return `${comment(field.description, `${indent}  `)}${indent}  ${name}${isOptional ? '?' : ''}: ${type}${may}${isOptional ? ' | undefined' : ''}\n`
  })
  return `{\n${fields.join('')}${indent}}`
}

/** Returns the TypeScript type of a schema, without null. */
function typeOf(/** @type {Schema | true} */ schema, /** @type {string} */ path, indent = '') {
  if (schema === true) return 'unknown'
  const name = referenced(schema)
  if (name) return SCALARS[name] ?? name
  if (isNumber(path)) return 'bigint'
  const all = (schema.allOf ?? []).map((/** @type {Schema} */ part) => typeOf(part, path, indent))
  const any = alternatives(schema).filter((/** @type {Schema} */ one) => !isNull(one))
  if (any.length) all.push(union(any.map((/** @type {Schema} */ one) => typeOf(one, path, indent))))
  if ('const' in schema) all.push(JSON.stringify(schema.const))
  else if (schema.enum) all.push(union(schema.enum.map((/** @type {unknown} */ value) => JSON.stringify(value))))
  else if (schema.properties && schema.additionalProperties === true)
    all.push(`${fieldsOf(schema, path, indent)} & { [key: string]: unknown }`)
  else if (schema.properties) all.push(fieldsOf(schema, path, indent))
  else if (schema.patternProperties) {
    const [pattern, ...more] = Object.keys(schema.patternProperties)
    if (!pattern || pattern !== schemas.Address?.pattern || more.length)
      throw new Error(`${path}: keys other than addresses`)
    all.push(`{ [address: Address]: ${typeOf(schema.patternProperties[pattern], path, indent)} }`)
  } else if (schema.additionalProperties)
    all.push(`{ [key: string]: ${typeOf(schema.additionalProperties, path, indent)} }`)
  else {
    const type = [schema.type].flat().find((one) => one !== 'null')
    if (type === 'array') {
      const item = typeOf(schema.items, path, indent)
      all.push(`readonly ${/ [|&] /.test(item) ? `(${item})` : item}[]`)
    } else if (type === 'integer' || type === 'number') all.push('number')
    else if (type === 'string' || type === 'boolean') all.push(type)
    else if (type !== 'object' && !all.length) throw new Error(`${path}: no type for ${JSON.stringify(schema)}`)
  }
  return all.length > 1
    ? all.map((/** @type {string} */ type) => (type.includes(' | ') ? `(${type})` : type)).join(' & ')
    : all[0]
}

/** Merges the shapes of a union or an intersection. */
function merge(/** @type {Shape[]} */ shapes, /** @type {string} */ path) {
  /** @type {Record<string, any>} */
  const merged = {}
  const set = (/** @type {Record<string, any>} */ target, /** @type {string} */ key, /** @type {unknown} */ value) => {
    if (key in target && JSON.stringify(target[key]) !== JSON.stringify(value))
      throw new Error(`${path}: ${key} has two shapes`)
    target[key] = value
  }
  for (const shape of shapes) {
    for (const [key, value] of Object.entries((typeof shape === 'string' ? shapeOfNamed(shape) : shape) ?? {})) {
      if (key !== 'fields') set(merged, key, value)
      else {
        merged.fields ??= {}
        for (const [field, shape] of Object.entries(value)) set(merged.fields, field, shape)
      }
    }
  }
  return merged
}

/**
 * Returns the part of a schema that matters to a reader: where numbers are, and objects, whose nulls are left out.
 * @returns {Shape | undefined}
 */
function shapeOf(/** @type {Schema | true} */ schema, /** @type {string} */ path) {
  if (schema === true) return undefined
  const name = referenced(schema)
  if (name)
    return name in SCALARS || name === 'CallError'
      ? shapeOfNamed(name)
      : schemas[name]?.type === 'string' || schemas[name]?.enum
        ? undefined
        : name
  if (isNumber(path)) return { text: /** @type {const} */ ('bigint') }
  /** @type {Shape[]} */
  const shapes = []
  for (const part of [...(schema.allOf ?? []), ...alternatives(schema)]) {
    const shape = shapeOf(part, path)
    if (shape) shapes.push(shape)
  }
  if (shapes.length === 1 && !schema.properties) return shapes[0]
  if (schema.properties) {
    /** @type {Record<string, Shape>} */
    const fields = {}
    for (const [name, field] of Object.entries(schema.properties)) {
      const shape = shapeOf(field, `${path}.${name}`)
      if (shape) fields[name] = shape
    }
    shapes.push({ fields })
  } else if (schema.additionalProperties) {
    const map = shapeOf(schema.additionalProperties, path)
    if (map) shapes.push({ map })
  }
  if (schema.items) {
    const list = shapeOf(schema.items, path)
    if (list) shapes.push({ list })
  }
  return shapes.length ? merge(shapes, path) : undefined
}

/**
 * Returns the shape of a named schema.
 * @returns {Shape | undefined}
 */
function shapeOfNamed(/** @type {string} */ name) {
  if (name === 'CallError') return { text: /** @type {const} */ ('error'), fields: {} }
  if (name in SCALARS)
    return SCALARS[name]?.startsWith('bigint') ? { text: /** @type {const} */ ('bigint') } : undefined
  const schema = schemas[name]
  if (!schema) throw new Error(`${name}: no such schema`)
  return shapeOf(schema, name)
}

const camel = (/** @type {string} */ name) => name.replace(/_(.)/g, (_, letter) => letter.toUpperCase())

const types = names
  .filter((name) => name !== 'CallError' && !(name in SCALARS))
  .map((name) => {
    const schema = /** @type {Schema} */ (schemas[name])
    const note = comment(schema.description)
    const type = typeOf(schema, name)
    return type.startsWith('{\n') && type.lastIndexOf('\n}') === type.length - 2
      ? `${note}export interface ${name} ${type}\n`
      : `${note}export type ${name} = ${type}\n`
  })
const shapes = [...outputs]
  .sort()
  .filter((name) => !(name in SCALARS) && name !== 'CallError')
  .flatMap((name) => {
    const shape = shapeOfNamed(name)
    return shape ? `  ${name}: ${JSON.stringify(shape)},\n` : []
  })
const actions = methods.map(({ name, summary, params, result }) => {
  const list = params.map(
    ({ name, required, schema }) =>
      `${camel(name)}${!required || isNullable(schema) ? '?' : ''}: ${typeOf(schema, name)}`,
  )
  const type = `${typeOf(result.schema, name)}${isNullable(result.schema) ? ' | null' : ''}`
  return `${comment(summary, '  ')}  ${camel(name)}(${list.join(', ')}): Promise<${type}>\n`
})
const table = methods.map(({ name, params, result }) => {
  const shape = shapeOf(result.schema, name)
  return `  ${camel(name)}: { method: '${name}', params: ${JSON.stringify(params.map(({ name }) => name))}, result: ${JSON.stringify(shape ?? {})} },\n`
})
if (unused.size) throw new Error(`the document no longer has ${[...unused].join(', ')}`)

writeFileSync(
  target,
  `// Written by \`npm run generate\` from the OpenRPC document of presim. Do not edit.
import type { Address, Hash, Hex } from 'viem'
import type { CallError, Shape } from './codec.js'

${types.join('\n')}
/** The methods of a node whose names begin with \`presim_\`. */
export interface PresimMethods {
${actions.join('')}}

/** The name of each method in JSON-RPC, the names of its parameters, and the shape of its result. */
export const methods = {
${table.join('')}} as const satisfies Record<keyof PresimMethods, { method: string; params: readonly string[]; result: Shape }>

/** The shapes of the results, by the names of their types. */
export const shapes: { readonly [name: string]: Shape } = {
${shapes.join('')}}
`,
)
