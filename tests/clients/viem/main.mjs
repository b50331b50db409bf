// viem against a presim devnet. PRESIM_URL is the node's URL, and PRESIM_SOCKET the path of its Unix socket, if it has one. Each claim prints one line; the first failure ends with exit code 1.
import { randomBytes } from 'node:crypto'
import { isDeepStrictEqual } from 'node:util'
import {
  BaseError, BundleTooLargeError, ContractFunctionRevertedError, DuplicateIdError, ExecutionRevertedError, RpcRequestError,
  SwitchChainError, UnauthorizedProviderError, UnknownBundleIdError, UnsupportedChainIdError, UnsupportedNonOptionalCapabilityError,
  createPublicClient, createWalletClient, custom, decodeErrorResult, decodeFunctionResult, encodeFunctionData, getAddress, http,
  keccak256, numberToHex, parseAbi, parseEther, parseEventLogs, recoverMessageAddress, recoverTypedDataAddress, toHex, webSocket,
  zeroAddress,
} from 'viem'
import { mnemonicToAccount } from 'viem/accounts'
import { foundry, mainnet } from 'viem/chains'
import { ipc } from 'viem/node'

const url = `${process.env.PRESIM_URL ?? 'http://127.0.0.1:8545'}/standard`
const alarm = setTimeout(() => fail('the program ends within 60 s', 'it did not', 'it did'), 60_000)

const client = createPublicClient({ chain: foundry, transport: http(url), pollingInterval: 100, cacheTime: 0 })
const batching = createPublicClient({ chain: foundry, transport: http(url, { batch: true }) })
const socket = createPublicClient({ chain: foundry, transport: webSocket(url.replace('http', 'ws')) })
const phrase = 'test test test test test test test test test test test junk'
const account = mnemonicToAccount(phrase, { addressIndex: 1 })
const wallet = createWalletClient({ account, chain: foundry, transport: http(url) })
// The sender of batches. The node signs for it; the client has only the address.
const owner = mnemonicToAccount(phrase, { addressIndex: 5 })
const batcher = createWalletClient({ account: owner.address, chain: foundry, transport: http(url), pollingInterval: 100 })
const other = '0x15d34AAf54267DB7D7c367839AAf71A00a2C6A65'
const nobody = () => getAddress(toHex(randomBytes(20)))

const WETH = '0x5FbDB2315678afecb367f032d93F642f64180aa3'
const ALPHA = '0x9fE46736679d2D9a65F0992F2272dE9f3c7fa6e0'
const ROUTER = '0xDc64a140Aa3E981100a9becA4E685f962f0cF6C9'
const PAIR = '0xee48C640427246F01f96c32897AD9B6ab6964fE7' // WETH is its token0, ALPHA its token1
const abi = parseAbi([
  'function balanceOf(address) view returns (uint256)',
  'function totalSupply() view returns (uint256)',
  'function transfer(address to, uint256 value) returns (bool)',
  'function allowance(address owner, address spender) view returns (uint256)',
  'function approve(address spender, uint256 value) returns (bool)',
  'function getReserves() view returns (uint112 reserve0, uint112 reserve1, uint32 blockTimestampLast)',
  'function getAmountsOut(uint256 amountIn, address[] path) view returns (uint256[])',
  'function swapExactETHForTokens(uint256 amountOutMin, address[] path, address to, uint256 deadline) payable returns (uint256[])',
  'function swapExactTokensForETH(uint256 amountIn, uint256 amountOutMin, address[] path, address to, uint256 deadline) returns (uint256[])',
  'event Transfer(address indexed from, address indexed to, uint256 value)',
  'event Approval(address indexed owner, address indexed spender, uint256 value)',
  'event Swap(address indexed sender, uint256 amount0In, uint256 amount1In, uint256 amount0Out, uint256 amount1Out, address indexed to)',
  'error InsufficientBalance(uint256 have, uint256 want)',
  'error InsufficientAllowance(uint256 have, uint256 want)',
])
const never = 2n ** 256n - 1n

/** Returns the output of a constant-product pair for `amountIn`, after its fee of 0.3 %. */
const amountOut = (amountIn, reserveIn, reserveOut) => (amountIn * 997n * reserveOut) / (reserveIn * 1000n + amountIn * 997n)
const contract = (address, functionName, args = []) => ({ address, abi, functionName, args })
const read = (address, functionName, args, block = { blockTag: 'pending' }) =>
  client.readContract({ ...contract(address, functionName, args), ...block })
/** Returns a call of a simulation: `to`, and the fields of `readContract`. */
const callTo = (to, functionName, args = [], more = {}) => ({ to, abi, functionName, args, ...more })
const buy = (from, value, minimum = 0n) => callTo(ROUTER, 'swapExactETHForTokens', [minimum, [WETH, ALPHA], from, never], { from, value })
const sell = (from, amount) => callTo(ROUTER, 'swapExactTokensForETH', [amount, 0n, [ALPHA, WETH], from, never], { from })

