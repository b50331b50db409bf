// ethers v6 against a presim devnet. PRESIM_URL names the node; each claim is one line, the first that fails ends with exit code 1.
import { isDeepStrictEqual } from 'node:util'
import {
  Contract, HDNodeWallet, JsonRpcProvider, MaxUint256, WebSocketProvider, concat, getAddress, getCreateAddress, hexlify,
  isCallException, keccak256, parseEther, parseUnits, randomBytes, toBeHex, toQuantity,
} from 'ethers'

const url = process.env.PRESIM_URL ?? 'http://127.0.0.1:8545'
const alarm = setTimeout(() => fail('the program ends within 60 s', 'it did not', 'it did'), 60_000)

const provider = new JsonRpcProvider(`${url}/standard`, undefined, { pollingInterval: 100, cacheTimeout: -1 })
const strict = new JsonRpcProvider(url, undefined, { cacheTimeout: -1 })
const socket = new WebSocketProvider(`${url.replace('http', 'ws')}/standard`)
const phrase = 'test test test test test test test test test test test junk'
const wallet = HDNodeWallet.fromPhrase(phrase, undefined, "m/44'/60'/0'/0/2").connect(provider)
const nobody = () => getAddress(hexlify(randomBytes(20)))

const WETH = '0x5FbDB2315678afecb367f032d93F642f64180aa3'
const ALPHA = '0x9fE46736679d2D9a65F0992F2272dE9f3c7fa6e0'
const ROUTER = '0xDc64a140Aa3E981100a9becA4E685f962f0cF6C9'
const PAIR = '0xee48C640427246F01f96c32897AD9B6ab6964fE7' // WETH is its token0, ALPHA its token1
const tokenAbi = [
  'function name() view returns (string)',
  'function decimals() view returns (uint8)',
  'function balanceOf(address) view returns (uint256)',
  'function totalSupply() view returns (uint256)',
  'function transfer(address to, uint256 value) returns (bool)',
  'event Transfer(address indexed from, address indexed to, uint256 value)',
  'error InsufficientBalance(uint256 have, uint256 want)',
]
const pairAbi = [
  'function getReserves() view returns (uint112 reserve0, uint112 reserve1, uint32 blockTimestampLast)',
  'event Swap(address indexed sender, uint256 amount0In, uint256 amount1In, uint256 amount0Out, uint256 amount1Out, address indexed to)',
]
const routerAbi = [
  'function getAmountsOut(uint256 amountIn, address[] path) view returns (uint256[])',
  'function swapExactETHForTokens(uint256 amountOutMin, address[] path, address to, uint256 deadline) payable returns (uint256[])',
]
const [alpha, pair, router] = [[ALPHA, tokenAbi], [PAIR, pairAbi], [ROUTER, routerAbi]].map(([to, abi]) => new Contract(to, abi, wallet))
const pending = { blockTag: 'pending' }

/** What a constant-product pair gives for `amountIn`, after its fee of 0.3 %. */
const amountOut = (amountIn, reserveIn, reserveOut) => (amountIn * 997n * reserveOut) / (reserveIn * 1000n + amountIn * 997n)

function fail(what, actual, expected) {
  console.error(`FAILED  ${what}\n  actual:  `, actual, '\n  expected:', expected)
  process.exit(1)
}
function claim(what, actual, expected) {
  if (!isDeepStrictEqual(actual, expected)) fail(what, actual, expected)
  console.log(`ok  ${what}`)
}
/** What a call that must be refused reverted with. */
const revertOf = (promise) =>
  promise.then(
    (value) => fail('the call is refused', value, 'a revert'),
    (error) => (isCallException(error) && error.revert ? [error.revert.name, ...error.revert.args] : fail('a revert is decoded', error, 'a CALL_EXCEPTION')),
  )
/** Runs `work` again when a block was sealed meanwhile, so that all that it read belongs to one head. */
async function atOneHead(work) {
  for (;;) {
    const head = await provider.getBlockNumber()
    const result = await work(head)
    if ((await provider.getBlockNumber()) === head) return result
  }
}

