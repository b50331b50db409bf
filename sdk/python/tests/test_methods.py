"""The methods over HTTP, on both dialects."""

import asyncio
import sys
from pathlib import Path

import pytest
from hexbytes import HexBytes
from presim import AsyncPresim, BundleDropped, Presim, PresimError, to_dataframe
from presim.params import Payload, SearchPayload
from presim.results import AccountDifference, AssetChange, NewestSnapshot, SimulatedBlock
from web3 import AsyncHTTPProvider, AsyncIPCProvider, AsyncWeb3, Web3, WebSocketProvider
from web3.exceptions import Web3RPCError

from tests.world import ACCOUNT, ALPHA, BETA, ETHER, NOBODY, PAIR, ROUTER, WETH, balance_of, call_data, node, swap

PAYMENT: Payload = {
    "blockStateCalls": [{"calls": [{"from": ACCOUNT.address, "to": NOBODY, "value": 3 * ETHER}]}],
    "outputs": ["status", "gasUsed", "assets", "stateDiff", "transfers", "readSet", "trace", "coinbase"],
}
# The gain of a swap of ALPHA for BETA, in BETA.
SEARCH: SearchPayload = {
    "blockStateCalls": [
        {"calls": [{"from": ACCOUNT.address, "to": ROUTER, "gas": 500_000, "data": swap(0, [ALPHA, BETA], NOBODY)}]}
    ],
    "vary": [{"path": "blocks[0].calls[0].data", "word": 0, "from": ETHER, "to": 10 * ETHER, "points": 10}],
    "objective": {"account": NOBODY, "token": BETA},
    "top": 10,
}
RESERVE = 10**24  # Of both tokens in the pair ALPHA/BETA.


def gained(amount: int) -> int:
    return amount * 997 * RESERVE // (RESERVE * 1000 + amount * 997)


def test_simulation_has_numbers_bytes_and_addresses(presim: Presim) -> None:
    [block] = presim.simulate(PAYMENT)
    [call] = block.calls
    assert (call.status, call.gas_used, call.return_data, block.fork) == (1, 21000, None, "osaka")
    assert block.assets is not None and block.state_diff is not None
    assert block.assets[ACCOUNT.address] == [AssetChange(type="ether", change=-3 * ETHER)]
    assert block.assets[NOBODY] == [AssetChange(type="ether", change=3 * ETHER)]
    difference: AccountDifference = block.state_diff[NOBODY]
    assert difference.balance is not None and difference.balance.to == (difference.balance.from_ or 0) + 3 * ETHER
    assert call.transfers is not None
    assert [(one.from_, one.to, one.value) for one in call.transfers] == [(ACCOUNT.address, NOBODY, 3 * ETHER)]
    assert call.trace is not None and (call.trace.type, call.trace.value) == ("CALL", 3 * ETHER)
    assert block.read_set is not None and block.read_set.accounts is not None
    assert "balance" in block.read_set.accounts[ACCOUNT.address].parts
    assert block.coinbase is not None and block.coinbase.transfers == 0


def test_simulated_header_is_the_one_of_eth_simulate(presim: Presim) -> None:
    payload: Payload = {"blockStateCalls": [{"calls": [{"to": ALPHA, "data": balance_of(NOBODY)}]}]}
    head = presim.w3.eth.get_block("latest")
    [block] = presim.simulate(payload, head["number"])
    assert (block.number, block.parent_hash) == (head["number"] + 1, head["hash"])
    assert presim.simulate(payload, head["hash"])[0].parent_hash == head["hash"]
    assert isinstance(block.hash, HexBytes) and block.calls[0].return_data == bytes(32)


def test_state_overrides_take_numbers_and_bytes(presim: Presim) -> None:
    # Returns its slot 1.
    code = HexBytes("0x60015460005260206000f3")
    payload: Payload = {
        "blockStateCalls": [
            {
                "stateOverrides": {NOBODY: {"code": code, "stateDiff": {1: 2**255}, "balance": 7}},
                "blockOverrides": {"gasLimit": 10**7, "feeRecipient": bytes(HexBytes(PAIR))},
                "calls": [{"to": NOBODY}],
            }
        ]
    }
    [block] = presim.simulate(payload)
    assert block.calls[0].return_data == (2**255).to_bytes(32, "big")
    assert (block.gas_limit, block.miner) == (10**7, PAIR)


