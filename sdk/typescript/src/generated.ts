// Written by `npm run generate` from the OpenRPC document of presim. Do not edit.
import type { Address, Hash, Hex } from 'viem'
import type { CallError, Shape } from './codec.js'

export type AbiItem = string | {
  type?: string | undefined
} & { [key: string]: unknown }

/** An address that a transaction accesses, and its slots (EIP-2930). */
export interface AccessListItem {
  address: Address
  storageKeys: readonly Hash[]
}

/** The part of a block's access list about an account (EIP-7928). */
export interface AccountChanges {
  address: Address
  balanceChanges: readonly {
    index: bigint
    value: bigint
  }[]
  codeChanges: readonly CodeChange[]
  nonceChanges: readonly {
    index: bigint
    value: bigint
  }[]
  storageChanges: readonly SlotChanges[]
  storageReads: readonly Hex[]
}

/** The change of an account: the values before and after, where they differ. */
export interface AccountDifference {
  balance?: BalanceDifference | undefined
  code?: Difference2 | undefined
  nonce?: Difference | undefined
  storage?: { [key: string]: Difference3 } | undefined
}

/** The gain of an account, in wei or in a token, less the gas at a price. */
export interface AccountObjective {
  account: Address
  gasPrice?: bigint | number | undefined
  token?: Address | undefined
}

/** The values of an account that differ from its state. */
export interface AccountOverride {
  balance?: bigint | undefined
  code?: Hex | undefined
  movePrecompileTo?: Address | undefined
  movePrecompileToAddress?: Address | undefined
  nonce?: bigint | undefined
  state?: Slots | undefined
  stateDiff?: Slots | undefined
}

/** A batch to be approved. */
export interface AskedBatch {
  /** The account's changes of assets in the simulation, in words. Gas fees are not among them. */
  assets: readonly string[]
  /** Whether all calls are executed or none. */
  atomic: boolean
  /** The calls, in order. */
  calls: readonly AskedCall[]
  /** The estimated fees that a chain of the OP stack takes in addition to gas, for data on L1 and for its operator,
   *  in wei. */
  dataFees?: bigint | undefined
  /** Maximum gas fees of the transactions in wei. Transactions with higher ones are not signed. */
  mostFees: bigint
  /** Number of transactions to be signed, including one that deploys the batch executor. */
  transactions: number
  /** The code that the account is to be delegated to (EIP-7702). `None` if the batch needs no delegation. */
  upgrade?: string | undefined
}

/** A call as it is shown to an approver. */
export interface AskedCall {
  /** Call data. */
  data: string
  /** The gas limit that the client set for this call (`gasLimitOverride`). */
  gasLimit?: number | undefined
  /** Result of the call in the simulation, as text. */
  outcome: string
  /** The callee. `None` creates a contract. */
  to?: string | undefined
  /** Value in wei. */
  value: bigint
  /** The call in words, in lines. Empty if its function is not known. */
  words: readonly string[]
}

/** A message to be signed. */
export interface AskedMessage {
  /** The hash that is signed. */
  hash: string
  /** The message, without the prefix of EIP-191. */
  message: string
}

/** A transaction to be signed and not sent. */
export interface AskedTransaction {
  /** The fields of the transaction. */
  fields: readonly ShownField[]
  /** The hash that is signed. */
  hash: string
  /** The call in words, in lines. Empty if its function is not known. */
  words: readonly string[]
}

/** Typed data to be signed (EIP-712). */
export interface AskedTypedData {
  /** The fields of the domain. */
  domain: readonly ShownField[]
  /** The fields of the message. */
  fields: readonly ShownField[]
  /** The hash that is signed. */
  hash: string
  /** Name of the message's type. */
  primaryType: string
  /** The signature's use in words, in lines. Empty if the type is not known. */
  words: readonly string[]
}

/** The net change of an asset that an account has. */
export interface AssetChange {
  /** A decimal number, which may be negative. */
  change: bigint
  decimals?: bigint | undefined
  id?: bigint | undefined
  symbol?: string | undefined
  token?: Address | undefined
  type: AssetKind
}

export type AssetKind = "ether" | "erc20" | "erc721" | "erc1155"

/** A signed permission to set an account's code (EIP-7702). */
export interface Authorization {
  address: Address
  chainId: bigint
  nonce: bigint
  r: bigint
  s: bigint
  yParity: bigint
}

/** The values before and after, or for the fee recipient by how much its balance changes. */
export interface BalanceDifference {
  /** A decimal number, which may be negative. */
  change?: bigint | undefined
  from?: bigint | undefined
  to?: bigint | undefined
}

/** The id of a batch: the text that its sender gave, or 32 random bytes in hex. */
export type BatchId = string

/** The bundles, and the snapshot after which everything is news.
 *  A WebSocket connection receives the news of each snapshot in parts with part and last, and answers that arrive
 *  after the last part with late. */
