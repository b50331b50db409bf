//! alloy against a devnet: the steps of a searcher's program, each checked by value.

use std::time::Duration;

use alloy_eips::{BlockId, BlockNumberOrTag};
use alloy_primitives::{Address, U256, address, keccak256, utils::parse_ether};
use alloy_provider::{Provider, ProviderBuilder, WsConnect};
use alloy_rpc_types_eth::{
    Filter, TransactionRequest,
    simulate::{SimBlock, SimulatePayload},
    state::AccountOverride,
};
use alloy_signer_local::{MnemonicBuilder, PrivateKeySigner, coins_bip39::English};
use alloy_sol_types::{Revert, SolCall, SolError, SolEvent, SolValue, sol};
use eyre::{OptionExt, Result};

use crate::support::TestNode;

const WETH: Address = address!("0x5FbDB2315678afecb367f032d93F642f64180aa3");
const ALPHA: Address = address!("0x9fE46736679d2D9a65F0992F2272dE9f3c7fa6e0");
const ROUTER: Address = address!("0xDc64a140Aa3E981100a9becA4E685f962f0cF6C9");
/// A pair whose token0 is WETH and whose token1 is ALPHA.
const PAIR: Address = address!("0xee48C640427246F01f96c32897AD9B6ab6964fE7");

sol! {
    interface Token {
        function name() external view returns (string memory);
        function balanceOf(address account) external view returns (uint256);
        function totalSupply() external view returns (uint256);
        function transfer(address to, uint256 value) external returns (bool);
        event Transfer(address indexed from, address indexed to, uint256 value);
        error InsufficientBalance(uint256 have, uint256 want);
    }

    interface Pair {
        function getReserves() external view returns (uint112 reserve0, uint112 reserve1, uint32 blockTimestampLast);
        event Swap(address indexed sender, uint256 amount0In, uint256 amount1In, uint256 amount0Out, uint256 amount1Out, address indexed to);
    }

    interface Router {
        function getAmountsOut(uint256 amountIn, address[] calldata path) external view returns (uint256[] memory amounts);
        function swapExactETHForTokens(uint256 amountOutMin, address[] calldata path, address to, uint256 deadline) external payable returns (uint256[] memory amounts);
        function swapExactTokensForETH(uint256 amountIn, uint256 amountOutMin, address[] calldata path, address to, uint256 deadline) external returns (uint256[] memory amounts);
    }
}

/// Starts a devnet whose accounts only the test uses, with a block twice a second.
fn devnet() -> TestNode {
    // Alloy's client needs it. Fails if it was installed before. A program with alloy's own features has one.
    let _ = rustls::crypto::ring::default_provider().install_default();
    TestNode::start(&["--traffic", "0", "--sub-block-ms", "50"])
}

fn signer(index: u32) -> Result<PrivateKeySigner> {
    let phrase = "test test test test test test test test test test test junk";
    Ok(MnemonicBuilder::<English>::default().phrase(phrase).index(index)?.build()?)
}

/// Returns the output of a constant-product pair for `amount_in`, after its fee of 0.3 %.
fn amount_out(amount_in: U256, reserve_in: U256, reserve_out: U256) -> U256 {
    let after_fee = amount_in * U256::from(997);
    after_fee * reserve_out / (reserve_in * U256::from(1000) + after_fee)
}

fn call(to: Address, input: impl SolCall) -> TransactionRequest {
    TransactionRequest::default().to(to).input(input.abi_encode().into())
}

fn buy(from: Address, value: U256) -> TransactionRequest {
    let swap = Router::swapExactETHForTokensCall {
        amountOutMin: U256::ZERO,
        path: vec![WETH, ALPHA],
        to: from,
        deadline: U256::MAX,
    };
    call(ROUTER, swap).from(from).value(value)
}

fn sell(from: Address, amount: U256) -> TransactionRequest {
    let swap = Router::swapExactTokensForETHCall {
        amountIn: amount,
        amountOutMin: U256::ZERO,
        path: vec![ALPHA, WETH],
        to: from,
        deadline: U256::MAX,
    };
    call(ROUTER, swap).from(from)
}

async fn reserves(provider: &impl Provider) -> Result<(U256, U256)> {
    let answer = provider.call(call(PAIR, Pair::getReservesCall {})).block(BlockId::pending()).await?;
    let reserves = Pair::getReservesCall::abi_decode_returns(&answer)?;
    Ok((U256::from(reserves.reserve0), U256::from(reserves.reserve1)))
}

