// The helpers of hardhat-network-helpers 3.x, all of them, on presim --testing. PRESIM_TESTING_URL is the node's URL. hardhat 3 itself,
// which only makes the connection, is left out: it needs a newer node than Debian has.
import claims from '../hardhat/claims.cjs'
import { NetworkHelpers } from './node_modules/@nomicfoundation/hardhat-network-helpers/dist/src/internal/network-helpers/network-helpers.js'

const url = process.env.PRESIM_TESTING_URL
async function request({ method, params }) {
  const body = JSON.stringify({ jsonrpc: '2.0', id: 1, method, params })
  const answer = await (await fetch(url, { method: 'POST', headers: { 'content-type': 'application/json' }, body })).json()
  if (answer.error) throw Object.assign(new Error(answer.error.message), answer.error)
  return answer.result
}

const helpers = new NetworkHelpers({ provider: { request }, networkName: 'presim' })
await claims(helpers, (method, ...params) => request({ method, params }))
console.log('hardhat 3: all claims of its helpers hold')