export interface Begun {
  id: bigint
  /** The name of the bundles. */
  watch: Hex
}

/** A bundle whose answer holds only up to a snapshot. */
export interface BehindBundle {
  blockNumber?: bigint | undefined
  /** The last snapshot for which the answer holds. Null if there is no answer. */
  id?: bigint | undefined
  name: string
  /** The reason why the bundle does not run. */
  stale?: RunError | undefined
}

/** A block of a simulation. */
export interface BlockCalls {
  blockOverrides?: BlockOverrides | undefined
  calls?: readonly SimulatedCall[] | undefined
  stateOverrides?: { [address: Address]: AccountOverride } | undefined
}

/** The number and the hash of a block. */
export interface BlockId {
  hash: Hash
  number: bigint
}

/** The block's values that differ from its default ones. */
export interface BlockOverrides {
  baseFee?: bigint | undefined
  baseFeePerGas?: bigint | undefined
  beaconRoot?: Hash | undefined
  blobBaseFee?: bigint | undefined
  coinbase?: Address | undefined
  difficulty?: bigint | undefined
  feeRecipient?: Address | undefined
  /** The name of the fork whose rules the block has: one of the chain's, which may be older or newer than the fork
   *  at the block's time. */
  fork?: string | undefined
  gasLimit?: bigint | undefined
  number?: bigint | undefined
  parentBeaconBlockRoot?: Hash | undefined
  prevRandao?: Hash | undefined
  random?: Hash | undefined
  slotNumber?: bigint | undefined
  time?: bigint | undefined
  timestamp?: bigint | undefined
  withdrawals?: readonly Withdrawal[] | undefined
}

/** latest (the newest sealed block), pending (the newest snapshot), safe, finalized, earliest, a number, a hash, or an object with one of blockNumber, blockHash and snapshotId. With transactionIndex, where a state is named: the state after the opening system calls and the first so many transactions of the block; -1 stands for the whole block. */
export type BlockSelector = "latest" | "pending" | "safe" | "finalized" | "earliest" | bigint | Hash | {
  blockHash?: Hash | undefined
  blockNumber?: bigint | undefined
  requireCanonical?: boolean | undefined
  snapshotId?: bigint | undefined
  transactionIndex?: number | undefined
}

/** A transaction's hash, or the transaction in full. */
export type BlockTransaction = Hash | Transaction

/** A call. Fields that are absent have the values that a call without them has. */
export interface Call {
  accessList?: readonly AccessListItem[] | undefined
  authorizationList?: readonly Authorization[] | undefined
  blobVersionedHashes?: readonly Hash[] | undefined
  chainId?: bigint | undefined
  data?: Hex | undefined
  from?: Address | undefined
  gas?: bigint | undefined
  gasPrice?: bigint | undefined
  input?: Hex | undefined
  maxFeePerBlobGas?: bigint | undefined
  maxFeePerGas?: bigint | undefined
  maxPriorityFeePerGas?: bigint | undefined
  nonce?: bigint | undefined
  /** The account that is called. Null creates a contract. */
  to?: Address | null | undefined
  /** Has no effect, because the type follows from the other fields. */
  type?: bigint | number | undefined
  value?: bigint | undefined
}

/** A call frame of geth's `callTracer`. */
export interface CallFrame {
  calls?: readonly CallFrame[] | undefined
  error?: string | undefined
  from: Address
  gas: bigint
  gasRefund?: bigint | undefined
  gasUsed: bigint
  input: Hex
  logs?: readonly FrameLog[] | undefined
  output?: Hex | undefined
  /** The gas of the first frame by its two dimensions, from Amsterdam on. */
  regularGasUsed?: bigint | undefined
  revertReason?: string | undefined
  stateGasUsed?: bigint | undefined
  to?: Address | undefined
  type: string
  value?: bigint | undefined
}

/** An answer that changed. */
export interface ChangedAnswer {
  /** Whether the objective is not above the client's minimum. */
  below?: boolean | undefined
  blockNumber?: bigint | undefined
  error?: RunError | undefined
  /** The snapshot for which the answer holds, if it is not the last one whose news are complete. */
  id?: bigint | undefined
  name: string
  /** The result of the bundle's method. */
  result?: WatchedResult | undefined
}

/** The answers that changed after a snapshot. */
export interface Changes {
  baseFeePerGas?: bigint | undefined
  /** The bundles whose answers hold only up to a snapshot. */
  behind: readonly BehindBundle[]
  /** The number of the block that is being built there, or of the sealed block on which the bundles run. */
  blockNumber?: bigint | undefined
  changed: readonly ChangedAnswer[]
  /** The last snapshot whose news are complete. */
  id: bigint
  timestamp?: bigint | undefined
  /** The name of the bundles, in an answer to `presim_rewatch`. */
  watch?: Hex | undefined
}

export interface CodeChange {
  code: Hex
  index: bigint
}