#[tokio::test(flavor = "multi_thread")]
async fn alloy_reads_state_blocks_and_proofs() -> Result<()> {
    let node = devnet();
    let provider = ProviderBuilder::new().connect_http(node.url("/standard").parse()?);

    assert_eq!(provider.get_chain_id().await?, 31337);
    assert_eq!(provider.get_balance(Address::random()).await?, U256::ZERO);
    let answer = provider.call(call(ALPHA, Token::nameCall {})).await?;
    assert_eq!(Token::nameCall::abi_decode_returns(&answer)?, "Alpha");
    let answer = provider.call(call(ALPHA, Token::totalSupplyCall {})).await?;
    let supply = Token::totalSupplyCall::abi_decode_returns(&answer)?;
    assert_eq!(provider.get_storage_at(ALPHA, U256::from(2)).await?, supply);

    let number = provider.get_block_number().await?;
    let block = provider.get_block(BlockId::number(number)).await?.ok_or_eyre("the newest block")?;
    let proof = provider.get_proof(ALPHA, vec![U256::from(2).into()]).number(number).await?;
    assert_eq!(keccak256(&proof.account_proof[0]), block.header.state_root);
    assert_eq!(proof.storage_proof[0].value, supply);
    assert_eq!(keccak256(provider.get_code_at(ALPHA).await?), proof.code_hash);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn alloy_calls_with_overrides_and_decodes_reverts() -> Result<()> {
    let node = devnet();
    let provider = ProviderBuilder::new().connect_http(node.url("/standard").parse()?);
    let nobody = Address::random();

    let transfer = call(ALPHA, Token::transferCall { to: WETH, value: U256::from(7) }).from(nobody);
    let error = provider.call(transfer.clone()).await.expect_err("nobody holds nothing");
    let refusal = error.as_error_resp().and_then(|error| error.as_decoded_error::<Token::InsufficientBalance>());
    let refusal = refusal.ok_or_eyre("the revert is decoded")?;
    assert_eq!((refusal.have, refusal.want), (U256::ZERO, U256::from(7)));

    let slot = keccak256((nobody, U256::ZERO).abi_encode());
    let rich = AccountOverride::default().with_state_diff([(slot, U256::from(7).into())]);
    let done = provider.call(transfer).account_override(ALPHA, rich).await?;
    assert!(Token::transferCall::abi_decode_returns(&done)?);

    let quote = Router::getAmountsOutCall { amountIn: U256::from(1), path: vec![WETH] };
    let error = provider.call(call(ROUTER, quote)).await.expect_err("a path needs two tokens");
    let reason = error.as_error_resp().and_then(|error| error.as_decoded_error::<Revert>());
    assert_eq!(reason.ok_or_eyre("the revert is decoded")?.reason, "Router: invalid path");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn alloy_simulates_a_bundle_where_it_would_land() -> Result<()> {
    let node = devnet();
    let provider = ProviderBuilder::new().connect_http(node.url("/standard").parse()?);
    let (searcher, victim) = (signer(1)?.address(), signer(2)?.address());
    let (reserve0, reserve1) = reserves(&provider).await?;

    // Buys before another's purchase and sells after it.
    let (stake, theirs) = (parse_ether("10")?, parse_ether("20")?);
    let mine = amount_out(stake, reserve0, reserve1);
    let (r0, r1) = (reserve0 + stake, reserve1 - mine);
    let bought = amount_out(theirs, r0, r1);
    let back = amount_out(mine, r1 - bought, r0 + theirs);
    let poor = call(ALPHA, Token::transferCall { to: WETH, value: U256::from(5) }).from(Address::random());
    let bundle =
        SimBlock::default().extend_calls([buy(searcher, stake), buy(victim, theirs), sell(searcher, mine), poor]);
    let balance = SimBlock::default().call(call(ALPHA, Token::balanceOfCall { account: victim }));
    let payload = SimulatePayload::default().extend(bundle).extend(balance);
    let blocks = provider.simulate(&payload).pending().await?;

    let amounts: Vec<Vec<U256>> = blocks[0].calls[..3]
        .iter()
        .map(|call| Router::getAmountsOutCall::abi_decode_returns(&call.return_data))
        .collect::<Result<_, _>>()?;
    assert_eq!(amounts, [[stake, mine], [theirs, bought], [mine, back]]);
    let swap = blocks[0].calls[2].logs.iter().find_map(|log| log.log_decode::<Pair::Swap>().ok());
    let swap = swap.ok_or_eyre("a sale has a Swap event")?.inner.data;
    assert_eq!(
        (swap.amount0In, swap.amount1In, swap.amount0Out, swap.amount1Out),
        (U256::ZERO, mine, back, U256::ZERO)
    );

    let failed = &blocks[0].calls[3];
    let data = failed.error.as_ref().and_then(|error| error.data.clone()).ok_or_eyre("a revert has data")?;
    let refusal = Token::InsufficientBalance::abi_decode(&data)?;
    assert_eq!((failed.status, refusal.have, refusal.want), (false, U256::ZERO, U256::from(5)));

    let before = provider.call(call(ALPHA, Token::balanceOfCall { account: victim })).await?;
    let [before, after] = [&before, &blocks[1].calls[0].return_data].map(|data| U256::from_be_slice(data));
    assert_eq!(after - before, bought, "the second block sees the first");
    let [first, second] = [&blocks[0].inner.header, &blocks[1].inner.header];
    assert_eq!(
        (second.number, second.timestamp, second.parent_hash),
        (first.number + 1, first.timestamp + 12, first.hash)
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn alloy_sends_with_a_wallet_and_finds_its_logs_at_pending() -> Result<()> {
    let node = devnet();
    let wallet = signer(4)?;
    let account = wallet.address();
    let provider = ProviderBuilder::new().wallet(wallet).connect_http(node.url("/standard").parse()?);
    let receiver = Address::random();

    let before = provider.get_balance(account).pending().await?;
    let transfer = TransactionRequest::default().from(account).to(receiver).value(parse_ether("1.5")?);
    assert_eq!(provider.estimate_gas(transfer.clone()).await?, 21_000);
    let sent = provider.send_transaction(transfer).await?.with_timeout(Some(Duration::from_secs(20)));
    let receipt = sent.get_receipt().await?;
    assert_eq!((receipt.status(), receipt.gas_used, receipt.to), (true, 21_000, Some(receiver)));
    let paid = U256::from(receipt.gas_used) * U256::from(receipt.effective_gas_price);
    assert_eq!(provider.get_balance(receiver).pending().await?, parse_ether("1.5")?);
    assert_eq!(provider.get_balance(account).pending().await?, before - parse_ether("1.5")? - paid);

    let (reserve0, reserve1) = reserves(&provider).await?;
    let out = amount_out(parse_ether("2")?, reserve0, reserve1);
    let receipt = provider.send_transaction_sync(buy(account, parse_ether("2")?)).await?;
    assert!(receipt.status());
    let block = receipt.block_number.ok_or_eyre("a pre-confirmed receipt has its block's number")?;
    let filter = Filter::new()
        .address(ALPHA)
        .event_signature(Token::Transfer::SIGNATURE_HASH)
        .topic2(account)
        .from_block(block)
        .to_block(BlockNumberOrTag::Pending);
    let logs = provider.get_logs(&filter).await?;
    assert_eq!(logs.len(), 1, "{logs:?}");
    let transfer = logs[0].log_decode::<Token::Transfer>()?.inner.data;
    assert_eq!((transfer.from, transfer.to, transfer.value), (PAIR, account, out));
    assert_eq!(logs[0].transaction_hash, Some(receipt.transaction_hash));

    // The transaction is in the block being built, or in a sealed block by now.
    let pending = provider.get_block(BlockId::pending()).full().await?.ok_or_eyre("a pending block")?;
    let holder = if pending.header.number == block {
        pending
    } else {
        provider.get_block(BlockId::number(block)).full().await?.ok_or_eyre("a sealed block")?
    };
    assert!(holder.transactions.hashes().any(|hash| hash == receipt.transaction_hash));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn alloy_hears_blocks_and_logs_over_websocket() -> Result<()> {
    let node = devnet();
    let wallet = signer(5)?;
    let account = wallet.address();
    let url = node.url("/standard").replacen("http", "ws", 1);
    let provider = ProviderBuilder::new().wallet(wallet).connect_ws(WsConnect::new(url)).await?;

    let work = async {
        let mut heads = provider.subscribe_blocks().await?;
        let filter = Filter::new().address(PAIR).event_signature(Pair::Swap::SIGNATURE_HASH);
        let mut logs = provider.subscribe_logs(&filter).await?;
        let (reserve0, reserve1) = reserves(&provider).await?;
        let sent = *provider.send_transaction(buy(account, parse_ether("2")?)).await?.tx_hash();

        let log = logs.recv().await?;
        let swap = log.log_decode::<Pair::Swap>()?.inner.data;
        assert_eq!(log.transaction_hash, Some(sent));
        assert_eq!(
            (swap.amount0In, swap.amount1Out, swap.to),
            (parse_ether("2")?, amount_out(parse_ether("2")?, reserve0, reserve1), account)
        );
        let (first, second) = (heads.recv().await?, heads.recv().await?);
        assert_eq!((second.number, second.parent_hash), (first.number + 1, first.hash));
        Ok(())
    };
    tokio::time::timeout(Duration::from_secs(30), work).await?
}