/** The reads of a program that only looks; `/` and `/standard` answer them alike. */
async function reads(path, provider) {
  const [token, market] = [alpha.connect(provider), router.connect(provider)]
  const say = (what, actual, expected) => claim(`${path}: ${what}`, actual, expected)
  say('getNetwork', (await provider.getNetwork()).chainId, 31337n)
  say('getBalance of nobody', await provider.getBalance(nobody()), 0n)
  say('getTransactionCount of nobody', await provider.getTransactionCount(nobody(), 'pending'), 0)
  say('getCode of an account without code', await provider.getCode(nobody()), '0x')
  say('a contract read', [await token.name(), await token.decimals()], ['Alpha', 18n])
  say('getStorage: the supply of ALPHA', await provider.getStorage(ALPHA, 2), toBeHex(await token.totalSupply(), 32))
  const [amounts, [reserve0, reserve1]] = await Promise.all([
    market.getAmountsOut(parseEther('1'), [WETH, ALPHA], pending),
    pair.connect(provider).getReserves(pending),
  ])
  say('a quote at pending is the formula\'s', amounts[1], amountOut(parseEther('1'), reserve0, reserve1))
  say('Error(string) is decoded', await revertOf(market.getAmountsOut(1n, [WETH])), ['Error', 'Router: invalid path'])
  say('a custom error is decoded', await revertOf(token.transfer.staticCall(WETH, 7n, { from: nobody() })), ['InsufficientBalance', 0n, 7n])
  say('estimateGas of a transfer', await provider.estimateGas({ from: wallet.address, to: nobody(), value: 1n }), 21000n)
  say('getLogs of a block without them', await provider.getLogs({ address: ALPHA, topics: [keccak256('0x')], fromBlock: 0, toBlock: 'latest' }), [])
  const { head, next } = await atOneHead(async () => ({ head: await provider.getBlock('latest'), next: await provider.getBlock('pending') }))
  say('getBlock(\'pending\') builds on the newest block', [next.number, next.parentHash], [head.number + 1, head.hash])
  say('getBlock by hash', (await provider.getBlock(head.hash)).toJSON(), head.toJSON())
  const { fees, base } = await atOneHead(async () => ({ fees: await provider.getFeeData(), base: (await provider.getBlock('latest')).baseFeePerGas }))
  say('getFeeData', fees.maxFeePerGas, base * 2n + fees.maxPriorityFeePerGas)
}

async function simulation() {
  const buyer = wallet.address
  const data = (contract, name, args) => contract.interface.encodeFunctionData(name, args)
  const value = parseEther('1')
  const [block] = await provider.send('eth_simulateV1', [{
    blockStateCalls: [{
      calls: [
        { to: PAIR, data: data(pair, 'getReserves', []) },
        { from: buyer, to: ROUTER, value: toQuantity(value), data: data(router, 'swapExactETHForTokens', [0n, [WETH, ALPHA], buyer, MaxUint256]) },
        { from: nobody(), to: ALPHA, data: data(alpha, 'transfer', [buyer, 5n]) },
      ],
    }],
  }, 'pending'])
  const [reserve0, reserve1] = pair.interface.decodeFunctionResult('getReserves', block.calls[0].returnData)
  const out = amountOut(value, reserve0, reserve1)
  const [amounts] = router.interface.decodeFunctionResult('swapExactETHForTokens', block.calls[1].returnData)
  claim('eth_simulateV1: a swap pays what the formula says', [...amounts], [value, out])
  const swap = block.calls[1].logs.map((log) => pair.interface.parseLog(log)).find((event) => event?.name === 'Swap')
  claim('eth_simulateV1: so says its Swap event', swap.args.toObject(),
    { sender: ROUTER, amount0In: value, amount1In: 0n, amount0Out: 0n, amount1Out: out, to: buyer })
  const refusal = alpha.interface.parseError(block.calls[2].error.data)
  claim('eth_simulateV1: a failed call has its revert data', [block.calls[2].status, refusal.name, ...refusal.args], ['0x0', 'InsufficientBalance', 0n, 5n])
}

