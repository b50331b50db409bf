// hardhat's own network as a fork of a presim --testing: PRESIM_TESTING_URL is the node's URL.
const assert = require('node:assert')
const { network } = require('hardhat')

const whale = '0x00000000000000000000000000000000000ba1e0'
const proxy = '0x4e59b44847b379578588920ca78fbf26c0b4956c'
const call = (method, ...params) => network.provider.request({ method, params })
const ask = async (method, ...params) => {
  const body = JSON.stringify({ jsonrpc: '2.0', id: 1, method, params })
  const headers = { 'content-type': 'application/json' }
  return (await (await fetch(process.env.PRESIM_TESTING_URL, { method: 'POST', headers, body })).json()).result
}

async function main() {
  await ask('anvil_setBalance', whale, '0x1234')
  await ask('anvil_mine')
  const forking = { jsonRpcUrl: process.env.PRESIM_TESTING_URL }
  await call('hardhat_reset', { forking })
  assert.equal(await call('eth_blockNumber'), await ask('eth_blockNumber'))
  assert.equal(await call('eth_getBalance', whale, 'latest'), '0x1234')
  assert.equal(await call('eth_getCode', proxy, 'latest'), await ask('eth_getCode', proxy, 'latest'))
  const [sender] = await call('eth_accounts')
  const sent = await call('eth_sendTransaction', { from: sender, to: whale, value: '0x1' })
  assert.equal((await call('eth_getTransactionReceipt', sent)).status, '0x1')
  assert.equal(await call('eth_getBalance', whale, 'latest'), '0x1235')
  assert.equal(await ask('eth_getBalance', whale, 'latest'), '0x1234')
  console.log('hardhat: its network is a fork of presim')
}

main().catch((error) => {
  console.error(error)
  process.exit(1)
})