/** The gain of the fee recipient. */
export interface CoinbaseIncome {
  fees: bigint
  /** A decimal number, which may be negative. */
  transfers: bigint
}

/** The end that a call must have. */
export interface Condition {
  block: number
  call: number
  status: RequiredStatus
}

/** A value before and after. */
export interface Difference {
  from: bigint
  to: bigint
}

/** A value before and after. */
export interface Difference2 {
  from: Hex
  to: Hex
}

/** A value before and after. */
export interface Difference3 {
  from: Hex
  to: Hex
}

/** A call by the index of its block and its own in that. */
export interface DroppedCall {
  block: number
  call: number
}

/** The snapshots on which a bundle runs. */
export type Every = "block" | "snapshot"

/** The state of the feed. */
export interface FeedSummary {
  /** The time between two sub-blocks, if the feed is live or late. */
  everyMs?: number | undefined
  /** The cause in words, if the feed is late or degraded. */
  meaning?: string | undefined
  state: "live" | "lagging" | "static" | "degraded"
}

/** The outcome of a search. */
export interface Found {
  /** The best variants, the best first. */
  best: readonly FoundVariant[]
  /** Whether all variants ran in time. */
  complete: boolean
  /** The fork whose rules apply to the first block. */
  fork: string
  /** The best variant's outputs, if requested. */
  result?: SimulatedBlocks | undefined
  /** The number of variants that ran. */
  runs: number
}

/** A variant, and how it ended. */
export interface FoundVariant {
  /** The first call that did not end as it had to. */
  dropped?: DroppedCall | undefined
  /** The error of a variant that cannot run. */
  error?: RefusedVariant | undefined
  gasUsed?: bigint | undefined
  /** A decimal number, which may be negative. */
  objective?: bigint | undefined
  /** 1 if all calls ended as they had to, and the objective is at least that which is required. */
  status: bigint
  /** The values of the fields that vary. */
  values: readonly bigint[]
}

/** A log of a call frame. */
export interface FrameLog {
  address: Address
  data: Hex
  index?: bigint | undefined
  /** The number of the frame's calls before the log. */
  position?: bigint | undefined
  topics: readonly Hash[]
}

/** The load of a lane. */
export interface LaneStatus {
  overloaded: boolean
  rejected: number
  running: number
  waiting: number
}

/** A log with its position, where it has one. */
export interface Log {
  address: Address
  blockHash?: Hash | undefined
  blockNumber?: bigint | undefined
  blockTimestamp?: bigint | undefined
  blockTimestampMs?: bigint | undefined
  data: Hex
  logIndex: bigint
  /** Whether the log's block was replaced. */
  removed?: boolean | undefined
  topics: readonly Hash[]
  transactionHash?: Hash | undefined
  transactionIndex?: bigint | undefined
}

/** A range in which the best value is looked for, to within a tolerance. */
export interface Maximize {
  from: bigint | number
  to: bigint | number
  tolerance?: bigint | number | undefined
}

export interface MemoryStatus {
  codeBytes: number
  ioBytes: number
  residentBytes?: number | undefined
}

export interface MethodStatus {
  failedPerSecond: number
  method: string
  p50Us: number
  p99Us: number
  perSecond: number
  rejectedPerSecond: number
  total: number
}

/** A contract of the chain that the node knows by name. */
export interface NamedContract {
  address: Address
  name: string
}

/** The newest snapshot, and the state of its feed. */
export interface NewestSnapshot {
  ageMs: number
  blockNumber: bigint
  feed: "live" | "lagging" | "static" | "degraded"
  /** The name of the fork whose rules apply to the block. */
  fork: string
  head: BlockId
  id: bigint
  index: bigint
  /** The age in milliseconds of the oldest sub-block that waits, while the feed lags. */
  lagMs?: number | undefined
  /** The number of sub-blocks that wait, while the feed lags. */
  lagSubBlocks?: number | undefined
  /** The reason why the feed lags or is degraded, while it does or is. */
  reason?: "connecting" | "disconnected" | "gap" | "out_of_order" | "unknown_parent" | "reorg" | "mismatch" | "execution" | "upstream" | "lagging" | "too_late" | "silent" | "other_chain" | "store" | "stream" | "partition" | "behind" | undefined
  /** The part of the block so far that was compared with its producer's figures. */
  verified: "full" | "list" | "partial" | "none"
}

/** The load of the node. */
export interface NodeStatus {
  chainId: bigint
  contracts: readonly NamedContract[]
  /** The part of one core that the process used in the window, in per cent. */
  cpuPercent?: number | undefined
  feed: FeedSummary
  lanes: { [key: string]: LaneStatus }
  memory: MemoryStatus
  methods: readonly MethodStatus[]
  pool: number
  requests: RequestsStatus
  standing: StandingStatus
  subscriptions: number
  uptimeMs: number
  version: string
  /** The warning of `/health`. */
  warning?: string | undefined
  /** The time to which rates and percentiles refer. */
  windowMs: number
  /** The CPU workers. */
  workers: number
}