function fail(what, actual, expected) {
  console.error(`FAILED  ${what}\n  actual:  `, actual, '\n  expected:', expected)
  process.exit(1)
}
function claim(what, actual, expected) {
  if (!isDeepStrictEqual(actual, expected)) fail(what, actual, expected)
  console.log(`ok  ${what}`)
}
/** Returns the name and arguments of a contract's revert. */
function revertOf(error) {
  const revert = error instanceof BaseError ? error.walk((cause) => cause instanceof ContractFunctionRevertedError) : null
  if (!revert) fail('a revert is decoded', error, 'a ContractFunctionRevertedError')
  return [revert.data?.errorName, ...(revert.data?.args ?? [])]
}
const refusalOf = (promise) => promise.then((value) => fail('the call is refused', value, 'a revert'), revertOf)
/** Repeats `work` if a block was sealed meanwhile, so that all of its reads belong to one head. */
async function atOneHead(work) {
  for (;;) {
    const head = await client.getBlockNumber()
    const result = await work(head)
    if ((await client.getBlockNumber()) === head) return result
  }
}
/** Resolves with the first `count` blocks that `watcher` sees. */
const watch = (watcher, count, options) =>
  new Promise((resolve, reject) => {
    const blocks = []
    const stop = watcher.watchBlocks({
      ...options,
      onError: reject,
      onBlock: (block) => {
        if (blocks.push(block) === count) resolve(blocks), stop()
      },
    })
  })

async function reads() {
  claim('getChainId', await client.getChainId(), 31337)
  claim('getBalance of nobody', await client.getBalance({ address: nobody() }), 0n)
  claim('getCode of an account without code', await client.getCode({ address: nobody() }), undefined)
  const supply = await read(ALPHA, 'totalSupply')
  claim('getStorageAt: the supply of ALPHA', await client.getStorageAt({ address: ALPHA, slot: '0x2' }), numberToHex(supply, { size: 32 }))
  const blockNumber = await client.getBlockNumber()
  const [block, code, proof] = await Promise.all([
    client.getBlock({ blockNumber }),
    client.getCode({ address: ALPHA, blockNumber }),
    client.getProof({ address: ALPHA, storageKeys: [numberToHex(2, { size: 32 })], blockNumber }),
  ])
  claim('getProof: the root node hashes to the block\'s state root', keccak256(proof.accountProof[0]), block.stateRoot)
  claim('getProof: the storage root node hashes to the storage root', keccak256(proof.storageProof[0].proof[0]), proof.storageHash)
  claim('getProof: the code hash is that of getCode', proof.codeHash, keccak256(code))
  claim('getProof: the slot\'s value', proof.storageProof[0].value, supply)

  const [reserves, amounts] = await Promise.all([
    batching.readContract({ ...contract(PAIR, 'getReserves'), blockTag: 'pending' }),
    batching.readContract({ ...contract(ROUTER, 'getAmountsOut', [parseEther('1'), [WETH, ALPHA]]), blockTag: 'pending' }),
  ])
  claim('a batch reads reserves and quote of one state', amounts[1], amountOut(parseEther('1'), reserves[0], reserves[1]))
}

async function calls() {
  const data = encodeFunctionData({ abi, functionName: 'balanceOf', args: [account.address] })
  const code = await client.getCode({ address: ALPHA })
  const twin = nobody()
  const plain = await client.call({ to: ALPHA, data, blockTag: 'pending' })
  claim('call', BigInt(plain.data), await read(ALPHA, 'balanceOf', [account.address]))
  const copied = await client.call({ to: twin, data, stateOverride: [{ address: twin, code }] })
  claim('call with the token\'s code at another address', decodeFunctionResult({ abi, functionName: 'balanceOf', data: copied.data }), 0n)

  claim('readContract reverts with Error(string)', await refusalOf(read(ROUTER, 'getAmountsOut', [1n, [WETH]])), ['Error', 'Router: invalid path'])
  const poor = nobody()
  const transfer = client.simulateContract({ ...contract(ALPHA, 'transfer', [other, 7n]), account: poor })
  claim('simulateContract reverts with a custom error', await refusalOf(transfer), ['InsufficientBalance', 0n, 7n])
}