async function sending() {
  const receiver = nobody()
  const before = await provider.getBalance(wallet.address, 'pending')
  const sent = await wallet.sendTransaction({ to: receiver, value: parseEther('1.5') })
  const receipt = await sent.wait()
  claim('sendTransaction and wait', [receipt.status, receipt.gasUsed, receipt.from, receipt.to], [1, 21000n, wallet.address, receiver])
  claim('its receiver has the ether', await provider.getBalance(receiver, 'pending'), parseEther('1.5'))
  claim('its sender paid it and the gas', await provider.getBalance(wallet.address, 'pending'), before - parseEther('1.5') - receipt.gasUsed * receipt.gasPrice)
  // `wait` took a pre-confirmed receipt if there was one at its first look; this waits until the block is sealed.
  const sealed = await provider.waitForTransaction(sent.hash)
  const block = await provider.getBlock(sealed.blockNumber, true)
  claim('waitForTransaction gives the sealed receipt', [sealed.blockHash, sealed.blockNumber], [block.hash, receipt.blockNumber])
  claim('getBlock with its transactions', block.prefetchedTransactions.map(({ hash }) => hash).filter((hash) => hash === sent.hash), [sent.hash])
  const mined = await provider.getTransaction(sent.hash)
  claim('getTransaction', [mined.blockHash, mined.nonce, mined.value, mined.gasPrice], [block.hash, sent.nonce, parseEther('1.5'), receipt.gasPrice])

  const seen = new Promise((resolve) => alpha.connect(socket).on(alpha.filters.Transfer(null, receiver), resolve))
  const announced = new Set()
  socket.on('pending', (hash) => announced.add(hash))
  await socket.getBlockNumber()
  const [reserve0, reserve1] = await pair.getReserves(pending)
  const out = amountOut(parseEther('2'), reserve0, reserve1)
  const path = [0n, [WETH, ALPHA], receiver, MaxUint256, { value: parseEther('2') }]
  claim('a contract call\'s result at pending', [...(await router.swapExactETHForTokens.staticCall(...path.slice(0, 4), { ...path[4], ...pending }))], [parseEther('2'), out])
  const swap = await router.swapExactETHForTokens(...path)
  const swapped = await swap.wait()
  const event = swapped.logs.find((log) => log.address === PAIR && pair.interface.parseLog(log)?.name === 'Swap')
  claim('a contract transaction: its Swap event has the formula\'s amounts', pair.interface.parseLog(event).args.toObject(),
    { sender: ROUTER, amount0In: parseEther('2'), amount1In: 0n, amount0Out: 0n, amount1Out: out, to: receiver })
  const transfers = await alpha.queryFilter(alpha.filters.Transfer(null, receiver), swapped.blockNumber, 'pending')
  claim('queryFilter finds the Transfer', transfers.map(({ args, transactionHash }) => [...args, transactionHash]), [[PAIR, receiver, out, swap.hash]])
  const heard = await seen
  claim('contract.on over WebSocket hears it', [...heard.args, heard.log.transactionHash], [PAIR, receiver, out, swap.hash])
  claim('a pending transaction is announced over WebSocket', announced.has(swap.hash), true)

  // A contract that answers 42 to everything.
  const deployed = await (await wallet.sendTransaction({ data: '0x600a600c600039600a6000f3602a60005260206000f3' })).wait()
  claim('a contract is where its creator and nonce say', deployed.contractAddress, getCreateAddress({ from: wallet.address, nonce: swap.nonce + 1 }))
  claim('it runs', BigInt(await provider.call({ to: deployed.contractAddress, blockTag: 'pending' })), 42n)
  const reverted = await (await alpha.transfer(WETH, MaxUint256, { gasLimit: 100000n })).wait().catch((error) => error)
  claim('a transaction that reverts fails its wait', [reverted.code, reverted.receipt?.status, reverted.receipt?.logs.length], ['CALL_EXCEPTION', 0, 0])
}

async function bundle() {
  const tip = parseUnits('1', 'gwei')
  const nonce = await wallet.getNonce('pending')
  const block = await provider.getBlock('pending')
  const fees = { type: 2, chainId: 31337n, maxFeePerGas: block.baseFeePerGas * 4n + tip, maxPriorityFeePerGas: tip }
  const txs = await Promise.all([
    wallet.signTransaction({ ...fees, nonce, to: nobody(), value: 1n, gasLimit: 21000n }),
    wallet.signTransaction({ ...fees, nonce: nonce + 1, to: block.miner, value: 12345n, gasLimit: 21000n }),
  ])
  const hashes = txs.map((raw) => keccak256(raw))
  const answer = await provider.send('eth_callBundle', [{ txs, blockNumber: toQuantity(block.number), stateBlockNumber: 'pending' }])
  claim('eth_callBundle: the transactions, in order', answer.results.map(({ txHash, gasUsed }) => [txHash, gasUsed]), hashes.map((hash) => [hash, 21000]))
  claim('eth_callBundle: the bundle\'s hash', answer.bundleHash, keccak256(concat(hashes)))
  claim('eth_callBundle: what the producer gets', [answer.totalGasUsed, answer.gasFees, answer.ethSentToCoinbase, answer.coinbaseDiff].map(String),
    [42000n, 42000n * tip, 12345n, 42000n * tip + 12345n].map(String))
}

async function watching() {
  const numbers = (provider) =>
    new Promise((resolve) => {
      const seen = []
      const hear = (number) => {
        if (seen.push(number) === 3) resolve(seen), provider.off('block', hear)
      }
      provider.on('block', hear)
    })
  const [polled, pushed] = await Promise.all([numbers(provider), numbers(socket)])
  claim('blocks by polling come one by one', polled, [0, 1, 2].map((i) => polled[0] + i))
  claim('blocks over WebSocket come one by one', pushed, [0, 1, 2].map((i) => pushed[0] + i))
}

try {
  await reads('/standard', provider)
  await reads('/', strict)
  for (const part of [simulation, sending, bundle, watching]) await part()
} catch (error) {
  fail('every request is answered', error, 'an answer')
}
clearTimeout(alarm)
console.log('ethers: all claims hold')
process.exit(0)