export type Objective = "coinbase" | "gasUsed" | AccountObjective

/** The condition under which answers are sent. */
export interface Only {
  /** The objective above which answers are sent. */
  above: bigint
}

export type Output = "status" | "gasUsed" | "returnData" | "error" | "logs" | "header" | "transfers" | "stateDiff" | "accessList" | "blockAccessList" | "readSet" | "assets" | "coinbase" | "trace"

/** The payload of `presim_simulate`. */
export interface Payload {
  /** The blocks, in their order. */
  blockStateCalls: readonly BlockCalls[]
  /** Items of an ABI, or texts like "error Name(uint256 value)", used to decode the data of reverts. */
  errors?: readonly AbiItem[] | undefined
  /** The parts of the result. By default the parts of `eth_simulateV1`. */
  outputs?: readonly Output[] | undefined
  /** Whether transactions are shown in full, and not by their hashes. */
  returnFullTransactions?: boolean | undefined
  /** Whether transfers of ether are shown as logs. */
  traceTransfers?: boolean | undefined
  /** Whether calls must be valid transactions, and pay for their gas. */
  validation?: boolean | undefined
  /** The ends that calls must have. Calls that are not named must succeed. */
  when?: readonly Condition[] | undefined
}

/** A waiting request. */
export type Question = (AskedBatch & {
  kind: "batch"
} | AskedMessage & {
  kind: "message"
} | AskedTypedData & {
  kind: "typedData"
} | AskedTransaction & {
  kind: "transaction"
}) & ({
  /** EIP-155 chain id. */
  chainId: number
  /** Name of the client's token. */
  client?: string | undefined
  /** Digest of the request. */
  digest: string
  /** The account that signs. */
  from: string
  /** Id of the request: the batch's, or a random one. */
  id: BatchId
  /** Time until the request is rejected. */
  leftMs: number
  /** Number of the request in the order of arrival. */
  number: number
  /** Origin of the page, as its browser names it. Programs that are no browsers may name any. */
  page?: string | undefined
  /** Time that the request has waited. */
  waitedMs: number
})

/** The parts of an account that a run has read. */
export interface ReadAccount {
  parts: readonly string[]
  slots: readonly Hex[]
}

/** The values that a run has read. */
export interface ReadSet {
  accounts?: { [key: string]: ReadAccount } | undefined
  /** Names of fields of the block. */
  block?: readonly string[] | undefined
  blockHashes?: readonly bigint[] | undefined
  /** Whether too much was read to list it. */
  everything: boolean
  gas?: bigint | undefined
}

/** The error of a variant that cannot run. */
export interface RefusedVariant {
  code: number
  message: string
}

/** Requests since the start, and a second. */
export interface RequestsStatus {
  perSecond: number
  rejected: number
  rejectedPerSecond: number
  total: number
}

/** The conditions on variants. */
export interface Require {
  /** The least objective. */
  least?: bigint | undefined
  /** The ends that calls must have. Calls that are not named must succeed. */
  when?: readonly Condition[] | undefined
}

export type RequiredStatus = "success" | "failure" | "any"

/** The error of a bundle that cannot run. */
export interface RunError {
  code: number
  data?: unknown | undefined
  message: string
}

/** The distance between points: the same difference, or the same factor. */
export type Scale = "linear" | "geometric"

/** The payload of `presim_search`. */
export interface SearchPayload {
  /** The blocks, in their order. */
  blockStateCalls: readonly BlockCalls[]
  /** Items of an ABI, or texts like "error Name(uint256 value)", used to decode the data of reverts. */
  errors?: readonly AbiItem[] | undefined
  /** The amount that the search maximizes; gasUsed is minimized. */
  objective: Objective
  /** The parts of the best variant's result. Without it, there is no result. */
  outputs?: readonly Output[] | undefined
  require?: Require | undefined
  /** Whether transactions are shown in full, and not by their hashes. */
  returnFullTransactions?: boolean | undefined
  /** The number of variants that are returned. 1 by default. */
  top?: number | undefined
  /** Whether transfers of ether are shown as logs. */
  traceTransfers?: boolean | undefined
  /** Whether calls must be valid transactions, and pay for their gas. */
  validation?: boolean | undefined
  /** The fields that vary, each with values in one form. */
  vary: readonly Vary[]
}

/** The outcome of a bundle. */
export interface SentOutcome {
  /** The block that has the bundle, possibly the one being built. */
  blockNumber?: bigint | undefined
  /** The reason why the bundle was dropped. */
  reason?: string | undefined
  /** Whether the bundle waits, is in a block, or was dropped. */
  status: "pending" | "mined" | "dropped"
}