async function simulations() {
  const [A, V] = [account.address, other]
  const [reserve0, reserve1] = await read(PAIR, 'getReserves')
  const rich = nobody()
  const [first, second] = await client.simulateBlocks({
    blockTag: 'pending',
    traceTransfers: true,
    blocks: [
      {
        stateOverrides: [{ address: rich, balance: parseEther('5') }],
        calls: [
          { from: rich, to: V, value: parseEther('5') },
          callTo(PAIR, 'getReserves'),
          buy(A, parseEther('1')),
          buy(A, parseEther('1'), parseEther('1000000')),
          callTo(ALPHA, 'transfer', [V, 3n], { from: rich }),
          callTo(ALPHA, 'balanceOf', [A]),
        ],
      },
      { calls: [callTo(ALPHA, 'balanceOf', [A])] },
    ],
  })
  const [transfer, reserves, bought, greedy, poor, held] = first.calls
  claim('simulateBlocks: a transfer of overridden ether takes 21000 gas', [transfer.status, transfer.gasUsed], ['success', 21000n])
  claim('simulateBlocks: traceTransfers shows it', [transfer.logs[0].address, BigInt(transfer.logs[0].data)],
    ['0xeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeee', parseEther('5')])
  claim('simulateBlocks: the reserves are those of the call', reserves.result.slice(0, 2), [reserve0, reserve1])
  const out = amountOut(parseEther('1'), reserve0, reserve1)
  claim('simulateBlocks: a swap pays what the formula says', bought.result, [parseEther('1'), out])
  const [swap] = parseEventLogs({ abi, eventName: 'Swap', logs: bought.logs })
  claim('simulateBlocks: so says its Swap event', swap.args,
    { sender: ROUTER, amount0In: parseEther('1'), amount1In: 0n, amount0Out: 0n, amount1Out: out, to: A })
  claim('simulateBlocks: a swap below its minimum says why', [greedy.status, ...revertOf(greedy.error)],
    ['failure', 'Error', 'Router: insufficient output amount'])
  claim('simulateBlocks: a custom error is decoded', [poor.status, ...revertOf(poor.error)], ['failure', 'InsufficientBalance', 0n, 3n])
  claim('simulateBlocks: the second block follows the first', [second.number, second.timestamp, second.parentHash],
    [first.number + 1n, first.timestamp + 12n, first.hash])
  claim('simulateBlocks: the second block sees the first', second.calls[0].result, held.result)
  claim('simulateBlocks: and no more than was bought', held.result - (await read(ALPHA, 'balanceOf', [A])), out)

  const { assetChanges, results } = await client.simulateCalls({
    account: A,
    blockTag: 'pending',
    traceAssetChanges: true,
    calls: [callTo(ROUTER, 'swapExactETHForTokens', [0n, [WETH, ALPHA], A, never], { value: parseEther('1') })],
  })
  claim('simulateCalls: the call succeeds', results.map(({ status }) => status), ['success'])
  claim('simulateCalls: asset changes are exact', assetChanges.map(({ token, value }) => [token.symbol, token.decimals, value.diff]).filter(([, , diff]) => diff),
    [['ETH', 18, -parseEther('1')], ['ALPHA', 18, out]])

  // A sandwich on the block being built: buys before another's purchase and sells after it.
  const [stake, theirs] = [parseEther('10'), parseEther('20')]
  const mine = amountOut(stake, reserve0, reserve1)
  const [r0, r1] = [reserve0 + stake, reserve1 - mine]
  const victim = amountOut(theirs, r0, r1)
  const back = amountOut(mine, r1 - victim, r0 + theirs)
  const [bundle] = await client.simulateBlocks({
    blockTag: 'pending',
    blocks: [{ calls: [buy(A, stake), buy(V, theirs), sell(A, mine)] }],
  })
  claim('a bundle at pending: each swap sees those before it', bundle.calls.map(({ result }) => result),
    [[stake, mine], [theirs, victim], [mine, back]])
  console.log(`    the bundle would earn ${back - stake} wei before gas of ${bundle.gasUsed}`)
  claim('a bundle at pending continues the block being built', bundle.number, (await client.getBlock({ blockTag: 'pending' })).number)
}

async function gas() {
  const swap = { account, to: ROUTER, value: parseEther('1'), data: encodeFunctionData(buy(account.address, 0n)) }
  claim('estimateGas of a transfer', await client.estimateGas({ account, to: nobody(), value: 1n }), 21000n)
  const estimate = await client.estimateGas({ ...swap, blockTag: 'pending' })
  const [{ calls: [exact, short] }] = await client.simulateBlocks({
    blockTag: 'pending',
    blocks: [{ calls: [{ ...buy(account.address, parseEther('1')), gas: estimate }, { ...buy(account.address, parseEther('1')), gas: 60000n }] }],
  })
  claim('a swap runs with its estimate, not with half', [exact.status, short.status], ['success', 'failure'])
  const { accessList, gasUsed } = await client.createAccessList({ ...swap, blockTag: 'pending' })
  const touched = accessList.find(({ address }) => address === PAIR.toLowerCase())?.storageKeys.map(BigInt) ?? []
  claim('createAccessList has the pair\'s reserves and lock', [5n, 6n].filter((slot) => touched.includes(slot)), [5n, 6n])
  const [{ calls: [listed] }] = await client.simulateBlocks({
    blockTag: 'pending',
    blocks: [{ calls: [{ ...buy(account.address, parseEther('1')), accessList }] }],
  })
  claim('createAccessList gives the gas that the call with it takes', listed.gasUsed, gasUsed)

  const { history, blocks } = await atOneHead(async (head) => {
    const numbers = head > 0n ? [head - 1n, head] : [head]
    const history = await client.getFeeHistory({ blockCount: 2, blockTag: 'latest', rewardPercentiles: [50] })
    return { history, blocks: await Promise.all(numbers.map((blockNumber) => client.getBlock({ blockNumber }))) }
  })
  const newest = blocks.at(-1)
  claim('getFeeHistory: base fees are the blocks\'', [history.oldestBlock, ...history.baseFeePerGas.slice(0, -1)],
    [blocks[0].number, ...blocks.map((block) => block.baseFeePerGas)])
  claim('getFeeHistory: so is the gas used', history.gasUsedRatio, blocks.map((block) => Number(block.gasUsed) / Number(block.gasLimit)))
  const target = newest.gasLimit / 2n
  const off = newest.gasUsed > target ? newest.gasUsed - target : target - newest.gasUsed
  const step = (newest.baseFeePerGas * off) / target / 8n
  claim('getFeeHistory: the next base fee is EIP-1559\'s', history.baseFeePerGas.at(-1),
    newest.gasUsed > target ? newest.baseFeePerGas + (step || 1n) : newest.baseFeePerGas - step)
  const { fees, base } = await atOneHead(async () => ({
    fees: await client.estimateFeesPerGas(),
    base: (await client.getBlock()).baseFeePerGas,
  }))
  claim('estimateFeesPerGas', fees.maxFeePerGas, (base * 12n) / 10n + fees.maxPriorityFeePerGas)
}

