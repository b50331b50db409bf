//! The outputs of a simulation in addition to the ones of `eth_simulateV1`: changes of the state and of assets, and
//! the producer's income.

use std::collections::{BTreeMap, BTreeSet};

use alloy_primitives::{Address, I256, KECCAK256_EMPTY, Log, U256, map::AddressMap};
use alloy_sol_types::SolEvent;
use revm::state::{AccountInfo, EvmState};

use crate::{engine::transfers::Transfer, state::Overlay};

/// The events by which tokens report transfers (ERC-20, ERC-721, ERC-1155, and WETH9).
mod events {
    /// ERC-20 and ERC-721 have one event, with the value or with the indexed id.
    pub(super) mod erc20 {
        alloy_sol_types::sol! { event Transfer(address indexed from, address indexed to, uint256 value); }
    }
    pub(super) mod erc721 {
        alloy_sol_types::sol! { event Transfer(address indexed from, address indexed to, uint256 indexed id); }
    }
    alloy_sol_types::sol! {
        event TransferSingle(address indexed operator, address indexed from, address indexed to, uint256 id, uint256 value);
        event TransferBatch(address indexed operator, address indexed from, address indexed to, uint256[] ids, uint256[] values);
        event Deposit(address indexed account, uint256 value);
        event Withdrawal(address indexed account, uint256 value);
    }
}

/// A value before and after calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ValueChange<T> {
    /// The value before the first call of the block.
    pub from: T,
    /// The value after its last call.
    pub to: T,
}

/// The change of an account by the calls of a block.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AccountDiff {
    /// The account itself. `None` where it does not exist.
    pub info: ValueChange<Option<AccountInfo>>,
    /// The slots whose value changed.
    pub slots: BTreeMap<U256, ValueChange<U256>>,
    /// Whether the account gets the block's fees. Its balance is shown as a difference, because all transactions of the
    /// block change it.
    pub gets_fees: bool,
}

impl AccountDiff {
    /// Returns about how many bytes it takes, its address included.
    pub(super) fn size(&self) -> usize {
        size_of::<(Address, Self)>() + self.slots.len() * size_of::<(U256, ValueChange<U256>)>()
    }
}

/// The changes of the state by the calls of a block so far.
#[derive(Clone, Debug, Default)]
pub(super) struct DiffRecord(BTreeMap<Address, AccountDiff>);

impl DiffRecord {
    /// Adds the changes of a call that are not in `before` yet.
    pub(super) fn add(&mut self, state: &EvmState, before: &Overlay) {
        for (address, account) in state.iter().filter(|(_, account)| account.is_touched()) {
            let diff = self.0.entry(*address).or_insert_with(|| AccountDiff {
                info: ValueChange { from: before.info(address), to: None },
                ..AccountDiff::default()
            });
            let is_gone = account.is_selfdestructed() || account.is_empty() && !account.is_created();
            if is_gone || account.is_created() {
                diff.slots.values_mut().for_each(|slot| slot.to = U256::ZERO);
            }
            diff.info.to = (!is_gone).then(|| account.info.clone());
            if is_gone {
                continue;
            }
            for (slot, value) in account.storage.iter().filter(|(_, value)| value.is_changed()) {
                let change = ValueChange { from: value.original_value, to: value.present_value };
                diff.slots.entry(*slot).or_insert(change).to = change.to;
            }
        }
    }

    /// Returns about how many bytes it takes.
    pub(super) fn size(&self) -> usize {
        self.0.values().map(AccountDiff::size).sum()
    }

    /// Returns the accounts that changed, by address. `gets_fees` returns whether an account receives the block's
    /// fees.
    pub(super) fn finish(self, gets_fees: impl Fn(&Address) -> bool) -> BTreeMap<Address, AccountDiff> {
        let changed = self.0.into_iter().filter_map(|(address, mut diff)| {
            diff.gets_fees = gets_fees(&address);
            diff.slots.retain(|_, slot| slot.from != slot.to);
            let is_changed = !diff.slots.is_empty() || !is_same(&diff.info.from, &diff.info.to);
            is_changed.then_some((address, diff))
        });
        changed.collect()
    }
}