/** A difference between pre-confirmed results and the producer's figures or the canonical block. */
export interface ShownDivergence {
  /** The value that the producer sent, or that the canonical block has. */
  announced: string
  block: bigint
  /** The value that was computed or pre-confirmed here. */
  computed: string
  field: string
  /** The index of the sub-block; null if the canonical block differs. */
  index?: bigint | undefined
  /** Milliseconds since 1970. */
  time: number
  /** The hash of the transaction, if the difference is one transaction's. */
  transaction?: Hash | undefined
}

/** A field of a message, as it is shown to an approver. */
export interface ShownField {
  /** The field's name after the names of the fields around it, such as `order.items[0].token`. */
  name: string
  /** The value. Texts are quoted and escaped. */
  value: string
}

/** A simulated block. Without the output `header` it has no fields of one. */
export interface SimulatedBlock {
  /** The net changes of assets, by account. */
  assets?: { [key: string]: readonly AssetChange[] } | undefined
  baseFeePerGas?: bigint | undefined
  blobGasUsed?: bigint | undefined
  blockAccessList?: readonly AccountChanges[] | undefined
  blockAccessListHash?: Hash | undefined
  calls: readonly SimulatedCallResult[]
  coinbase?: CoinbaseIncome | undefined
  difficulty?: bigint | undefined
  excessBlobGas?: bigint | undefined
  extraData?: Hex | undefined
  /** The name of the fork whose rules apply to the block. Not in `eth_simulateV1`. */
  fork?: string | undefined
  gasLimit?: bigint | undefined
  gasUsed?: bigint | undefined
  hash?: Hash | undefined
  logsBloom?: Hex | undefined
  miner?: Address | undefined
  mixHash?: Hash | undefined
  nonce?: Hex | undefined
  number?: bigint | undefined
  parentBeaconBlockRoot?: Hash | undefined
  parentHash?: Hash | undefined
  readSet?: ReadSet | undefined
  receiptsRoot?: Hash | undefined
  requestsHash?: Hash | undefined
  sha3Uncles?: Hash | undefined
  size?: bigint | undefined
  slotNumber?: bigint | undefined
  stateDiff?: { [key: string]: AccountDifference } | undefined
  stateRoot?: Hash | undefined
  timestamp?: bigint | undefined
  /** The time in milliseconds, if the block has it. */
  timestampMs?: bigint | undefined
  transactions?: readonly BlockTransaction[] | undefined
  transactionsRoot?: Hash | undefined
  uncles?: readonly Hash[] | undefined
  withdrawals?: readonly Withdrawal[] | undefined
  withdrawalsRoot?: Hash | undefined
}

/** The blocks of a simulation, or the call that has not ended as it had to. */
export type SimulatedBlocks = readonly SimulatedBlock[] | {
  dropped: DroppedCall
  readSet?: ReadSet | undefined
}

/** A call, or in `presim_simulate` the bytes of a signed transaction. */
export type SimulatedCall = Call | Hex

/** The result of a call, with the requested outputs. */
export interface SimulatedCallResult {
  accessList?: readonly AccessListItem[] | undefined
  error?: CallError | undefined
  /** The gas that the call pays for. */
  gasUsed?: bigint | undefined
  logs?: readonly Log[] | undefined
  /** The gas that the call needs while it runs, before refunds. */
  maxUsedGas?: bigint | undefined
  returnData?: Hex | undefined
  /** 1 if the call has succeeded. */
  status?: bigint | undefined
  trace?: CallFrame | undefined
  transfers?: readonly Transfer[] | undefined
}

export interface SlotChanges {
  changes: readonly {
    index: bigint
    value: Hex
  }[]
  key: Hex
}

/** Values of storage slots, by slot. */
export type Slots = { [key: string]: Hex }

export interface StandingStatus {
  best: readonly StandingSummary[]
  count: number
}

/** A standing bundle, as the status of the node shows it to its client. */
export interface StandingSummary {
  /** The newest snapshot for which the answer is known to hold. */
  holdsAt?: bigint | undefined
  isDue: boolean
  name: string
  /** The objective of the last run, in decimal. */
  objective?: bigint | undefined
}

/** A transaction with its position, which is null if it is in no block. Some fields belong to an OP-stack deposit.
 *  A post-execution transaction of the OP stack (type 0x7d) has only its position, from, gas, hash, input, type
 *  and value. */
export interface Transaction {
  accessList?: readonly AccessListItem[] | undefined
  authorizationList?: readonly Authorization[] | undefined
  blobVersionedHashes?: readonly Hash[] | undefined
  blockHash?: Hash | undefined
  blockNumber?: bigint | undefined
  blockTimestamp?: bigint | undefined
  blockTimestampMs?: bigint | undefined
  chainId?: bigint | undefined
  depositReceiptVersion?: bigint | undefined
  from: Address
  gas: bigint
  gasPrice?: bigint | undefined
  hash: Hash
  input: Hex
  isSystemTx?: boolean | undefined
  maxFeePerBlobGas?: bigint | undefined
  maxFeePerGas?: bigint | undefined
  maxPriorityFeePerGas?: bigint | undefined
  mint?: bigint | undefined
  nonce?: bigint | undefined
  r?: bigint | undefined
  s?: bigint | undefined
  sourceHash?: Hash | undefined
  to?: Address | undefined
  transactionIndex?: bigint | undefined
  type: bigint
  v?: bigint | undefined
  value: bigint
  yParity?: bigint | undefined
}

