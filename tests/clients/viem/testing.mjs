// viem's test client, in the modes of anvil and of hardhat, against presim --testing. PRESIM_TESTING_URL is the node's URL.
import { isDeepStrictEqual } from 'node:util'
import { createTestClient, http, parseEther, publicActions, walletActions } from 'viem'
import { foundry } from 'viem/chains'

const transport = http(`${process.env.PRESIM_TESTING_URL}/standard`)
const whale = '0x00000000000000000000000000000000000ba1e0'
const other = '0x15d34AAf54267DB7D7c367839AAf71A00a2C6A65'

function claim(what, got, expected) {
  if (!isDeepStrictEqual(got, expected)) {
    console.error(`FAILED: ${what}`, { got, expected })
    process.exit(1)
  }
  console.log(`ok: ${what}`)
}

for (const mode of ['anvil', 'hardhat']) {
  const client = createTestClient({ mode, chain: foundry, transport, cacheTime: 0 }).extend(publicActions).extend(walletActions)
  const id = await client.snapshot()
  const [start, before] = [await client.getBlock(), await client.getBalance({ address: other })]
  await client.mine({ blocks: 3, interval: 12 })
  const mined = await client.getBlock()
  claim(`${mode}: mine`, mined.number >= start.number + 3n, true)

  await client.setBalance({ address: whale, value: parseEther('2') })
  await client.setCode({ address: whale, bytecode: '0x6005545f5260205ff3' })
  await client.setStorageAt({ address: whale, index: 5, value: `0x${'11'.repeat(32)}` })
  await client.setNonce({ address: whale, nonce: 77 })
  claim(`${mode}: set the balance, nonce, code and storage of an account`, [
    await client.getBalance({ address: whale }), await client.getTransactionCount({ address: whale }),
    (await client.call({ to: whale })).data,
  ], [parseEther('2'), 77, `0x${'11'.repeat(32)}`])

  await client.impersonateAccount({ address: whale })
  const hash = await client.sendTransaction({ account: whale, to: other, value: 5n })
  await client.mine({ blocks: 1 })
  claim(`${mode}: impersonateAccount`, (await client.getTransactionReceipt({ hash })).status, 'success')
  claim(`${mode}: the transfer of an impersonated account`, await client.getBalance({ address: other }), before + 5n)
  await client.stopImpersonatingAccount({ address: whale })

  const time = (await client.getBlock({ blockTag: 'pending' })).timestamp
  await client.increaseTime({ seconds: 1_000 })
  claim(`${mode}: increaseTime`, (await client.getBlock({ blockTag: 'pending' })).timestamp >= time + 1_000n, true)
  await client.setNextBlockTimestamp({ timestamp: time + 5_000n })
  await client.mine({ blocks: 1 })
  const blocks = await Promise.all([0n, 1n].map(async (back) => client.getBlock({ blockNumber: await client.getBlockNumber() - back })))
  claim(`${mode}: setNextBlockTimestamp`, blocks.some((block) => block.timestamp === time + 5_000n), true)

  await client.revert({ id })
  claim(`${mode}: revert`, [await client.getBalance({ address: whale }), await client.getBalance({ address: other })], [0n, before])
}
console.log('viem: all claims of the test client hold')
process.exit(0)