/// Returns whether the same is shown of two states of an account. An empty account is shown as one that does not exist.
fn is_same(one: &Option<AccountInfo>, other: &Option<AccountInfo>) -> bool {
    let shown = |info: &Option<AccountInfo>| {
        info.as_ref().map_or((U256::ZERO, 0, KECCAK256_EMPTY), |info| (info.balance, info.nonce, info.code_hash))
    };
    shown(one) == shown(other)
}

/// Something that accounts own and transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Asset {
    /// The native currency, in wei.
    Ether,
    /// An ERC-20 token.
    Erc20(Address),
    /// One item of an ERC-721 collection.
    Erc721(Address, U256),
    /// One id of an ERC-1155 contract.
    Erc1155(Address, U256),
}

/// The amounts of an asset that an account has received and sent. Sums stay at their greatest value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NetChange {
    received: U256,
    sent: U256,
}

impl NetChange {
    /// Returns whether the account has lost, and how much it has gained or lost.
    pub fn net(&self) -> (bool, U256) {
        (self.received < self.sent, self.received.abs_diff(self.sent))
    }

    fn receive(&mut self, value: U256) {
        self.received = self.received.saturating_add(value);
    }

    fn send(&mut self, value: U256) {
        self.sent = self.sent.saturating_add(value);
    }
}

/// The assets that the calls of a block moved, by account.
///
/// Token changes are derived from logs, and are only as reliable as these. Ether changes are the calls' transfers,
/// without fees.
#[derive(Clone, Debug, Default)]
pub(super) struct AssetRecord {
    accounts: BTreeMap<Address, BTreeMap<Asset, NetChange>>,
    /// The deposits and withdrawals of contracts that may wrap ether, by contract and account.
    wrapped: BTreeMap<Address, BTreeMap<Address, NetChange>>,
}

/// An account that a call destroyed.
#[derive(Clone, Copy, Debug)]
pub(super) struct DestroyedAccount {
    address: Address,
    /// The balance before the call, wei.
    had: U256,
}

impl DestroyedAccount {
    /// Returns the accounts that a call has destroyed, from the state that the call left.
    pub(super) fn all_of(state: &EvmState, before: &Overlay) -> Vec<Self> {
        let destroyed = state.iter().filter(|(_, account)| account.is_selfdestructed());
        let had = |address: &Address| before.info(address).map_or(U256::ZERO, |info| info.balance);
        destroyed.map(|(address, _)| Self { address: *address, had: had(address) }).collect()
    }
}

/// Returns about how many bytes the net changes of accounts' assets take.
pub(super) fn size_of_assets(accounts: &BTreeMap<Address, BTreeMap<Asset, NetChange>>) -> usize {
    let assets: usize = accounts.values().map(BTreeMap::len).sum();
    accounts.len() * size_of::<(Address, BTreeMap<Asset, NetChange>)>() + assets * size_of::<(Asset, NetChange)>()
}

impl AssetRecord {
    /// Adds the transfers of ether by a call. The ether that is left in a destroyed account is burnt.
    pub(super) fn transfers(&mut self, transfers: &[Transfer], destroyed: &[DestroyedAccount]) {
        for Transfer { from, to, value } in transfers {
            self.change(*from, Asset::Ether).send(*value);
            self.change(*to, Asset::Ether).receive(*value);
        }
        for DestroyedAccount { address, had } in destroyed {
            let mut left = NetChange { received: *had, sent: U256::ZERO };
            transfers.iter().filter(|one| one.to == *address).for_each(|one| left.receive(one.value));
            transfers.iter().filter(|one| one.from == *address).for_each(|one| left.send(one.value));
            self.change(*address, Asset::Ether).send(left.received.saturating_sub(left.sent));
        }
    }

