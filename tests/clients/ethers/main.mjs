// ethers v6 against a presim devnet. PRESIM_URL is the node's URL, and PRESIM_SOCKET the path of its Unix socket, if it has one. Each claim prints one line; the first failure ends with exit code 1.
import { isDeepStrictEqual } from 'node:util'
import {
  BrowserProvider, Contract, HDNodeWallet, IpcSocketProvider, JsonRpcProvider, MaxUint256, SocketSubscriber, WebSocketProvider, ZeroAddress, concat, getAddress,
  getCreateAddress, hexlify, isCallException, isError, keccak256, parseEther, parseUnits, randomBytes, toBeHex, toQuantity,
  verifyMessage, verifyTypedData,
} from 'ethers'

const url = process.env.PRESIM_URL ?? 'http://127.0.0.1:8545'
const alarm = setTimeout(() => fail('the program ends within 60 s', 'it did not', 'it did'), 60_000)

const provider = new JsonRpcProvider(`${url}/standard`, undefined, { pollingInterval: 100, cacheTimeout: -1 })
const strict = new JsonRpcProvider(url, undefined, { cacheTimeout: -1 })
const socket = new WebSocketProvider(`${url.replace('http', 'ws')}/standard`)
const phrase = 'test test test test test test test test test test test junk'
const signer = (index) => HDNodeWallet.fromPhrase(phrase, undefined, `m/44'/60'/0'/0/${index}`).connect(provider)
const wallet = signer(2)
const batcher = signer(6)
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
  'function allowance(address owner, address spender) view returns (uint256)',
  'function approve(address spender, uint256 value) returns (bool)',
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
  'function swapExactTokensForETH(uint256 amountIn, uint256 amountOutMin, address[] path, address to, uint256 deadline) returns (uint256[])',
]
const [alpha, pair, router] = [[ALPHA, tokenAbi], [PAIR, pairAbi], [ROUTER, routerAbi]].map(([to, abi]) => new Contract(to, abi, wallet))
const pending = { blockTag: 'pending' }

/** Returns the output of a constant-product pair for `amountIn`, after its fee of 0.3 %. */
const amountOut = (amountIn, reserveIn, reserveOut) => (amountIn * 997n * reserveOut) / (reserveIn * 1000n + amountIn * 997n)

function fail(what, actual, expected) {
  console.error(`FAILED  ${what}\n  actual:  `, actual, '\n  expected:', expected)
  process.exit(1)
}
function claim(what, actual, expected) {
  if (!isDeepStrictEqual(actual, expected)) fail(what, actual, expected)
  console.log(`ok  ${what}`)
}
/** Returns the revert of a call that must be refused. */
const revertOf = (promise) =>
  promise.then(
    (value) => fail('the call is refused', value, 'a revert'),
    (error) => (isCallException(error) && error.revert ? [error.revert.name, ...error.revert.args] : fail('a revert is decoded', error, 'a CALL_EXCEPTION')),
  )
/** Repeats `work` if a block was sealed meanwhile, so that all of its reads belong to one head. */
async function atOneHead(work) {
  for (;;) {
    const head = await provider.getBlockNumber()
    const result = await work(head)
    if ((await provider.getBlockNumber()) === head) return result
  }
}

/** Checks the reads of a read-only program, which have the same answers on `/` and `/standard`. */
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

  // A contract that returns 42 for every call.
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

/** Returns the parameters of a batch in the form that `/` requires: `to` and `value` in each call. */
const batchOf = (calls, more = {}) => {
  const valued = calls.map((call) => ({ value: '0x0', ...call }))
  return [{ version: '2.0.0', from: batcher.address, chainId: '0x7a69', atomicRequired: false, calls: valued, ...more }]
}
const callTo = (contract, name, args) => ({ to: contract.target, data: contract.interface.encodeFunctionData(name, args) })
/** Polls a batch's status until it is final. */
async function carriedOut(provider, id) {
  for (;;) {
    const status = await provider.send('wallet_getCallsStatus', [id])
    if (status.status >= 200) return status
    await new Promise((resolve) => setTimeout(resolve, 50))
  }
}
/** Returns the error of a refused request: code, message and data. */
const refusalOf = (promise) =>
  promise.then(
    (value) => fail('the request is refused', value, 'an error'),
    (error) => {
      if (!isError(error, 'UNKNOWN_ERROR')) fail('ethers hands the error on', error, 'an UNKNOWN_ERROR')
      return [error.error.code, error.error.message, error.error.data]
    },
  )