def test_snapshot_id_selects_one_state(presim: Presim) -> None:
    snapshot: NewestSnapshot = presim.snapshot()
    assert (snapshot.feed, snapshot.fork, snapshot.verified) == ("live", "osaka", "full")
    [block] = presim.simulate({"blockStateCalls": [{}]}, {"snapshotId": snapshot.id})
    assert block.parent_hash == snapshot.head.hash


def test_signed_transaction_is_a_call(presim: Presim) -> None:
    transaction = {"to": NOBODY, "value": 1, "gas": 21000, "gasPrice": 10**11, "chainId": 31337}
    nonce = presim.w3.eth.get_transaction_count(ACCOUNT.address, "pending")
    raw = ACCOUNT.sign_transaction({**transaction, "nonce": nonce}).raw_transaction
    [block] = presim.simulate({"blockStateCalls": [{"calls": [bytes(raw)]}], "outputs": ["status"]})
    assert block.calls[0].status == 1


def test_access_list_of_a_block_under_the_next_fork(presim: Presim) -> None:
    outputs: Payload = {
        "blockStateCalls": [{**PAYMENT["blockStateCalls"][0], "blockOverrides": {"fork": "amsterdam"}}],
        "outputs": ["blockAccessList", "status"],
    }
    [block] = presim.simulate(outputs)
    assert block.fork == "amsterdam" and block.block_access_list is not None
    [nobody] = [one for one in block.block_access_list if one.address == NOBODY]
    assert [one.value for one in nobody.balance_changes] == [presim.w3.eth.get_balance(NOBODY, "pending") + 3 * ETHER]


def test_search_finds_the_formula(presim: Presim) -> None:
    found = presim.search(SEARCH)
    assert (found.runs, found.complete, found.result) == (10, True, None)
    assert [(one.values, one.objective) for one in found.best] == [
        ([amount * ETHER], gained(amount * ETHER)) for amount in range(10, 0, -1)
    ]
    least = gained(9 * ETHER)
    bounded = presim.search({**SEARCH, "require": {"least": least}})
    assert [one.status for one in bounded.best] == [1, 1] + [0] * 8
    assert presim.search({**SEARCH, "require": {"least": -1}}).best[-1].status == 1


def test_dropped_bundle_is_an_exception(presim: Presim) -> None:
    payload: Payload = {
        "blockStateCalls": [
            {"calls": [{"to": NOBODY}, {"from": NOBODY, "to": ALPHA, "data": call_data("nothing()", [], [])}]}
        ],
        "when": [{"block": 0, "call": 0, "status": "any"}],
    }
    with pytest.raises(BundleDropped) as caught:
        presim.simulate(payload)
    assert (caught.value.dropped.dropped.block, caught.value.dropped.dropped.call) == (0, 1)


def test_error_has_code_message_and_data(presim: Presim) -> None:
    with pytest.raises(PresimError) as caught:
        presim.simulate({**PAYMENT, "outputs": ["nope"]})  # type: ignore[list-item]
    assert (caught.value.code, caught.value.data) == (-32602, None)
    assert caught.value.message.startswith('params[0].outputs[0]: "nope": unknown output')
    assert isinstance(caught.value, Web3RPCError)
    with pytest.raises(PresimError) as caught:
        presim.search({**SEARCH, "vary": [{**SEARCH["vary"][0], "points": 10**6}]})
    assert caught.value.code == -32005 and str(caught.value).startswith("-32005: ")


def test_outcome_status_and_lists(presim: Presim) -> None:
    assert presim.outcome(bytes(32)) is None
    assert presim.divergences() == []
    status = presim.status()
    assert status.chain_id == 31337 and status.lanes["short"].rejected == 0
    assert {"WETH": WETH, "ALPHA": ALPHA}.items() <= {one.name: one.address for one in status.contracts}.items()
    assert isinstance(status.cpu_percent, (float, type(None)))


def test_no_batch_waits_for_an_approver(presim: Presim) -> None:
    assert presim.approvals().batches == []


