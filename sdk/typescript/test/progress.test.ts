import assert from 'node:assert/strict'
import { test } from 'node:test'
import { numberToHex } from 'viem'
import { Progress, type RawNews } from '../src/progress.js'

const changed = (name: string, value: number, id?: number) => ({
  name,
  ...(id === undefined ? {} : { id: numberToHex(id) }),
  result: [{ calls: [{ status: numberToHex(value) }] }],
})
const part = (id: number, part: number, last: boolean, ...answers: RawNews['changed']): RawNews => ({
  id: numberToHex(id),
  part,
  last,
  changed: answers,
  behind: [],
})
const listed = (id: number, ...answers: RawNews['changed']): RawNews => ({
  id: numberToHex(id),
  changed: answers,
  behind: [],
})
const names = (news: ReturnType<Progress['changes']>) =>
  news && news.kind !== 'begun' ? [news.kind, news.id, ...news.changed.map(({ name }) => name)] : undefined

test('the parts of a snapshot are one item', () => {
  const progress = new Progress(4n)
  assert.equal(progress.notification(part(5, 0, false, changed('a', 1))), undefined)
  assert.equal(progress.last, 4n)
  const behind = [{ name: 'c', id: null }]
  const news = progress.notification({ ...part(5, 1, true, changed('b', 1)), behind })
  assert.deepEqual(names(news), ['snapshot', 5n, 'a', 'b'])
  assert.deepEqual(news?.kind === 'snapshot' && news.behind, [{ name: 'c' }])
  assert.equal(progress.last, 5n)
})

test('parts whose end was cut off are read from the list alone', () => {
  const progress = new Progress(4n)
  progress.notification(part(5, 0, false, changed('a', 1)))
  progress.interrupt()
  assert.deepEqual(names(progress.changes(listed(5, changed('a', 1, 5), changed('b', 2, 5)))), [
    'changes',
    5n,
    'a',
    'b',
  ])
  assert.equal(progress.notification(part(5, 0, true)), undefined, 'the end of a snapshot that was listed')
  assert.deepEqual(names(progress.notification(part(6, 0, true, changed('a', 3)))), ['snapshot', 6n, 'a'])
})

test('an answer that is listed again is left out until it has changed', () => {
  const progress = new Progress(4n)
  // The list is complete up to 5, and has an answer of 6 already.
  assert.deepEqual(names(progress.changes(listed(5, changed('a', 1, 6)))), ['changes', 5n, 'a'])
  assert.equal(progress.changes(listed(5, changed('a', 1, 6))), undefined)
  assert.deepEqual(names(progress.notification(part(6, 0, true, changed('a', 1), changed('b', 1)))), [
    'snapshot',
    6n,
    'b',
  ])
  assert.deepEqual(
    names(progress.notification(part(7, 0, true, changed('a', 1)))),
    ['snapshot', 7n, 'a'],
    'it has changed in between',
  )
})

test('a late answer is not listed again', () => {
  const progress = new Progress(4n)
  progress.notification(part(5, 0, true))
  const late = { ...listed(5, changed('a', 1)), late: true }
  assert.deepEqual(names(progress.notification(late)), ['late', 5n, 'a'])
  assert.equal(progress.last, 5n)
  assert.equal(progress.changes(listed(5, changed('a', 1, 5))), undefined)
  assert.deepEqual(names(progress.changes(listed(5, changed('a', 2, 5)))), ['changes', 5n, 'a'])
})