const codeOf = async (promise) => (await refusalOf(promise)).slice(0, 2)
const etherOf = (address) => provider.getBalance(address, 'pending')

/** Checks the life of batches, which is the same on `/` and `/standard` except for the text of a revert. */
async function batches(path, provider) {
  const say = (what, actual, expected) => claim(`${path}: ${what}`, actual, expected)
  const send = (...batch) => provider.send('wallet_sendCalls', batchOf(...batch))
  const [A, B, C] = [nobody(), nobody(), nobody()]
  const capabilities = (status) => ({ '0x7a69': { atomic: { status }, gasLimitOverride: { supported: true } } })
  say('wallet_getCapabilities: ready', await provider.send('wallet_getCapabilities', [batcher.address]), capabilities('ready'))

  const [nonce, ether] = [await batcher.getNonce('pending'), await etherOf(batcher.address)]
  const transfer = (to, value) => callTo(alpha, 'transfer', [to, value])
  const sent = await send([{ to: A, value: '0x5' }, { to: B, value: '0x7' }, transfer(WETH, MaxUint256), transfer(C, 3n)])
  say('wallet_sendCalls answers with batchId and status', [sent.batchId, sent.status], [sent.id, 'pending'])
  say('and with what the simulation said of each call', sent.capabilities.simulation.calls.map(({ status }) => status), ['0x1', '0x1', '0x0', '0x1'])
  const { receipts, ...status } = await carriedOut(provider, sent.batchId)
  say('wallet_getCallsStatus: a call has reverted, 600', status, { version: '2.0.0', id: sent.id, chainId: '0x7a69', status: 600, atomic: false })
  say('the receipts are those of the calls', receipts.map(({ status }) => status), ['0x1', '0x1', '0x0', '0x1'])
  // A batch's status is pre-confirmed, and on /standard a receipt comes with its block.
  const mined = await Promise.all(receipts.map(({ transactionHash }) => provider.waitForTransaction(transactionHash)))
  say('and the chain\'s', receipts.map(({ blockNumber, gasUsed, logs }) => [BigInt(blockNumber), BigInt(gasUsed), logs.length]),
    mined.map(({ blockNumber, gasUsed, logs }) => [BigInt(blockNumber), gasUsed, logs.length]))
  const transactions = await Promise.all(receipts.map(({ transactionHash }) => provider.getTransaction(transactionHash)))
  say('nonces follow the calls', transactions.map(({ from, to, value, nonce }) => [from, to, value, nonce]),
    [[A, 5n], [B, 7n], [ALPHA, 0n], [ALPHA, 0n]].map(([to, value], index) => [batcher.address, to, value, nonce + index]))
  say('what did not revert has arrived', [await etherOf(A), await etherOf(B), await alpha.balanceOf(C, pending)], [5n, 7n, 3n])
  say('the account has paid it, and the gas of all', await etherOf(batcher.address),
    ether - 12n - mined.reduce((sum, { gasUsed, gasPrice }) => sum + gasUsed * gasPrice, 0n))

  const stake = parseEther('3')
  const sale = (to, minimum = 0n) => callTo(router, 'swapExactTokensForETH', [stake, minimum, [ALPHA, WETH], to, MaxUint256])
  const allow = callTo(alpha, 'approve', [ROUTER, stake])
  const out = await pair.getReserves(pending).then(([reserve0, reserve1]) => amountOut(stake, reserve1, reserve0))
  const id = hexlify(randomBytes(32))
  say('wallet_sendCalls, atomic, under an id that is given',
    (await send([allow, sale(C), { to: A, value: '0x1' }], { id, atomicRequired: true })).batchId, id)
  const done = await carriedOut(provider, id)
  say('all of it succeeds in one transaction', [done.status, done.atomic, done.receipts.map(({ status }) => status)], [200, true, ['0x1']])
  say('approve and swap and transfer have all been made',
    [await alpha.allowance(batcher.address, ROUTER, pending), await etherOf(C), await etherOf(A)], [0n, out, 6n])
  const delegating = await provider.getTransaction(done.receipts[0].transactionHash)
  const [{ address: executor }] = delegating.authorizationList
  say('it is the account\'s to itself, and delegates it (EIP-7702)', [delegating.type, delegating.from, delegating.to],
    [4, batcher.address, batcher.address])
  say('the account\'s code names the batch executor', await provider.getCode(batcher.address, 'pending'),
    `0xef0100${executor.slice(2).toLowerCase()}`)
  say('wallet_getCapabilities: supported', await provider.send('wallet_getCapabilities', [batcher.address, ['0x7a69']]), capabilities('supported'))

  const after = await batcher.getNonce('pending')
  const reverted = path === '/' ? [-32000, 'execution reverted'] : [3, 'execution reverted: Router: insufficient output amount']
  const [code, message, data] = await refusalOf(send([allow, { to: A, value: '0x1' }, sale(C, parseEther('1000000'))], { atomicRequired: true }))
  say('an atomic batch that reverts is refused', [code, message], reverted)
  say('with the reason in its data', [...router.interface.parseError(data).args], ['Router: insufficient output amount'])
  const [errorCode, , errorData] = await refusalOf(send([{ to: A, value: '0x1' }, transfer(C, MaxUint256)], { atomicRequired: true }))
  const { name, args } = alpha.interface.parseError(errorData)
  say('or with its custom error', [errorCode, name, ...args],
    [reverted[0], 'InsufficientBalance', await alpha.balanceOf(batcher.address, pending), MaxUint256])

  const call = [{ to: nobody(), value: '0x1' }]
  say('an id that there is: 5720', await codeOf(send(call, { id })), [5720, 'There is already a batch submitted with the specified batch ID'])
  say('another chain: 5710', await codeOf(send(call, { chainId: '0x1' })), [5710, 'EIP-7702 not supported on the specified chain ID'])
  say('an account that is not the wallet\'s: 4100', await codeOf(send(call, { from: nobody() })),
    [4100, 'The requested account and/or method has not been authorized by the user'])
  const paymasterService = { url: 'https://paymaster.example' }
  say('a capability that is not supported: 5700', await codeOf(send(call, { capabilities: { paymasterService } })),
    [5700, 'The wallet does not support a capability that was not marked as optional'])
  say('too many calls: 5740', await codeOf(send(Array(101).fill(call[0]))), [5740, 'The batch is too large for the wallet to process'])
  say('another version: -32000', await codeOf(send(call, { version: '1.0' })), [-32000, 'Version not supported'])
  say('no calls: -32602', await refusalOf(send([])),
    [-32602, 'The wallet cannot parse the request', 'params[0].calls: empty: expected at least one call'])
  const unknown = hexlify(randomBytes(32))
  for (const method of ['wallet_getCallsStatus', 'wallet_showCallsStatus']) {
    say(`${method} of an id that there is not: 5730`, await codeOf(provider.send(method, [unknown])),
      [5730, 'No batch with the specified batch ID is known'])
  }
  say('nothing of what was refused was sent', [await etherOf(A), await etherOf(call[0].to), await batcher.getNonce('pending')], [6n, 0n, after])
  say('wallet_showCallsStatus', await provider.send('wallet_showCallsStatus', [id]), null)

  const limited = { ...transfer(A, 2n), capabilities: { gasLimitOverride: { value: '0x1e240' } } }
  const optional = await send([limited], { capabilities: { paymasterService: { ...paymasterService, optional: true } } })
  const [{ status: succeeded, transactionHash }] = (await carriedOut(provider, optional.id)).receipts
  say('a capability that is optional is left out, gasLimitOverride is kept to',
    [succeeded, (await provider.getTransaction(transactionHash)).gasLimit, await alpha.balanceOf(A, pending)], ['0x1', 123456n, 2n])

  // The account revokes its delegation, as any wallet may.
  const taken = await batcher.getNonce('pending')
  const authorization = await batcher.authorize({ address: ZeroAddress, nonce: taken + 1, chainId: 31337 })
  await (await batcher.sendTransaction({ type: 4, to: batcher.address, nonce: taken, authorizationList: [authorization] })).wait()
  say('a delegation that is taken back is gone', await provider.getCode(batcher.address, 'pending'), '0x')
}

