// Prints what two runs of viem's tests have passed, by group, and each test that one of them alone has passed:
// node compare.mjs PRESIM.json ANVIL.json
import { readFileSync } from 'node:fs'

const read = (file) => {
  const passed = new Map()
  for (const { name, assertionResults } of JSON.parse(readFileSync(file, 'utf8')).testResults) {
    const of = name.slice(name.indexOf('/actions/') + '/actions/'.length)
    for (const { fullName, status } of assertionResults) {
      if (status === 'passed' || status === 'failed') passed.set(`${of}: ${fullName}`, status === 'passed')
    }
  }
  return passed
}
const [presim, anvil] = process.argv.slice(2).map(read)
console.log('| viem | presim | anvil | of |\n|---|---:|---:|---:|')
for (const group of ['test', 'wallet', 'public']) {
  const tests = [...anvil.keys()].filter((test) => test.startsWith(`${group}/`))
  const count = (passed) => tests.filter((test) => passed.get(test)).length
  console.log(`| \`actions/${group}\` | ${count(presim)} | ${count(anvil)} | ${tests.length} |`)
}
for (const [who, passed, other] of [['anvil', anvil, presim], ['presim', presim, anvil]]) {
  for (const [test, ok] of passed) if (ok && !other.get(test)) console.log(`${who} alone: ${test}`)
}
