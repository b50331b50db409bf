// The claims of hardhat-network-helpers 1.x and 3.x: `helpers` of either, and `call` of the node that they change.
const { isDeepStrictEqual } = require('node:util')

const whale = '0x00000000000000000000000000000000000ba1e0'

function claim(what, got, expected) {
  if (!isDeepStrictEqual(got, expected)) {
    console.error(`FAILED: ${what}`, { got, expected })
    process.exit(1)
  }
  console.log(`ok: ${what}`)
}

/** Runs every helper once and more. 3.x has no `reset` and no `time.advanceBlock`. */
module.exports = async function claims(helpers, call) {
  const latest = () => call('eth_getBlockByNumber', 'latest', false)
  const start = await helpers.time.latestBlock()
  await helpers.mine(3, { interval: 15 })
  claim('mine, time.latestBlock', await helpers.time.latestBlock(), start + 3)
  await helpers.mineUpTo(start + 5)
  claim('mineUpTo', await helpers.time.latestBlock(), start + 5)
  if (helpers.time.advanceBlock) claim('time.advanceBlock', await helpers.time.advanceBlock(), start + 6)

  const before = await helpers.time.latest()
  claim('time.increase', await helpers.time.increase(helpers.time.duration.hours(1)) >= before + 3600, true)
  const target = await helpers.time.latest() + 500
  await helpers.time.increaseTo(target)
  claim('time.increaseTo', await helpers.time.latest(), target)
  await helpers.time.setNextBlockTimestamp(target + 99)
  await helpers.mine()
  claim('time.setNextBlockTimestamp', await helpers.time.latest(), target + 99)

  await helpers.setBalance(whale, 10n ** 18n)
  await helpers.setNonce(whale, 7)
  await helpers.setCode(whale, '0x6005545f5260205ff3')
  await helpers.setStorageAt(whale, 5, 42)
  claim('setBalance, setNonce, setCode, setStorageAt, getStorageAt', [
    await call('eth_getBalance', whale, 'latest'), await call('eth_getTransactionCount', whale, 'latest'),
    await call('eth_getCode', whale, 'latest'), BigInt(await helpers.getStorageAt(whale, 5)),
  ], ['0xde0b6b3a7640000', '0x7', '0x6005545f5260205ff3', 42n])

  await helpers.setCoinbase(whale)
  await helpers.setBlockGasLimit(25_000_000)
  await helpers.setNextBlockBaseFeePerGas(4_000_000_000)
  await helpers.setPrevRandao(12345)
  await helpers.mine()
  const { miner, gasLimit, baseFeePerGas, mixHash } = await latest()
  claim('setCoinbase, setBlockGasLimit, setNextBlockBaseFeePerGas, setPrevRandao',
    [miner, Number(gasLimit), Number(baseFeePerGas), Number(mixHash)], [whale, 25_000_000, 4_000_000_000, 12345])

  await helpers.impersonateAccount(whale)
  const hash = await call('eth_sendTransaction', { from: whale, to: whale, value: '0x1' })
  claim('impersonateAccount', (await call('eth_getTransactionReceipt', hash)).from, whale)
  await helpers.stopImpersonatingAccount(whale)
  claim('stopImpersonatingAccount', await call('eth_sendTransaction', { from: whale }).catch(({ message }) => message), 'No Signer available')

  await call('evm_setAutomine', false)
  const [sender] = await call('eth_accounts')
  const waiting = await call('eth_sendTransaction', { from: sender, to: whale, value: '0x1' })
  claim('dropTransaction', [await helpers.dropTransaction(waiting), (await call('txpool_status')).pending], [true, '0x0'])
  await call('evm_setAutomine', true)

  const snapshot = await helpers.takeSnapshot()
  await helpers.setBalance(whale, 1)
  await snapshot.restore()
  claim('takeSnapshot', await call('eth_getBalance', whale, 'latest') !== '0x1', true)
  let deployed = 0
  async function fixture() {
    deployed += 1
    await helpers.setBalance(whale, 77)
    return 'fixture'
  }
  claim('loadFixture', [await helpers.loadFixture(fixture), deployed], ['fixture', 1])
  await helpers.setBalance(whale, 78)
  claim('loadFixture, again', [await helpers.loadFixture(fixture), deployed, await call('eth_getBalance', whale, 'latest')], ['fixture', 1, '0x4d'])
  await helpers.clearSnapshots()
  if (!helpers.reset) return
  await helpers.reset()
  claim('reset', [await helpers.time.latestBlock(), await call('eth_getBalance', whale, 'latest')], [0, '0x0'])
}