/** Uses the node as a page uses a browser's wallet, through a provider (EIP-1193). */
async function browsing(path, provider) {
  const page = new BrowserProvider({ request: ({ method, params = [] }) => provider.send(method, params) })
  const signer = await page.getSigner(9)
  claim(`${path}: getSigner`, signer.address, getAddress((await provider.send('eth_accounts', []))[9]))
  const message = 'Sign in to example.com\nNonce: 7 ✓'
  claim(`${path}: signMessage`, verifyMessage(message, await signer.signMessage(message)), signer.address)
  const domain = { name: 'Post', version: '1', chainId: 31337, verifyingContract: ROUTER }
  const types = { Person: [{ name: 'name', type: 'string' }, { name: 'wallets', type: 'address[]' }],
    Mail: [{ name: 'to', type: 'Person[]' }, { name: 'amount', type: 'uint256' }, { name: 'delta', type: 'int64' }] }
  const value = { to: [{ name: 'Bob', wallets: [ALPHA] }], amount: MaxUint256, delta: -5n }
  claim(`${path}: signTypedData`, verifyTypedData(domain, types, value, await signer.signTypedData(domain, types, value)), signer.address)
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
  const supply = { to: ALPHA, data: alpha.interface.encodeFunctionData('totalSupply'), gas: '0x186a0' }
  const bundles = [{ name: 'supply', simulate: { blockStateCalls: [{ calls: [supply] }], outputs: ['returnData'] } }]
  const news = await new Promise((resolve) => {
    const watch = new (class extends SocketSubscriber {
      async _emit(_, message) {
        resolve(message)
      }
    })(socket, ['presim_watch', bundles, 'pending'])
    watch.start()
  })
  const returnData = alpha.interface.encodeFunctionResult('totalSupply', [await alpha.totalSupply(pending)])
  claim('presim_watch by eth_subscribe: the first news', news.changed, [{ name: 'supply', result: [{ fork: 'osaka', calls: [{ returnData }] }] }])
}

async function unixSocket() {
  const path = process.env.PRESIM_SOCKET
  if (!path) return
  const unix = new IpcSocketProvider(path)
  await reads('the Unix socket', unix)
  const many = await Promise.all(Array.from({ length: 50 }, () => unix.send('eth_chainId', [])))
  claim('Unix socket: many requests at once', many, Array(50).fill('0x7a69'))
  const pushed = await new Promise((resolve) => {
    const numbers = []
    unix.on('block', (number) => numbers.push(number) === 3 && resolve(numbers))
  })
  claim('blocks on the Unix socket come one by one', pushed, [0, 1, 2].map((i) => pushed[0] + i))
  await unix.destroy()
}

try {
  await reads('/standard', provider)
  await reads('/', strict)
  for (const part of [simulation, sending, bundle]) await part()
  await batches('/standard', provider)
  await batches('/', strict)
  await browsing('/standard', provider)
  await browsing('/', strict)
  await watching()
  await unixSocket()
} catch (error) {
  fail('every request is answered', error, 'an answer')
}
clearTimeout(alarm)
console.log('ethers: all claims hold')
process.exit(0)
