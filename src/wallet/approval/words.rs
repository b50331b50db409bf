//! Describes in words, for an approver, what a call does: the usual functions of tokens, routers and multicalls, by
//! their selectors and parameters.
//!
//! The words describe what a contract of that kind does with such data. The simulation shows what this contract does.

use alloy_dyn_abi::DynSolValue;
use alloy_primitives::{
    Address, Bytes, U256,
    utils::{Unit, format_units},
};
use alloy_sol_types::{SolInterface, sol};

use crate::{
    abi::AbiBook,
    engine::{Asset, NetChange, TokenInfo},
    wallet::TypedMessage,
};

sol! {
    /// ERC-20, ERC-2612, ERC-721, ERC-1155, and WETH9.
    interface TokenFunctions {
        function approve(address spender, uint256 value);
        function increaseAllowance(address spender, uint256 more);
        function decreaseAllowance(address spender, uint256 less);
        function transfer(address to, uint256 value);
        function transferFrom(address from, address to, uint256 value);
        function permit(address owner, address spender, uint256 value, uint256 deadline, uint8 v, bytes32 r, bytes32 s);
        function setApprovalForAll(address operator, bool approved);
        function safeTransferFrom(address from, address to, uint256 id);
        function safeTransferFrom(address from, address to, uint256 id, bytes data);
        function safeTransferFrom(address from, address to, uint256 id, uint256 value, bytes data);
        function safeBatchTransferFrom(address from, address to, uint256[] ids, uint256[] values, bytes data);
        function deposit();
        function withdraw(uint256 value);
    }

    /// Uniswap V2's router.
    interface RouterFunctions {
        function swapExactTokensForTokens(uint256 amount, uint256 limit, address[] path, address to, uint256 deadline);
        function swapTokensForExactTokens(uint256 amount, uint256 limit, address[] path, address to, uint256 deadline);
        function swapExactETHForTokens(uint256 limit, address[] path, address to, uint256 deadline);
        function swapTokensForExactETH(uint256 amount, uint256 limit, address[] path, address to, uint256 deadline);
        function swapExactTokensForETH(uint256 amount, uint256 limit, address[] path, address to, uint256 deadline);
        function swapETHForExactTokens(uint256 amount, address[] path, address to, uint256 deadline);
        function swapExactTokensForTokensSupportingFeeOnTransferTokens(uint256 amount, uint256 limit, address[] path, address to, uint256 deadline);
        function swapExactETHForTokensSupportingFeeOnTransferTokens(uint256 limit, address[] path, address to, uint256 deadline);
        function swapExactTokensForETHSupportingFeeOnTransferTokens(uint256 amount, uint256 limit, address[] path, address to, uint256 deadline);
    }

    /// Several calls of a contract to itself, as Uniswap V3's contracts have them.
    interface MulticallFunctions {
        function multicall(bytes[] calls);
        function multicall(uint256 deadline, bytes[] calls);
        function multicall(bytes32 previousBlock, bytes[] calls);
    }
}

/// ERC-2612's type of a permit (<https://eips.ethereum.org/EIPS/eip-2612>).
const PERMIT: &str = "Permit(address owner,address spender,uint256 value,uint256 nonce,uint256 deadline)";
/// Maximum number of lines for a call.
const MAX_LINES: usize = 64;
/// Maximum nesting of multicalls that is read.
const DEEPEST: usize = 3;
/// Number of characters of a symbol that are shown.
const SHOWN_SYMBOL: usize = 20;
/// Amounts from here on are treated as unlimited, because no account holds as much.
const UNLIMITED: U256 = U256::from_limbs([0, 0, 0, 1 << 63]);

/// A call whose data is read.
#[derive(Clone, Copy, Debug)]
pub struct ReadCall<'a> {
    /// The sender.
    pub account: Address,
    /// The callee.
    pub to: Address,
    /// Value in wei.
    pub value: U256,
    /// Call data.
    pub data: &'a Bytes,
}

/// The words for a call. Texts of contracts in them are quoted, escaped and cut.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CallWords {
    /// The words, in lines. Empty if the function is not known.
    pub lines: Vec<String>,
    /// The accounts that the call lets take something.
    pub spenders: Vec<Address>,
}