async function sending() {
  const receiver = nobody()
  const before = await client.getBalance({ address: account.address, blockTag: 'pending' })
  const hash = await wallet.sendTransaction({ to: receiver, value: parseEther('1.5') })
  const receipt = await client.waitForTransactionReceipt({ hash })
  claim('sendTransaction and waitForTransactionReceipt', [receipt.status, receipt.gasUsed, receipt.from, receipt.to],
    ['success', 21000n, account.address.toLowerCase(), receiver.toLowerCase()])
  claim('its receiver has the ether', await client.getBalance({ address: receiver, blockTag: 'pending' }), parseEther('1.5'))
  claim('its sender paid it and the gas', await client.getBalance({ address: account.address, blockTag: 'pending' }),
    before - parseEther('1.5') - receipt.gasUsed * receipt.effectiveGasPrice)

  const [reserve0, reserve1] = await read(PAIR, 'getReserves')
  const out = amountOut(parseEther('2'), reserve0, reserve1)
  const data = encodeFunctionData(buy(receiver, 0n))
  const request = await wallet.prepareTransactionRequest({ to: ROUTER, value: parseEther('2'), data })
  const swapped = await client.sendRawTransactionSync({ serializedTransaction: await wallet.signTransaction(request) })
  claim('sendRawTransactionSync answers with the pre-confirmed receipt', [swapped.status, swapped.to], ['success', ROUTER.toLowerCase()])
  const [swap] = parseEventLogs({ abi, eventName: 'Swap', logs: swapped.logs })
  const args = { sender: ROUTER, amount0In: parseEther('2'), amount1In: 0n, amount0Out: 0n, amount1Out: out, to: receiver }
  claim('its Swap event has the formula\'s amounts', swap.args, args)
  claim('the receiver has them', await read(ALPHA, 'balanceOf', [receiver]), out)

  const pending = await client.getBlock({ blockTag: 'pending', includeTransactions: true })
  const block = pending.number === swapped.blockNumber ? pending : await client.getBlock({ blockNumber: swapped.blockNumber, includeTransactions: true })
  const mined = block.transactions.find((transaction) => transaction.hash === swapped.transactionHash)
  claim('getBlock at pending, full: the transaction is in it', [mined?.from, mined?.to, mined?.value, mined?.input, mined?.nonce],
    [account.address.toLowerCase(), ROUTER.toLowerCase(), parseEther('2'), data, request.nonce])
  const filter = { address: ALPHA, event: abi.find(({ name }) => name === 'Transfer'), args: { to: receiver } }
  const logs = await client.getLogs({ ...filter, fromBlock: swapped.blockNumber, toBlock: 'pending' })
  claim('getLogs up to pending finds the Transfer', logs.map((log) => [log.args, log.transactionHash, log.blockNumber, log.logIndex]),
    [[{ from: PAIR, to: receiver, value: out }, swapped.transactionHash, swapped.blockNumber, swap.logIndex - 2]])

  // On /standard a receipt comes with its block. Behind a balancer a replica may have the block a little later.
  await client.waitForTransactionReceipt({ hash: swapped.transactionHash, confirmations: 2 })
  const sealed = await client.getTransactionReceipt({ hash: swapped.transactionHash })
  const { hash: blockHash } = await client.getBlock({ blockNumber: swapped.blockNumber })
  claim('once sealed the receipt has the block\'s hash, and all else as before', sealed,
    { ...swapped, blockHash, logs: swapped.logs.map((log) => ({ ...log, blockHash })) })

  const doomed = encodeFunctionData(callTo(ALPHA, 'transfer', [other, never]))
  const reverted = await wallet.sendTransaction({ to: ALPHA, data: doomed, gas: 100000n })
  const failed = await client.waitForTransactionReceipt({ hash: reverted })
  claim('a transaction that reverts has a receipt without logs', [failed.status, failed.logs], ['reverted', []])
}

const nonceOf = (address) => client.getTransactionCount({ address, blockTag: 'pending' })
const etherOf = (address) => client.getBalance({ address, blockTag: 'pending' })
/** Sends a batch and waits until its status is final. */
const carryOut = async (batch) => {
  const { id } = await batcher.sendCalls(batch)
  return batcher.waitForCallsStatus({ id })
}
/** Returns the cause of this kind in the error of a request that must be refused. */
const kindOf = (promise, kind) =>
  promise.then(
    (value) => fail('the request is refused', value, kind.name),
    (error) => (error instanceof BaseError && error.walk((cause) => cause instanceof kind)) || fail('viem knows the error', error, kind.name),
  )