def test_polled_watch(presim: Presim) -> None:
    call = {"to": ALPHA, "data": balance_of(NOBODY), "gas": 100_000}
    simulation: Payload = {"blockStateCalls": [{"calls": [call]}], "outputs": ["returnData"]}  # type: ignore[list-item]
    begun = presim.create_watch([{"name": "balance", "simulate": simulation}])
    assert presim.results(begun.watch, begun.id, 10_000).changed[0].name == "balance"
    assert (presim.unwatch(begun.watch), presim.unwatch(begun.watch)) == (True, False)


def test_attached_module(url: str) -> None:
    w3 = Web3(Web3.HTTPProvider(url), external_modules={"presim": Presim})
    assert w3.presim.snapshot().feed == "live"  # type: ignore[attr-defined]


def test_coroutines_over_http_and_websocket(url: str) -> None:
    async def answers(presim: AsyncPresim) -> list[SimulatedBlock]:
        with pytest.raises(PresimError) as caught:
            await presim.simulate({**PAYMENT, "outputs": ["nope"]})  # type: ignore[list-item]
        assert caught.value.code == -32602
        assert (await presim.search(SEARCH)).best[0].objective == gained(10 * ETHER)
        return await presim.simulate(PAYMENT)

    async def main() -> None:
        http = AsyncWeb3(AsyncHTTPProvider(url))
        async with AsyncWeb3(WebSocketProvider(url.replace("http", "ws"))) as socket:
            [first], [second] = await answers(AsyncPresim(http)), await answers(AsyncPresim(socket))
        await http.provider.disconnect()
        assert first.calls == second.calls and first.calls[0].status == 1

    asyncio.run(main())


def test_coroutines_over_a_unix_socket(tmp_path: Path) -> None:
    async def main() -> None:
        async with AsyncWeb3(AsyncIPCProvider(tmp_path / "presim.ipc")) as socket:
            presim = AsyncPresim(socket)
            assert (await presim.snapshot()).feed == "live"
            with pytest.raises(TypeError, match="not AsyncIPCProvider"):
                presim.watch([])

    with node(f"--ipc={tmp_path / 'presim.ipc'}"):
        asyncio.run(main())


def test_data_frames(presim: Presim) -> None:
    pytest.importorskip("pandas")
    found = presim.search(SEARCH)
    frame = found.to_dataframe()
    assert list(frame["value_0"]) == [amount * ETHER for amount in range(10, 0, -1)]
    assert frame["objective"].sum() == sum(gained(amount * ETHER) for amount in range(1, 11))
    payload: Payload = {
        "blockStateCalls": [{"calls": [{"to": NOBODY}, {"to": NOBODY}]}, {"calls": [{"to": NOBODY}]}],
        "outputs": ["status"],
    }
    blocks = presim.simulate(payload)
    assert to_dataframe(blocks)[["block", "call", "status"]].values.tolist() == [[0, 0, 1], [0, 1, 1], [1, 0, 1]]
    assert to_dataframe(blocks[1])["call"].tolist() == [0]
    assert presim.snapshot().to_dataframe()["head_number"][0] >= 0
    assert to_dataframe(presim.status().contracts)["name"][0] == "WETH"
    # Bytes are hex, so that a file has them as the node does.
    head = presim.snapshot().head
    assert to_dataframe([head])["hash"][0] == "0x" + head.hash.hex()
    for wrong in [{"a": 1}, None, "text", [1]]:
        with pytest.raises(TypeError, match="needs a result"):
            to_dataframe(wrong)  # type: ignore[arg-type]


def test_data_frame_without_pandas(presim: Presim, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError, match="needs pandas: pip install pandas"):
        presim.search(SEARCH).to_dataframe()


def test_client_of_the_other_kind_is_named(url: str) -> None:
    with pytest.raises(TypeError, match=r"needs a Web3, not AsyncWeb3: .*AsyncPresim"):
        Presim(AsyncWeb3(AsyncHTTPProvider(url)))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"needs an AsyncWeb3, not Web3: .*Presim"):
        AsyncPresim(Web3(Web3.HTTPProvider(url)))  # type: ignore[arg-type]