    /// Adds a contract's log. `wrapper` is the chain's contract that wraps ether, like WETH9: its deposits and
    /// withdrawals are not transfers. If it is unknown, all contracts' deposits and withdrawals wait for
    /// [`add_wrapped`](Self::add_wrapped).
    pub(super) fn log(&mut self, log: &Log, wrapper: Option<Address>) {
        let token = log.address;
        let may_wrap = wrapper.is_none_or(|wrapper| wrapper == token);
        let Some(topic) = log.topics().first() else { return };
        match (*topic, log.topics().len()) {
            (events::erc20::Transfer::SIGNATURE_HASH, 3)
                if let Ok(event) = events::erc20::Transfer::decode_log(log) =>
            {
                self.moved_tokens(Asset::Erc20(token), event.from, event.to, event.value);
            }
            (events::erc721::Transfer::SIGNATURE_HASH, 4)
                if let Ok(event) = events::erc721::Transfer::decode_log(log) =>
            {
                self.moved_tokens(Asset::Erc721(token, event.id), event.from, event.to, U256::ONE);
            }
            (events::TransferSingle::SIGNATURE_HASH, _) if let Ok(event) = events::TransferSingle::decode_log(log) => {
                self.moved_tokens(Asset::Erc1155(token, event.id), event.from, event.to, event.value);
            }
            (events::TransferBatch::SIGNATURE_HASH, _) if let Ok(event) = events::TransferBatch::decode_log(log) => {
                for (id, value) in event.ids.iter().zip(&event.values) {
                    self.moved_tokens(Asset::Erc1155(token, *id), event.from, event.to, *value);
                }
            }
            (events::Deposit::SIGNATURE_HASH, _) if may_wrap && let Ok(event) = events::Deposit::decode_log(log) => {
                self.wrapped.entry(token).or_default().entry(event.account).or_default().receive(event.value);
            }
            (events::Withdrawal::SIGNATURE_HASH, _)
                if may_wrap && let Ok(event) = events::Withdrawal::decode_log(log) =>
            {
                self.wrapped.entry(token).or_default().entry(event.account).or_default().send(event.value);
            }
            _ => {}
        }
    }

    /// Adds the deposits and withdrawals so far of the contracts that wrap ether according to `wraps`, and drops the
    /// others.
    pub(super) fn add_wrapped(&mut self, mut wraps: impl FnMut(Address) -> bool) {
        let wrapped = std::mem::take(&mut self.wrapped);
        for (token, accounts) in wrapped.into_iter().filter(|(token, _)| wraps(*token)) {
            for (account, change) in accounts {
                let total = self.change(account, Asset::Erc20(token));
                total.receive(change.received);
                total.send(change.sent);
            }
        }
    }

    /// Adds a transfer of tokens. Transfers from or to the zero address create or destroy tokens.
    fn moved_tokens(&mut self, asset: Asset, from: Address, to: Address, value: U256) {
        if !from.is_zero() {
            self.change(from, asset).send(value);
        }
        if !to.is_zero() {
            self.change(to, asset).receive(value);
        }
    }

    fn change(&mut self, account: Address, asset: Asset) -> &mut NetChange {
        self.accounts.entry(account).or_default().entry(asset).or_default()
    }

    /// Returns about how many bytes it takes.
    pub(super) fn size(&self) -> usize {
        let wrapped: usize = self.wrapped.values().map(BTreeMap::len).sum();
        size_of_assets(&self.accounts) + wrapped * size_of::<(Address, NetChange)>()
    }

    /// Returns the contracts of the tokens, in order.
    pub(super) fn tokens(&self) -> BTreeSet<Address> {
        let assets = self.accounts.values().flat_map(BTreeMap::keys);
        assets
            .filter_map(|asset| match asset {
                Asset::Ether => None,
                Asset::Erc20(token) | Asset::Erc721(token, _) | Asset::Erc1155(token, _) => Some(*token),
            })
            .collect()
    }