const isA = async (what, promise, kind, code) => claim(what, (await kindOf(promise, kind)).code, code)

async function sequentialBatches() {
  const [A, B, C] = [nobody(), nobody(), nobody()]
  const capabilities = { atomic: { status: 'ready' }, gasLimitOverride: { supported: true } }
  claim('getCapabilities: an account that is not delegated is ready to be', await batcher.getCapabilities(), { 31337: capabilities })
  claim('getCapabilities of this chain', await batcher.getCapabilities({ chainId: foundry.id }), capabilities)
  claim('getCapabilities of another chain', await batcher.getCapabilities({ chainId: mainnet.id }), undefined)

  const [nonce, ether, alpha] = [await nonceOf(owner.address), await etherOf(owner.address), await read(ALPHA, 'balanceOf', [owner.address])]
  const sent = await batcher.sendCalls({
    calls: [{ to: A, value: parseEther('1') }, { to: B, value: parseEther('2') }, callTo(ALPHA, 'transfer', [C, 3n])],
  })
  claim('sendCalls makes an id of 32 bytes', [/^0x[0-9a-f]{64}$/.test(sent.id), sent.batchId, sent.status], [true, sent.id, 'pending'])
  claim('sendCalls tells what the simulation said of each call', sent.capabilities.simulation.calls.map(({ status, error }) => [status, error]),
    [['0x1', undefined], ['0x1', undefined], ['0x1', undefined]])
  const { receipts, ...status } = await batcher.waitForCallsStatus({ id: sent.id })
  claim('waitForCallsStatus: a sequential batch succeeds', status,
    { id: sent.id, chainId: 31337, status: 'success', statusCode: 200, atomic: false, version: '2.0.0' })
  const hashes = receipts.map(({ transactionHash }) => transactionHash)
  const transactions = await Promise.all(hashes.map((hash) => client.getTransaction({ hash })))
  claim('its transactions are the calls, in order',
    transactions.map(({ from, to, value, nonce }) => [getAddress(from), getAddress(to), value, nonce]),
    [[owner.address, A, parseEther('1'), nonce], [owner.address, B, parseEther('2'), nonce + 1], [owner.address, ALPHA, 0n, nonce + 2]])
  claim('each has arrived', [await etherOf(A), await etherOf(B), await read(ALPHA, 'balanceOf', [C])], [parseEther('1'), parseEther('2'), 3n])
  // A batch's status is pre-confirmed, and on /standard a receipt comes with its block.
  const mined = await Promise.all(hashes.map((hash) => client.waitForTransactionReceipt({ hash })))
  const fees = mined.reduce((sum, { gasUsed, effectiveGasPrice }) => sum + gasUsed * effectiveGasPrice, 0n)
  claim('the account has paid them and their gas', [await etherOf(owner.address), await read(ALPHA, 'balanceOf', [owner.address])],
    [ether - parseEther('3') - fees, alpha - 3n])
  const [transfer] = parseEventLogs({ abi, logs: receipts[2].logs })
  claim('a receipt has its call\'s logs', [receipts[0].logs, transfer.args], [[], { from: owner.address, to: C, value: 3n }])

  await client.waitForTransactionReceipt({ hash: hashes[2], confirmations: 2 })
  const sealed = await batcher.getCallsStatus({ id: sent.id })
  const onChain = await Promise.all(hashes.map((hash) => client.getTransactionReceipt({ hash })))
  claim('getCallsStatus once sealed: the receipts are the chain\'s', sealed.receipts, onChain.map((receipt) => ({
    logs: receipt.logs.map(({ address, data, topics }) => ({ address, data, topics })),
    status: receipt.status,
    blockHash: receipt.blockHash,
    blockNumber: receipt.blockNumber,
    gasUsed: receipt.gasUsed,
    transactionHash: receipt.transactionHash,
  })))
  const blocks = await Promise.all(onChain.map(({ blockNumber }) => client.getBlock({ blockNumber })))
  claim('and their blocks the canonical ones', sealed.receipts.map(({ blockHash }) => blockHash), blocks.map(({ hash }) => hash))
  claim('showCallsStatus', await batcher.showCallsStatus({ id: sent.id }), undefined)
}

