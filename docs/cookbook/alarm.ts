// A liquidation alarm: reports when the collateral of a loan is worth too little, in the sub-block that moves its price.
// The program itself moves the price by a swap. Run `presim --traffic 0`, and this program with the packages viem
// and presim.
import {
  createWalletClient,
  decodeFunctionResult,
  encodeFunctionData,
  formatEther,
  http,
  maxUint256,
  parseAbi,
  parseEther,
  webSocket,
} from 'viem'
import { foundry } from 'viem/chains'
import { presimClient } from 'presim'

const client = presimClient({ transport: webSocket('ws://127.0.0.1:8545/standard') })
const trader = createWalletClient({
  account: '0x70997970C51812dc3A010C7d01b50e0d17dc79C8',
  chain: foundry,
  transport: http('http://127.0.0.1:8545/standard'),
})
const [WETH, ALPHA] = [
  '0x5FbDB2315678afecb367f032d93F642f64180aa3',
  '0x9fE46736679d2D9a65F0992F2272dE9f3c7fa6e0',
] as const
const ROUTER = '0xDc64a140Aa3E981100a9becA4E685f962f0cF6C9'
const abi = parseAbi([
  'function getAmountsOut(uint256 amountIn, address[] path) view returns (uint256[])',
  'function swapExactETHForTokens(uint256 min, address[] path, address to, uint256 deadline) payable returns (uint256[])',
])

// The loan: 1 ether is collateral for a debt in ALPHA, which the collateral must exceed by a quarter.
const price = encodeFunctionData({ abi, functionName: 'getAmountsOut', args: [parseEther('1'), [WETH, ALPHA]] })
const bundle = {
  name: 'loan',
  simulate: {
    blockStateCalls: [{ calls: [{ to: ROUTER, gas: 200_000n, data: price }] }],
    outputs: ['status', 'returnData'],
  },
} as const
const swap = encodeFunctionData({
  abi,
  functionName: 'swapExactETHForTokens',
  args: [0n, [WETH, ALPHA], trader.account.address, maxUint256],
})

let least: bigint | undefined
for await (const news of client.watch([bundle])) {
  if (news.kind === 'begun') continue
  for (const { result, error } of news.changed) {
    const data = Array.isArray(result) ? result[0]?.calls[0]?.returnData : undefined
    if (!data) throw new Error(`no price: ${error?.message}`)
    const worth = decodeFunctionResult({ abi, functionName: 'getAmountsOut', data })[1] ?? 0n
    const debt = (least ??= (worth * 7n) / 10n)
    console.log(
      `the collateral is worth ${Number(formatEther(worth)).toFixed(3)} ALPHA, ${(worth * 100n) / debt} % of the debt`,
    )
    if (worth * 100n < debt * 125n) {
      console.log('ALARM: it covers less than 125 %')
      process.exit()
    }
    await trader.sendTransaction({ to: ROUTER, value: parseEther('100'), data: swap, gas: 500_000n })
  }
}

/* Output:
the collateral is worth 1992.014 ALPHA, 142 % of the debt
the collateral is worth 1646.891 ALPHA, 118 % of the debt
ALARM: it covers less than 125 %
*/