/// Reads data into words. Tokens are asked for their symbol and decimals by a function.
pub struct WordReader<'a> {
    tokens: &'a mut dyn FnMut(Address) -> TokenInfo,
}

impl<'a> WordReader<'a> {
    /// Creates a reader that asks `tokens`.
    pub fn new(tokens: &'a mut dyn FnMut(Address) -> TokenInfo) -> Self {
        Self { tokens }
    }

    /// Returns the words for a call.
    pub fn call(&mut self, call: ReadCall<'_>) -> CallWords {
        let mut words = CallWords::default();
        self.read(call, 0, &mut words);
        if words.lines.len() > MAX_LINES {
            let more = words.lines.len() - MAX_LINES;
            words.lines.truncate(MAX_LINES);
            words.lines.push(format!("and {more} lines more"));
        }
        words
    }

    /// Returns the words for a message whose signature lets an account take tokens.
    pub fn message(&mut self, message: &TypedMessage) -> CallWords {
        let uint = |name| message.field(name).and_then(DynSolValue::as_uint).map(|(value, _)| value);
        let address = |name| message.field(name).and_then(DynSolValue::as_address);
        let (Some(token), Some(spender), Some(value), Some(deadline)) =
            (message.domain.verifying_contract, address("spender"), uint("value"), uint("deadline"))
        else {
            return CallWords::default();
        };
        if message.encoded_type != PERMIT {
            return CallWords::default();
        }
        let amount = self.amount(value, token, None);
        let until = if deadline >= UNLIMITED { "for ever".to_owned() } else { format!("until time {deadline}") };
        let line = format!("whoever has the signature can approve {amount} to {spender}, {until}");
        CallWords { lines: vec![line], spenders: vec![spender] }
    }

    /// Returns the words for an account's change of an asset.
    pub fn change(&mut self, asset: Asset, change: &NetChange) -> String {
        let (is_loss, value) = change.net();
        let sign = if is_loss { '-' } else { '+' };
        match asset {
            Asset::Ether => format!("{sign}{} ether", ether(value)),
            Asset::Erc20(token) => format!("{sign}{}", self.amount(value, token, None)),
            Asset::Erc721(token, id) => format!("{sign}item {id} of {}", self.name(token, None)),
            Asset::Erc1155(token, id) => format!("{sign}{value} of item {id} of {}", self.name(token, None)),
        }
    }

    fn read(&mut self, call: ReadCall<'_>, depth: usize, words: &mut CallWords) {
        let ReadCall { to, value, data, .. } = call;
        let line = if data.is_empty() {
            (depth == 0 && !value.is_zero()).then(|| format!("send {} ether to {to}", ether(value)))
        } else if let Ok(function) = TokenFunctions::TokenFunctionsCalls::abi_decode_validate(data) {
            Some(self.token(call, function, words))
        } else if let Ok(function) = RouterFunctions::RouterFunctionsCalls::abi_decode_validate(data) {
            Some(self.swap(call, function))
        } else if let Ok(function) = MulticallFunctions::MulticallFunctionsCalls::abi_decode_validate(data) {
            return self.multicall(call, function, depth, words);
        } else {
            None
        };
        let unknown = || (depth > 0).then(|| format!("a call of {}", function_of(data)));
        words.lines.extend(line.or_else(unknown).map(|line| format!("{:1$}{line}", "", 2 * depth)));
    }

    fn multicall(
        &mut self,
        call: ReadCall<'_>,
        function: MulticallFunctions::MulticallFunctionsCalls,
        depth: usize,
        words: &mut CallWords,
    ) {
        use MulticallFunctions::MulticallFunctionsCalls as Calls;
        let calls = match function {
            Calls::multicall_0(multicall) => multicall.calls,
            Calls::multicall_1(multicall) => multicall.calls,
            Calls::multicall_2(multicall) => multicall.calls,
        };
        let plural = if calls.len() == 1 { "" } else { "s" };
        words.lines.push(format!("{:1$}multicall of {2} call{plural}:", "", 2 * depth, calls.len()));
        for data in calls.iter().filter(|_| depth < DEEPEST) {
            if words.lines.len() > MAX_LINES {
                return;
            }
            self.read(ReadCall { data, ..call }, depth + 1, words);
        }
    }