async function partsOfBatches() {
  const [A, B] = [nobody(), nobody()]
  const greedy = { ...buy(owner.address, parseEther('1'), parseEther('1000000')), from: undefined }
  const nonce = await nonceOf(owner.address)
  const sent = await batcher.sendCalls({ calls: [{ to: A, value: 1n }, greedy, { to: B, value: 2n }] })
  claim('sendCalls: a call that reverts in the simulation is marked', sent.capabilities.simulation.calls.map(({ status, error }) => [status, error]),
    [['0x1', undefined], ['0x0', 'Router: insufficient output amount'], ['0x1', undefined]])
  const partly = await batcher.waitForCallsStatus({ id: sent.id })
  claim('a sequential batch goes on behind a call that reverts: 600',
    [partly.statusCode, partly.status, partly.atomic, partly.receipts.map(({ status }) => status)],
    [600, 'failure', false, ['success', 'reverted', 'success']])
  claim('the others have arrived', [await etherOf(A), await etherOf(B), await nonceOf(owner.address)], [1n, 2n, nonce + 3])
  const none = await carryOut({ calls: [greedy] })
  claim('a batch whose only call reverts: 500', [none.statusCode, none.status, none.receipts.map(({ status }) => status)],
    [500, 'failure', ['reverted']])

  // viem's sendCalls does not support capabilities of single calls, so the request is written out.
  const limited = async (gas) => {
    const data = encodeFunctionData(callTo(ALPHA, 'transfer', [A, 5n]))
    const call = { to: ALPHA, data, capabilities: { gasLimitOverride: { value: numberToHex(gas) } } }
    const { id } = await batcher.request({
      method: 'wallet_sendCalls',
      params: [{ version: '2.0.0', from: owner.address, chainId: numberToHex(foundry.id), atomicRequired: false, calls: [call] }],
    })
    const { statusCode, receipts: [receipt] } = await batcher.waitForCallsStatus({ id })
    return { statusCode, receipt, transaction: await client.getTransaction({ hash: receipt.transactionHash }) }
  }
  const enough = await limited(123_456n)
  claim('gasLimitOverride is the gas limit of its call\'s transaction',
    [enough.transaction.gas, enough.statusCode, await read(ALPHA, 'balanceOf', [A])],
    [123_456n, 200, 5n])
  const short = await limited(25_000n)
  claim('one that is too low is kept to, and all of it used', [short.transaction.gas, short.receipt.gasUsed, short.statusCode],
    [25_000n, 25_000n, 500])
}

async function atomicBatches() {
  const [A, B, C] = [nobody(), nobody(), nobody()]
  const stake = parseEther('7')
  const sale = (to, minimum = 0n) => callTo(ROUTER, 'swapExactTokensForETH', [stake, minimum, [ALPHA, WETH], to, never])
  const allow = callTo(ALPHA, 'approve', [ROUTER, stake])
  const [alpha, [reserve0, reserve1]] = [await read(ALPHA, 'balanceOf', [owner.address]), await read(PAIR, 'getReserves')]
  const out = amountOut(stake, reserve1, reserve0)
  const id = toHex(randomBytes(32))
  const sent = await batcher.sendCalls({ forceAtomic: true, id, calls: [allow, sale(A), { to: B, value: 4n }] })
  claim('sendCalls takes the id that is given', [sent.id, sent.batchId], [id, id])
  const { receipts, ...status } = await batcher.waitForCallsStatus({ id })
  claim('waitForCallsStatus: an atomic batch succeeds', status,
    { id, chainId: 31337, status: 'success', statusCode: 200, atomic: true, version: '2.0.0' })
  claim('it is one transaction', receipts.map(({ status }) => status), ['success'])
  claim('approve and swap and transfer have all been made',
    [await read(ALPHA, 'balanceOf', [owner.address]), await read(ALPHA, 'allowance', [owner.address, ROUTER]), await etherOf(A), await etherOf(B)],
    [alpha - stake, 0n, out, 4n])
  const events = parseEventLogs({ abi, logs: receipts[0].logs, eventName: ['Approval', 'Swap'] })
    .filter(({ address }) => [ALPHA, PAIR].includes(getAddress(address)))
  claim('its receipt has the logs of them all', events.map(({ eventName, args }) => [eventName, args]), [
    ['Approval', { owner: owner.address, spender: ROUTER, value: stake }],
    ['Swap', { sender: ROUTER, amount0In: 0n, amount1In: stake, amount0Out: out, amount1Out: 0n, to: ROUTER }],
  ])
  const transaction = await client.getTransaction({ hash: receipts[0].transactionHash })
  const [authorization] = transaction.authorizationList
  claim('its transaction is the account\'s to itself, and delegates it (EIP-7702)',
    [transaction.type, getAddress(transaction.from), getAddress(transaction.to), authorization.chainId, authorization.nonce],
    ['eip7702', owner.address, owner.address, 31337, transaction.nonce + 1])
  claim('the account\'s code names the batch executor', await client.getCode({ address: owner.address, blockTag: 'pending' }),
    `0xef0100${authorization.address.slice(2)}`)
  claim('which has been deployed', (await client.getCode({ address: authorization.address, blockTag: 'pending' })).length > 2, true)
  claim('getCapabilities: now it is supported', (await batcher.getCapabilities({ chainId: foundry.id })).atomic, { status: 'supported' })

  const nonce = await nonceOf(owner.address)
  const again = await carryOut({ calls: [{ to: B, value: 5n }, { to: C, value: 6n }] })
  claim('a delegated account sends atomically unasked: one transaction, one nonce',
    [again.atomic, again.statusCode, again.receipts.length, await nonceOf(owner.address)],
    [true, 200, 1, nonce + 1])
  claim('its calls have all been made', [await etherOf(B), await etherOf(C)], [9n, 6n])

  const apart = await carryOut({ calls: [{ to: B, value: 7n }, sale(A, parseEther('1000000')), { to: C, value: 8n }] })
  claim('but not where a call reverts: the others still go',
    [apart.atomic, apart.statusCode, await nonceOf(owner.address), await etherOf(B), await etherOf(C)],
    [false, 600, nonce + 4, 16n, 14n])

  const greedy = batcher.sendCalls({ forceAtomic: true, calls: [allow, { to: C, value: 1n }, sale(A, parseEther('1000000'))] })
  claim('an atomic batch that reverts is refused with the reason', (await kindOf(greedy, ExecutionRevertedError)).shortMessage,
    'Execution reverted with reason: Router: insufficient output amount.')
  const poor = batcher.sendCalls({ forceAtomic: true, calls: [{ to: C, value: 1n }, callTo(ALPHA, 'transfer', [C, never])] })
  const { code, data } = await kindOf(poor, RpcRequestError)
  const { errorName, args } = decodeErrorResult({ abi, data })
  claim('or with the data of its custom error', [code, errorName, ...args], [3, 'InsufficientBalance', alpha - stake, never])
  claim('and nothing of it was sent', [await etherOf(C), await nonceOf(owner.address), await read(ALPHA, 'allowance', [owner.address, ROUTER])],
    [14n, nonce + 4, 0n])
  return id
}