/** A transfer of ether. */
export interface Transfer {
  from: Address
  to: Address
  value: bigint
}

/** A field that varies, and its values in one of four forms: a list, steps, points, or a range to search for its best
 *  value. */
export interface Vary {
  from?: bigint | number | undefined
  maximize?: Maximize | undefined
  /** blocks[0].calls[1].data (with word), .value, .gas, .gasPrice, .maxFeePerGas or .maxPriorityFeePerGas, or
   *  blocks[0].stateOverrides.ADDRESS.stateDiff.SLOT. */
  path: string
  points?: number | undefined
  scale?: Scale | undefined
  step?: bigint | number | undefined
  to?: bigint | number | undefined
  values?: readonly (bigint | number)[] | undefined
  /** Word n of the data begins at byte 4 + 32n. */
  word?: number | undefined
}

/** The waiting batches. */
export interface WaitingList {
  /** The batches, beginning with the one that has waited longest. */
  batches: readonly Question[]
  /** Number of further batches, for which the list has no room. */
  more: number
  /** The ids of withdrawn batches that no other batch gets yet. */
  withdrawn?: readonly WithdrawnIds[] | undefined
}

/** A bundle with its name, and the condition under which its news are sent. */
export interface WatchedBundle {
  /** block: the bundle runs on newly opened blocks only. */
  every?: Every | undefined
  name: string
  only?: Only | undefined
  /** A search. Every unsigned call names its gas. */
  search?: SearchPayload | undefined
  /** A simulation. Every unsigned call names its gas. */
  simulate?: Payload | undefined
}

/** The result of `presim_simulate` or `presim_search`. */
export type WatchedResult = SimulatedBlocks | Found

/** A withdrawal from the beacon chain (EIP-4895). The amount is in gwei. */
export interface Withdrawal {
  address: Address
  amount: bigint
  index: bigint
  validatorIndex: bigint
}

/** The withdrawn ids of one client. */
export interface WithdrawnIds {
  /** Name of the client's token. `None` is shared by all clients without a token. */
  client?: string | undefined
  /** Number of ids. */
  ids: number
}

/** The methods of a node whose names begin with `presim_`. */
export interface PresimMethods {
  /** The batches and messages that wait for an approver, in words, beginning with the one that has waited longest. */
  presimApprovals(): Promise<WaitingList>
  /** The last hundred differences between pre-confirmed results and the producer's figures or the canonical block, newest first. */
  presimDivergences(): Promise<readonly ShownDivergence[]>
  /** The outcome of a bundle of eth_sendBundle; null if the client has not sent it, or it is forgotten. The last 10,000 bundles of each client are remembered until a restart, or fewer if all clients' outcomes take more than 32 MiB. */
  presimOutcome(bundleHash: Hash): Promise<SentOutcome | null>
  /** The answers of standing bundles that changed after a snapshot. Waits until one has. */
  presimResults(watch: Hex, id: bigint, waitMs?: bigint | number): Promise<Changes>
  /** Sends a connection the changes since a snapshot, and all later changes. */
  presimRewatch(watch: Hex, id: bigint): Promise<Changes>
  /** Runs a bundle with many values of one or two fields, and returns the values that optimise an objective. */
  presimSearch(payload: SearchPayload, block?: BlockSelector): Promise<Found>
  /** Simulates as eth_simulateV1 does, and returns the named outputs only. See README.md for their shapes. */
  presimSimulate(payload: Payload, block?: BlockSelector): Promise<SimulatedBlocks>
  /** The newest snapshot: id, block being built, index of its newest sub-block, age in milliseconds, canonical head, state of the feed. */
  presimSnapshot(): Promise<NewestSnapshot>
  /** The load of the node in the last seconds, by method and lane, its memory, the state of the feed, and the client's standing bundles with the best objective. */
  presimStatus(): Promise<NodeStatus>
  /** Takes standing bundles back. */
  presimUnwatch(watch: Hex): Promise<boolean>
  /** Watches bundles: each runs again when a new snapshot changes its reads, and changed answers are sent. */
  presimWatch(bundles: readonly WatchedBundle[], block?: BlockSelector): Promise<Begun>
}