    /// Returns the changes that are not zero.
    pub(super) fn finish(mut self) -> BTreeMap<Address, BTreeMap<Asset, NetChange>> {
        for assets in self.accounts.values_mut() {
            assets.retain(|_, change| change.received != change.sent);
        }
        self.accounts.retain(|_, assets| !assets.is_empty());
        self.accounts
    }
}

/// A contract's description of its token. A field is `None` if the contract returns nothing readable.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TokenInfo {
    /// The token's symbol: UTF-8 of at most 64 bytes.
    pub symbol: Option<String>,
    /// The number of decimals in which its values are shown.
    pub decimals: Option<u8>,
}

impl TokenInfo {
    /// The longest symbol that is shown, in bytes.
    const MAX_LENGTH: usize = 64;
    /// The gas that each question to a token may use.
    pub(super) const GAS: u64 = 100_000;

    /// Reads a name or a symbol: a string or, in early tokens, 32 bytes that end in zeros.
    pub(super) fn text_of(data: &[u8]) -> Option<String> {
        use alloy_sol_types::{SolType, sol_data};
        let text = match data {
            bytes if bytes.len() == 32 => {
                let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
                String::from_utf8(bytes[..end].to_vec()).ok()?
            }
            data => sol_data::String::abi_decode_validate(data).ok()?,
        };
        (text.len() <= Self::MAX_LENGTH && !text.is_empty()).then_some(text)
    }

    /// Reads a number of decimals.
    pub(super) fn decimals_of(data: &[u8]) -> Option<u8> {
        U256::try_from_be_slice(data.get(..32)?)?.try_into().ok()
    }
}

/// The tokens' descriptions, by their address.
pub(super) type Tokens = AddressMap<TokenInfo>;

/// The income of a block's producer from the calls of the block, wei.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use alloy_primitives::{Address, U256, address};
/// use presim::{Config, Node, simulation::{BlockOverrides, Call, CoinbaseIncome, Outputs, SimBlock, Simulation}};
///
/// let node = Node::start(Config::default()).await?;
/// let producer = Address::repeat_byte(7);
/// let tip = Call::to(producer).with_value(U256::from(5)).with_from(address!("f39Fd6e51aad88F6F4ce6aB8827279cffFb92266"));
/// let block = BlockOverrides { fee_recipient: Some(producer), ..BlockOverrides::default() };
/// let block = SimBlock { block, ..SimBlock::of([tip]) };
/// let simulated = node.simulate(&Simulation::of([block]).with_outputs(Outputs::COINBASE)).await?;
/// let income: CoinbaseIncome = simulated.blocks[0].coinbase.ok_or("the income is an output")?;
/// // The call offers no price for its gas.
/// assert_eq!((income.fees, income.transfers()), (U256::ZERO, (false, U256::from(5))));
/// # Ok(node.stop().await) }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CoinbaseIncome {
    /// The fees for gas, without the base fee.
    pub fees: U256,
    /// The fee recipient's balance after the block's calls and before them. Transfers are the difference without fees.
    pub balance: ValueChange<U256>,
}

impl CoinbaseIncome {
    /// Returns whether transfers have cost the producer ether, and how much they have brought or cost.
    pub fn transfers(&self) -> (bool, U256) {
        let (gained, lost) = (self.balance.to, self.balance.from.saturating_add(self.fees));
        (gained < lost, gained.abs_diff(lost))
    }
}

/// Returns by how much a value grows. A difference that is too large stays at the limit.
pub(super) fn difference(from: U256, to: U256) -> I256 {
    let signed = |value: U256| I256::try_from(value).unwrap_or(I256::MAX);
    if to >= from { signed(to - from) } else { -signed(from - to) }
}