async function refusedBatches(id) {
  const calls = [{ to: nobody(), value: 1n }]
  const nonce = await nonceOf(owner.address)
  await isA('sendCalls with an id that there is: 5720', batcher.sendCalls({ id, calls }), DuplicateIdError, 5720)
  await isA('sendCalls for another chain: 5710', batcher.sendCalls({ chain: mainnet, calls }), UnsupportedChainIdError, 5710)
  await isA('sendCalls from an account that is not the wallet\'s: 4100', batcher.sendCalls({ account: nobody(), calls }),
    UnauthorizedProviderError, 4100)
  const paymasterService = { url: 'https://paymaster.example' }
  await isA('sendCalls with a capability that is not supported: 5700', batcher.sendCalls({ capabilities: { paymasterService }, calls }),
    UnsupportedNonOptionalCapabilityError, 5700)
  await isA('sendCalls of 101 calls: 5740', batcher.sendCalls({ calls: Array(101).fill(calls[0]) }), BundleTooLargeError, 5740)
  await isA('sendCalls of another version: -32000', batcher.sendCalls({ version: '1.0', calls }), RpcRequestError, -32000)
  const unknown = toHex(randomBytes(32))
  await isA('getCallsStatus of an id that there is not: 5730', batcher.getCallsStatus({ id: unknown }), UnknownBundleIdError, 5730)
  await isA('showCallsStatus of one: 5730', batcher.showCallsStatus({ id: unknown }), UnknownBundleIdError, 5730)
  await isA('getCapabilities of an account that is not the wallet\'s: 4100', batcher.getCapabilities({ account: nobody() }),
    UnauthorizedProviderError, 4100)
  claim('nothing of what was refused was sent', [await etherOf(calls[0].to), await nonceOf(owner.address)], [0n, nonce])
  const optional = await carryOut({ capabilities: { paymasterService: { ...paymasterService, optional: true } }, calls })
  claim('one that is optional is left out', [optional.statusCode, await etherOf(calls[0].to)], [200, 1n])

  // The account revokes its delegation, as any wallet may.
  const signer = createWalletClient({ account: owner, chain: foundry, transport: http(url) })
  const authorization = await signer.signAuthorization({ contractAddress: zeroAddress, executor: 'self' })
  const hash = await signer.sendTransaction({ to: owner.address, authorizationList: [authorization] })
  await client.waitForTransactionReceipt({ hash })
  claim('a delegation that is taken back is gone', await client.getCode({ address: owner.address, blockTag: 'pending' }), undefined)
  claim('getCapabilities: ready again', (await batcher.getCapabilities({ chainId: foundry.id })).atomic, { status: 'ready' })
}

async function batches() {
  await sequentialBatches()
  await partsOfBatches()
  await refusedBatches(await atomicBatches())
}