/** The name of each method in JSON-RPC, the names of its parameters, and the shape of its result. */
export const methods = {
  presimApprovals: { method: 'presim_approvals', params: [], result: "WaitingList" },
  presimDivergences: { method: 'presim_divergences', params: [], result: {"list":"ShownDivergence"} },
  presimOutcome: { method: 'presim_outcome', params: ["bundle_hash"], result: "SentOutcome" },
  presimResults: { method: 'presim_results', params: ["watch","id","waitMs"], result: "Changes" },
  presimRewatch: { method: 'presim_rewatch', params: ["watch","id"], result: "Changes" },
  presimSearch: { method: 'presim_search', params: ["payload","block"], result: "Found" },
  presimSimulate: { method: 'presim_simulate', params: ["payload","block"], result: "SimulatedBlocks" },
  presimSnapshot: { method: 'presim_snapshot', params: [], result: "NewestSnapshot" },
  presimStatus: { method: 'presim_status', params: [], result: "NodeStatus" },
  presimUnwatch: { method: 'presim_unwatch', params: ["watch"], result: {} },
  presimWatch: { method: 'presim_watch', params: ["bundles","block"], result: "Begun" },
} as const satisfies Record<keyof PresimMethods, { method: string; params: readonly string[]; result: Shape }>

/** The shapes of the results, by the names of their types. */
export const shapes: { readonly [name: string]: Shape } = {
  AccessListItem: {"fields":{}},
  AccountChanges: {"fields":{"balanceChanges":{"list":{"fields":{"index":{"text":"bigint"},"value":{"text":"bigint"}}}},"codeChanges":{"list":"CodeChange"},"nonceChanges":{"list":{"fields":{"index":{"text":"bigint"},"value":{"text":"bigint"}}}},"storageChanges":{"list":"SlotChanges"}}},
  AccountDifference: {"fields":{"balance":"BalanceDifference","code":"Difference2","nonce":"Difference","storage":{"map":"Difference3"}}},
  AskedBatch: {"fields":{"calls":{"list":"AskedCall"},"dataFees":{"text":"bigint"},"mostFees":{"text":"bigint"}}},
  AskedCall: {"fields":{"value":{"text":"bigint"}}},
  AskedMessage: {"fields":{}},
  AskedTransaction: {"fields":{"fields":{"list":"ShownField"}}},
  AskedTypedData: {"fields":{"domain":{"list":"ShownField"},"fields":{"list":"ShownField"}}},
  AssetChange: {"fields":{"change":{"text":"bigint"},"decimals":{"text":"bigint"},"id":{"text":"bigint"}}},
  Authorization: {"fields":{"chainId":{"text":"bigint"},"nonce":{"text":"bigint"},"r":{"text":"bigint"},"s":{"text":"bigint"},"yParity":{"text":"bigint"}}},
  BalanceDifference: {"fields":{"change":{"text":"bigint"},"from":{"text":"bigint"},"to":{"text":"bigint"}}},
  Begun: {"fields":{"id":{"text":"bigint"}}},
  BehindBundle: {"fields":{"blockNumber":{"text":"bigint"},"id":{"text":"bigint"},"stale":"RunError"}},
  BlockId: {"fields":{"number":{"text":"bigint"}}},
  BlockTransaction: "Transaction",
  CallFrame: {"fields":{"calls":{"list":"CallFrame"},"gas":{"text":"bigint"},"gasRefund":{"text":"bigint"},"gasUsed":{"text":"bigint"},"logs":{"list":"FrameLog"},"regularGasUsed":{"text":"bigint"},"stateGasUsed":{"text":"bigint"},"value":{"text":"bigint"}}},
  ChangedAnswer: {"fields":{"blockNumber":{"text":"bigint"},"error":"RunError","id":{"text":"bigint"},"result":"WatchedResult"}},
  Changes: {"fields":{"baseFeePerGas":{"text":"bigint"},"behind":{"list":"BehindBundle"},"blockNumber":{"text":"bigint"},"changed":{"list":"ChangedAnswer"},"id":{"text":"bigint"},"timestamp":{"text":"bigint"}}},
  CodeChange: {"fields":{"index":{"text":"bigint"}}},
  CoinbaseIncome: {"fields":{"fees":{"text":"bigint"},"transfers":{"text":"bigint"}}},
  Difference: {"fields":{"from":{"text":"bigint"},"to":{"text":"bigint"}}},
  Difference2: {"fields":{}},
  Difference3: {"fields":{}},
  DroppedCall: {"fields":{}},
  FeedSummary: {"fields":{}},
  Found: {"fields":{"best":{"list":"FoundVariant"},"result":"SimulatedBlocks"}},
  FoundVariant: {"fields":{"dropped":"DroppedCall","error":"RefusedVariant","gasUsed":{"text":"bigint"},"objective":{"text":"bigint"},"status":{"text":"bigint"},"values":{"list":{"text":"bigint"}}}},
  FrameLog: {"fields":{"index":{"text":"bigint"},"position":{"text":"bigint"}}},
  LaneStatus: {"fields":{}},
  Log: {"fields":{"blockNumber":{"text":"bigint"},"blockTimestamp":{"text":"bigint"},"blockTimestampMs":{"text":"bigint"},"logIndex":{"text":"bigint"},"transactionIndex":{"text":"bigint"}}},
  MemoryStatus: {"fields":{}},
  MethodStatus: {"fields":{}},
  NamedContract: {"fields":{}},
  NewestSnapshot: {"fields":{"blockNumber":{"text":"bigint"},"head":"BlockId","id":{"text":"bigint"},"index":{"text":"bigint"}}},
  NodeStatus: {"fields":{"chainId":{"text":"bigint"},"contracts":{"list":"NamedContract"},"feed":"FeedSummary","lanes":{"map":"LaneStatus"},"memory":"MemoryStatus","methods":{"list":"MethodStatus"},"requests":"RequestsStatus","standing":"StandingStatus"}},
  Question: {"fields":{"calls":{"list":"AskedCall"},"dataFees":{"text":"bigint"},"mostFees":{"text":"bigint"},"domain":{"list":"ShownField"},"fields":{"list":"ShownField"}}},
  ReadAccount: {"fields":{}},
  ReadSet: {"fields":{"accounts":{"map":"ReadAccount"},"blockHashes":{"list":{"text":"bigint"}},"gas":{"text":"bigint"}}},
  RefusedVariant: {"fields":{}},
  RequestsStatus: {"fields":{}},
  RunError: {"fields":{}},
  SentOutcome: {"fields":{"blockNumber":{"text":"bigint"}}},
  ShownDivergence: {"fields":{"block":{"text":"bigint"},"index":{"text":"bigint"}}},
  ShownField: {"fields":{}},
  SimulatedBlock: {"fields":{"assets":{"map":{"list":"AssetChange"}},"baseFeePerGas":{"text":"bigint"},"blobGasUsed":{"text":"bigint"},"blockAccessList":{"list":"AccountChanges"},"calls":{"list":"SimulatedCallResult"},"coinbase":"CoinbaseIncome","difficulty":{"text":"bigint"},"excessBlobGas":{"text":"bigint"},"gasLimit":{"text":"bigint"},"gasUsed":{"text":"bigint"},"number":{"text":"bigint"},"readSet":"ReadSet","size":{"text":"bigint"},"slotNumber":{"text":"bigint"},"stateDiff":{"map":"AccountDifference"},"timestamp":{"text":"bigint"},"timestampMs":{"text":"bigint"},"transactions":{"list":"BlockTransaction"},"withdrawals":{"list":"Withdrawal"}}},
  SimulatedBlocks: {"list":"SimulatedBlock","fields":{"dropped":"DroppedCall","readSet":"ReadSet"}},
  SimulatedCallResult: {"fields":{"accessList":{"list":"AccessListItem"},"error":{"text":"error","fields":{}},"gasUsed":{"text":"bigint"},"logs":{"list":"Log"},"maxUsedGas":{"text":"bigint"},"status":{"text":"bigint"},"trace":"CallFrame","transfers":{"list":"Transfer"}}},
  SlotChanges: {"fields":{"changes":{"list":{"fields":{"index":{"text":"bigint"}}}}}},
  StandingStatus: {"fields":{"best":{"list":"StandingSummary"}}},
  StandingSummary: {"fields":{"holdsAt":{"text":"bigint"},"objective":{"text":"bigint"}}},
  Transaction: {"fields":{"accessList":{"list":"AccessListItem"},"authorizationList":{"list":"Authorization"},"blockNumber":{"text":"bigint"},"blockTimestamp":{"text":"bigint"},"blockTimestampMs":{"text":"bigint"},"chainId":{"text":"bigint"},"depositReceiptVersion":{"text":"bigint"},"gas":{"text":"bigint"},"gasPrice":{"text":"bigint"},"maxFeePerBlobGas":{"text":"bigint"},"maxFeePerGas":{"text":"bigint"},"maxPriorityFeePerGas":{"text":"bigint"},"mint":{"text":"bigint"},"nonce":{"text":"bigint"},"r":{"text":"bigint"},"s":{"text":"bigint"},"transactionIndex":{"text":"bigint"},"type":{"text":"bigint"},"v":{"text":"bigint"},"value":{"text":"bigint"},"yParity":{"text":"bigint"}}},
  Transfer: {"fields":{"value":{"text":"bigint"}}},
  WaitingList: {"fields":{"batches":{"list":"Question"},"withdrawn":{"list":"WithdrawnIds"}}},
  WatchedResult: {"list":"SimulatedBlock","fields":{"dropped":"DroppedCall","readSet":"ReadSet","best":{"list":"FoundVariant"},"result":"SimulatedBlocks"}},
  Withdrawal: {"fields":{"amount":{"text":"bigint"},"index":{"text":"bigint"},"validatorIndex":{"text":"bigint"}}},
  WithdrawnIds: {"fields":{}},
}
