// viem's test client, in the modes of anvil and of hardhat, against presim --testing. PRESIM_TESTING_URL is the node's URL.
import { isDeepStrictEqual } from 'node:util'
import { createTestClient, http, parseEther, publicActions, walletActions } from 'viem'
import { foundry } from 'viem/chains'

const transport = http(process.env.PRESIM_TESTING_URL)
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

  await client.setAutomine(false)
  claim(`${mode}: setAutomine, getAutomine`, await client.getAutomine(), false)
  const [sender] = await client.getAddresses()
  const send = (value) => client.sendTransaction({ account: sender, to: other, value })
  const first = await send(1n)
  claim(`${mode}: getTxpoolStatus`, await client.getTxpoolStatus(), { pending: 1, queued: 0 })
  const content = await client.getTxpoolContent()
  claim(`${mode}: getTxpoolContent`, Object.values(content.pending[sender.toLowerCase()] ?? {}).map(({ hash }) => hash), [first])
  const [line] = Object.values((await client.inspectTxpool()).pending[sender.toLowerCase()])
  claim(`${mode}: inspectTxpool`, line.includes('1 wei'), true)
  await client.dropTransaction({ hash: first })
  claim(`${mode}: dropTransaction`, await client.getTxpoolStatus(), { pending: 0, queued: 0 })
  await client.setAutomine(true)
  claim(`${mode}: a receipt that is there at once`, (await client.getTransactionReceipt({ hash: await send(2n) })).status, 'success')

  await client.setCoinbase({ address: whale })
  await client.setBlockGasLimit({ gasLimit: 20_000_000n })
  await client.setNextBlockBaseFeePerGas({ baseFeePerGas: 3_000_000_000n })
  await client.setBlockTimestampInterval({ interval: 77 })
  const parent = await client.getBlock()
  await client.mine({ blocks: 1 })
  const { miner, gasLimit, baseFeePerGas, timestamp } = await client.getBlock()
  claim(`${mode}: setCoinbase, setBlockGasLimit, setNextBlockBaseFeePerGas, setBlockTimestampInterval`,
    [miner, gasLimit, baseFeePerGas, timestamp - parent.timestamp], [whale, 20_000_000n, 3_000_000_000n, 77n])
  await client.removeBlockTimestampInterval()

  const unsigned = await client.sendUnsignedTransaction({ from: whale, to: other, value: 9n })
  claim(`${mode}: sendUnsignedTransaction`, (await client.getTransactionReceipt({ hash: unsigned })).from, whale)
  const state = await client.dumpState()
  await client.setBalance({ address: whale, value: 0n })
  await client.loadState({ state })
  claim(`${mode}: dumpState, loadState`, await client.getBalance({ address: whale }) > 0n, true)
  const priced = await client.setMinGasPrice({ gasPrice: 1n }).catch((error) => error)
  claim(`${mode}: setMinGasPrice, which is of before London`, priced.message.includes('not supported when EIP-1559 is active'), true)
  // In the mode of hardhat viem gives milliseconds, and anvil takes seconds under the same name.
  if (mode === 'anvil') {
    await client.setIntervalMining({ interval: 1 })
    const at = await client.getBlockNumber()
    const later = await new Promise((resolve) => client.watchBlockNumber({ pollingInterval: 50, onBlockNumber: (number) => number > at && resolve(number) }))
    claim(`${mode}: setIntervalMining`, later > at, true)
    await client.setIntervalMining({ interval: 0 })
    await client.setAutomine(true)
  }

  await client.revert({ id })
  claim(`${mode}: revert`, [await client.getBalance({ address: whale }), await client.getBalance({ address: other })], [0n, before])
  await client.mine({ blocks: 2 })
  await client.reset()
  claim(`${mode}: reset`, await client.getBlockNumber(), 0n)
}
console.log('viem: all claims of the test client hold')
process.exit(0)
