// viem against a balancer in front of two replicas of a fleet. PRESIM_URL is the balancer's URL. The chain is a devnet's, which the fleet follows.
import { isDeepStrictEqual } from 'node:util'
import { createPublicClient, createWalletClient, http, numberToHex, parseAbi, parseEther, webSocket } from 'viem'
import { generatePrivateKey, mnemonicToAccount, privateKeyToAddress } from 'viem/accounts'
import { foundry } from 'viem/chains'

const url = `${process.env.PRESIM_URL}/standard`
const client = createPublicClient({ chain: foundry, transport: http(url), pollingInterval: 100, cacheTime: 0 })
const socket = createPublicClient({ chain: foundry, transport: webSocket(url.replace('http', 'ws')) })
const account = mnemonicToAccount('test test test test test test test test test test test junk', { addressIndex: 1 })
const wallet = createWalletClient({ account, chain: foundry, transport: http(url) })
const WETH = '0x5FbDB2315678afecb367f032d93F642f64180aa3'
const abi = parseAbi(['function deposit() payable', 'function balanceOf(address) view returns (uint256)'])

function claim(what, got, expected) {
  if (!isDeepStrictEqual(got, expected)) {
    console.error(`FAILED: ${what}`, { got, expected })
    process.exit(1)
  }
  console.log(`ok: ${what}`)
}

const receiver = privateKeyToAddress(generatePrivateKey())
const heads = new Promise((resolve, reject) => socket.watchBlockNumber({ onBlockNumber: resolve, onError: reject }))
const hash = await wallet.sendTransaction({ to: receiver, value: parseEther('1.5') })
const receipt = await client.waitForTransactionReceipt({ hash })
claim('a transaction that a replica takes is mined by the upstream', [receipt.status, receipt.gasUsed], ['success', 21000n])
claim('the block of its receipt is known to each replica', await Promise.all([0, 1].map(async () =>
  (await client.getBlock({ blockHash: receipt.blockHash })).number)), [receipt.blockNumber, receipt.blockNumber])
claim('its receiver has the ether', await client.getBalance({ address: receiver }), parseEther('1.5'))
const deposited = await wallet.writeContract({ address: WETH, abi, functionName: 'deposit', value: 7n })
const { logs, blockNumber } = await client.waitForTransactionReceipt({ hash: deposited })
const found = await client.getLogs({ address: WETH, fromBlock: blockNumber, toBlock: blockNumber })
claim('getLogs', found.map(({ logIndex, transactionHash }) => [logIndex, transactionHash]), logs.map(({ logIndex }) => [logIndex, deposited]))
const balanceOf = (address) => ({ to: WETH, abi, functionName: 'balanceOf', args: [address] })
const [block] = await client.simulateBlocks({ blocks: [{
  stateOverrides: [{ address: receiver, balance: parseEther('9') }],
  calls: [{ from: receiver, to: WETH, abi, functionName: 'deposit', value: 5n }, balanceOf(receiver)],
}] })
claim('simulateBlocks', block.calls.map(({ status, result }) => [status, result ?? undefined]), [['success', undefined], ['success', 5n]])
claim('a subscription hears of blocks', typeof (await heads), 'bigint')
const elsewhere = await client.request({ method: 'wallet_getCapabilities', params: [account.address] }).catch((error) => error)
claim('a replica has no wallet', [elsewhere.details.includes('no node of the fleet has a wallet')], [true])
claim('chain id', numberToHex(await client.getChainId()), '0x7a69')
process.exit(0)