    fn token(
        &mut self,
        call: ReadCall<'_>,
        function: TokenFunctions::TokenFunctionsCalls,
        words: &mut CallWords,
    ) -> String {
        use TokenFunctions::TokenFunctionsCalls as Calls;
        let ReadCall { account, to: token, .. } = call;
        let mut amount = |value| self.amount(value, token, Some(token));
        let whose = |from: Address| if from == account { String::new() } else { format!(" of {from}") };
        let mut spends = |spender| words.spenders.push(spender);
        match function {
            Calls::approve(one) if one.value.is_zero() => {
                format!("withdraw the approval of {} from {}", self.name(token, Some(token)), one.spender)
            }
            Calls::approve(one) => {
                spends(one.spender);
                format!("approve {} to {}", amount(one.value), one.spender)
            }
            Calls::increaseAllowance(one) => {
                spends(one.spender);
                format!("approve {} more to {}", amount(one.more), one.spender)
            }
            Calls::decreaseAllowance(one) => format!("approve {} less to {}", amount(one.less), one.spender),
            Calls::transfer(one) => format!("send {} to {}", amount(one.value), one.to),
            Calls::transferFrom(one) => {
                format!("send {}{} to {}", amount(one.value), whose(one.from), one.to)
            }
            Calls::permit(one) => {
                spends(one.spender);
                format!("approve {}{} to {} by a signed permit", amount(one.value), whose(one.owner), one.spender)
            }
            Calls::setApprovalForAll(one) if one.approved => {
                spends(one.operator);
                format!("approve ALL items of {} to {}", self.name(token, Some(token)), one.operator)
            }
            Calls::setApprovalForAll(one) => {
                format!("withdraw the approval of all items of {} from {}", self.name(token, Some(token)), one.operator)
            }
            Calls::safeTransferFrom_0(one) => self.item(token, one.id, None, &whose(one.from), one.to),
            Calls::safeTransferFrom_1(one) => self.item(token, one.id, None, &whose(one.from), one.to),
            Calls::safeTransferFrom_2(one) => self.item(token, one.id, Some(one.value), &whose(one.from), one.to),
            Calls::safeBatchTransferFrom(one) => {
                let (count, name) = (one.ids.len(), self.name(token, Some(token)));
                format!("send {count} kinds of items of {name}{} to {}", whose(one.from), one.to)
            }
            Calls::deposit(_) => format!("wrap {} ether as {}", ether(call.value), self.name(token, Some(token))),
            Calls::withdraw(one) => format!("unwrap {}", amount(one.value)),
        }
    }

    fn item(&mut self, token: Address, id: U256, count: Option<U256>, whose: &str, to: Address) -> String {
        let count = count.map_or_else(String::new, |count| format!("{count} of "));
        format!("send {count}item {id} of {}{whose} to {to}", self.name(token, Some(token)))
    }