/** Uses the node as a page uses a browser's wallet, through a provider (EIP-1193): connect, sign, send, wait. */
async function browsing() {
  const { request } = http(url, { retryCount: 0 })({ chain: foundry })
  const page = createWalletClient({ chain: foundry, transport: custom({ request }), pollingInterval: 100 })
  const known = (accounts) => accounts.map((one) => getAddress(one))
  const accounts = known(await page.request({ method: 'eth_accounts' }))
  // The order of wagmi's injected connector.
  const [permission] = await page.requestPermissions({ eth_accounts: {} })
  claim('requestPermissions has the accounts in its first caveat', known(permission.caveats[0].value), accounts)
  claim('requestAddresses', await page.requestAddresses(), accounts)
  claim('getPermissions', await page.getPermissions(), [permission])
  await page.switchChain({ id: foundry.id })
  await isA('switchChain to another chain: 4902', page.switchChain({ id: mainnet.id }), SwitchChainError, 4902)

  const from = accounts[8]
  const message = 'Sign in to example.com\nNonce: 7 ✓'
  claim('signMessage', await recoverMessageAddress({ message, signature: await page.signMessage({ account: from, message }) }), from)
  const raw = { raw: toHex(randomBytes(32)) }
  claim('signMessage of bytes', await recoverMessageAddress({ message: raw, signature: await page.signMessage({ account: from, message: raw }) }), from)
  const typed = {
    domain: { name: 'Post', version: '1', chainId: foundry.id, verifyingContract: ROUTER },
    types: { Person: [{ name: 'name', type: 'string' }, { name: 'wallets', type: 'address[]' }],
      Mail: [{ name: 'to', type: 'Person[]' }, { name: 'amount', type: 'uint256' }, { name: 'delta', type: 'int64' }, { name: 'data', type: 'bytes' }] },
    primaryType: 'Mail',
    message: { to: [{ name: 'Bob', wallets: [from, other] }], amount: 2n ** 255n, delta: -5n, data: '0x0102' },
  }
  claim('signTypedData', await recoverTypedDataAddress({ ...typed, signature: await page.signTypedData({ account: from, ...typed }) }), from)
  await isA('signTypedData for another chain', page.signTypedData({ account: from, ...typed, domain: { ...typed.domain, chainId: 1 } }),
    RpcRequestError, -32602)
  await isA('signMessage of an account that is not the wallet\'s: 4100', page.signMessage({ account: nobody(), message }),
    UnauthorizedProviderError, 4100)

  const to = nobody()
  const { id } = await page.sendCalls({ account: from, calls: [{ to, value: 1n }, { to, value: 2n }] })
  const { status, receipts } = await page.waitForCallsStatus({ id })
  claim('sendCalls and waitForCallsStatus', [status, receipts.length, await etherOf(to)], ['success', 2, 3n])
}

async function watching() {
  const [polled, pushed] = await Promise.all([
    watch(client, 3, { poll: true, pollingInterval: 100, emitMissed: true }),
    watch(socket, 3, {}),
  ])
  for (const [how, blocks] of Object.entries({ 'HTTP polling': polled, WebSocket: pushed })) {
    const follows = blocks.slice(1).map((block, i) => [block.number - blocks[i].number, block.parentHash === blocks[i].hash])
    claim(`watchBlocks over ${how}: each block is the next one's parent`, follows, [[1n, true], [1n, true]])
  }
  const supply = { to: ALPHA, data: encodeFunctionData({ abi, functionName: 'totalSupply' }), gas: '0x186a0' }
  const bundles = [{ name: 'supply', simulate: { blockStateCalls: [{ calls: [supply] }], outputs: ['returnData'] } }]
  let subscription
  const news = await new Promise((resolve, reject) => {
    subscription = socket.transport.subscribe({ params: ['presim_watch', bundles, 'pending'], onData: ({ result }) => resolve(result), onError: reject })
    subscription.catch(reject)
  })
  claim('presim_watch by eth_subscribe: the first news', news.changed,
    [{ name: 'supply', result: [{ fork: 'osaka', calls: [{ returnData: numberToHex(await read(ALPHA, 'totalSupply'), { size: 32 }) }] }] }])
  const { subscriptionId, unsubscribe } = await subscription
  claim('its id is the name of the watch', (await socket.request({ method: 'presim_results', params: [subscriptionId, '0x0'] })).changed.length, 1)
  claim('it ends with the subscription', [(await unsubscribe()).result, await socket.request({ method: 'presim_unwatch', params: [subscriptionId] })], [true, false])
}

async function unixSocket() {
  const path = process.env.PRESIM_SOCKET
  if (!path) return
  const unix = createPublicClient({ chain: foundry, transport: ipc(path) })
  claim('Unix socket: many requests at once', await Promise.all(Array.from({ length: 50 }, () => unix.getChainId())), Array(50).fill(31337))
  claim('Unix socket: readContract', await unix.readContract({ ...contract(ALPHA, 'totalSupply'), blockTag: 'pending' }), await read(ALPHA, 'totalSupply'))
  const transfer = { ...contract(ALPHA, 'transfer', [other, never]), account: nobody() }
  const reverted = await unix.simulateContract(transfer).catch((error) => error.walk((cause) => cause instanceof ContractFunctionRevertedError))
  claim('Unix socket: a revert is decoded', reverted.data?.errorName, 'InsufficientBalance')
  const data = `0x${'00'.repeat(100_000)}`
  claim('Unix socket: a long request', (await unix.call({ to: '0x0000000000000000000000000000000000000004', data, gas: 10_000_000n })).data, data)
  const blocks = await watch(unix, 3, {})
  claim('watchBlocks on the Unix socket', blocks.map(({ number }) => number - blocks[0].number), [0n, 1n, 2n])
}

try {
  for (const part of [reads, calls, simulations, gas, sending, batches, browsing, watching, unixSocket]) await part()
} catch (error) {
  fail('every request is answered', error, 'an answer')
}
clearTimeout(alarm)
console.log('viem: all claims hold')
process.exit(0)