    fn swap(&mut self, call: ReadCall<'_>, function: RouterFunctions::RouterFunctionsCalls) -> String {
        use RouterFunctions::RouterFunctionsCalls as Calls;
        // The amounts paid and received, `None` if in ether, and which of them is a limit.
        let paid = call.value;
        let (pays, gets, is_exact, path, to) = match function {
            Calls::swapExactTokensForTokens(one) => ((one.amount, false), (one.limit, false), true, one.path, one.to),
            Calls::swapExactTokensForTokensSupportingFeeOnTransferTokens(one) => {
                ((one.amount, false), (one.limit, false), true, one.path, one.to)
            }
            Calls::swapTokensForExactTokens(one) => ((one.limit, false), (one.amount, false), false, one.path, one.to),
            Calls::swapExactETHForTokens(one) => ((paid, true), (one.limit, false), true, one.path, one.to),
            Calls::swapExactETHForTokensSupportingFeeOnTransferTokens(one) => {
                ((paid, true), (one.limit, false), true, one.path, one.to)
            }
            Calls::swapTokensForExactETH(one) => ((one.limit, false), (one.amount, true), false, one.path, one.to),
            Calls::swapExactTokensForETH(one) => ((one.amount, false), (one.limit, true), true, one.path, one.to),
            Calls::swapExactTokensForETHSupportingFeeOnTransferTokens(one) => {
                ((one.amount, false), (one.limit, true), true, one.path, one.to)
            }
            Calls::swapETHForExactTokens(one) => ((paid, true), (one.amount, false), false, one.path, one.to),
        };
        let (Some(first), Some(last)) = (path.first(), path.last()) else {
            return "swap along an empty path".to_owned();
        };
        let mut amount = |(value, is_ether): (U256, bool), token: Address| match is_ether {
            true => format!("{} ether", ether(value)),
            false => self.amount(value, token, Some(token)),
        };
        let (paid, got) = (amount(pays, *first), amount(gets, *last));
        let terms = match is_exact {
            true if gets.0.is_zero() => format!("swap {paid} for ANY amount, even none"),
            true => format!("swap {paid} for at least {got}"),
            false => format!("swap at most {paid} for {got}"),
        };
        let shown = path.iter().take(SHOWN_PATH).map(|token| self.name(*token, None)).collect::<Vec<_>>().join(" > ");
        let more = if path.len() > SHOWN_PATH {
            format!(" and {} tokens more", path.len() - SHOWN_PATH)
        } else {
            String::new()
        };
        let to = if to == call.account { "the account itself".to_owned() } else { format!("ANOTHER account, {to}") };
        format!("{terms}, by the path {shown}{more}, for {to}")
    }

    /// Returns an amount of a token in words. `known` is the contract whose address the reader already sees.
    fn amount(&mut self, value: U256, token: Address, known: Option<Address>) -> String {
        let name = self.name(token, known);
        if value >= UNLIMITED {
            return format!("UNLIMITED {name}");
        }
        match (self.tokens)(token).decimals.filter(|decimals| Unit::new(*decimals).is_some()) {
            Some(decimals) => format!("{} {name}", units(value, decimals)),
            None => format!("{value} (units, or the number of an item) of {name}"),
        }
    }

    /// Returns a token's symbol, with its address unless that is `known`.
    fn name(&mut self, token: Address, known: Option<Address>) -> String {
        match ((self.tokens)(token).symbol, known == Some(token)) {
            (Some(text), true) => symbol(&text),
            (Some(text), false) => format!("{} ({token})", symbol(&text)),
            (None, true) => "this contract's tokens".to_owned(),
            (None, false) => format!("tokens of {token}"),
        }
    }
}

/// Number of tokens of a path that are shown.
const SHOWN_PATH: usize = 8;

/// Formats an amount of wei in ether, without trailing zeros.
pub fn ether(wei: U256) -> String {
    units(wei, 18)
}

/// Formats an amount in units of so many decimals, without trailing zeros. With more decimals than a number has digits, formats the
/// amount itself.
pub fn units(value: U256, decimals: u8) -> String {
    let text = format_units(value, decimals).unwrap_or_else(|_| value.to_string());
    match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text,
    }
}

/// Returns a symbol as it is, or quoted, escaped and cut if it could be taken for other words.
fn symbol(text: &str) -> String {
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "$._-+".contains(letter);
    let is_taken = ["ether", "eth", "unlimited", "any", "all"].iter().any(|word| text.eq_ignore_ascii_case(word));
    if text.chars().count() <= SHOWN_SYMBOL && text.chars().all(is_plain) && !is_taken {
        return text.to_owned();
    }
    let shown: String = text.chars().take(SHOWN_SYMBOL).collect();
    let cut = if shown.len() < text.len() { "..." } else { "" };
    format!("\"{}{cut}\"", shown.escape_default())
}

/// Returns the function of data that no words are known for, by its usual signature or its selector.
fn function_of(data: &Bytes) -> String {
    match (AbiBook::usual().input(data), data.get(..4)) {
        (Some(input), _) => input.function.signature(),
        (None, Some(selector)) => format!("the unknown function {}", const_hex::encode_prefixed(selector)),
        (None, None) => "no function".to_owned(),
    }
}

#[cfg(test)]
mod tests;
