//! Block cases written by hand: one for each rule that a block can violate, and the edges of the settlement.

use std::collections::{BTreeMap, BTreeSet};

use alloy_primitives::{Address, B256, Bytes, TxKind, U256};
use alloy_rlp::Header;
use revm::DatabaseRef;

use crate::{
    block_case::{
        BlockCase, BlockFork, BlockOutcome,
        BlockRule::{self, *},
        BlockTransaction, InvalidBlock, POST_EXEC, Parent,
    },
    case::{Block, CHAIN_ID, PreAccount},
    dice::Dice,
    execute::Deposit,
    execute_block::{BlockRun, execute, next_base_fee},
    generate::{CONTRACTS, L1_BLOCK, L1Fees, NOBODY, VAULTS},
    generate_blocks::cost,
    l1_attributes,
    post_exec::Payload,
    program::{Program, op},
    transactions::{Envelope, Fields, authorize, encode_by, signers},
};

/// An edge that is being written.
struct Edge {
    case: BlockCase,
    /// The refunds of the payload that is appended if there are any.
    refunds: Vec<(u64, u64)>,
    /// Why the block is invalid. `None` if it is valid.
    expected: Option<InvalidBlock>,
}

fn ether(count: u64) -> U256 {
    U256::from(count) * U256::from(10).pow(U256::from(18))
}

/// Returns the fields of a transfer of one wei, without the nonce.
fn one_wei() -> Fields {
    Fields { max_fee: 2_000, priority_fee: 10, to: NOBODY.into(), value: U256::from(1), ..Fields::default() }
}

/// Returns a block of a usual chain that contains the deposit of the L1 attributes alone.
fn empty(name: &str) -> Edge {
    // Version 1, a denominator of 250, an elasticity of 6, and no minimum base fee.
    let extra_data = Bytes::from_static(&[1, 0, 0, 0, 250, 0, 0, 0, 6, 0, 0, 0, 0, 0, 0, 0, 0]);
    let parent = Parent {
        number: 8,
        timestamp: 1_800_000_000,
        gas_limit: 30_000_000,
        gas_used: 5_000_000,
        blob_gas_used: 0,
        base_fee: 1_000,
        extra_data: extra_data.clone(),
    };
    let block = Block {
        number: 9,
        timestamp: 1_800_000_002,
        base_fee: next_base_fee(&parent),
        beneficiary: VAULTS[0],
        gas_limit: 30_000_000,
        prev_randao: B256::repeat_byte(0x44),
        excess_blob_gas: 0,
    };
    let rich = |nonce| PreAccount { balance: ether(1_000), nonce, ..PreAccount::default() };
    let [first, second, third, _] = signers();
    let case = BlockCase {
        name: name.to_owned(),
        chain_id: CHAIN_ID,
        fork: BlockFork::Lagoon,
        parent,
        block,
        extra_data,
        pre: BTreeMap::from([(first, rich(7)), (second, rich(3)), (third, rich(0))]),
        transactions: Vec::new(),
        outcome: None,
    };
    Edge { case, refunds: Vec::new(), expected: None }.fees(L1Fees::USUAL, L1Fees::USUAL)
}

/// Returns a block with the deposit of the L1 attributes and three transfers of 21,000 gas each, which are refundable.
fn transfers(name: &str) -> Edge {
    let [first, second, ..] = signers();
    empty(name).sends(first, Envelope::Market, one_wei()).sends(second, Envelope::Legacy, one_wei()).sends(
        first,
        Envelope::AccessList,
        one_wei(),
    )
}

impl Edge {
    /// Sets the fees before the block, and those that its first deposit sets.
    fn fees(mut self, before: L1Fees, fees: L1Fees) -> Self {
        self.case.pre.insert(L1_BLOCK, l1_attributes::contract(&before, 3));
        let attributes = l1_attributes::deposit(&mut Dice::of(0, 0), &fees, 4);
        self.case.transactions.splice(..self.case.transactions.len().min(1), [attributes]);
        self
    }

    fn fee_recipient(mut self, address: Address) -> Self {
        self.case.block.beneficiary = address;
        self
    }

    fn gas_limit(mut self, gas_limit: u64) -> Self {
        self.case.block.gas_limit = gas_limit;
        self
    }

    fn account(mut self, address: Address, account: PreAccount) -> Self {
        self.case.pre.insert(address, account);
        self
    }

    /// Sets the balance of an account without code or storage.
    fn balance(self, address: Address, balance: U256) -> Self {
        let nonce = self.case.pre.get(&address).map_or(0, |account| account.nonce);
        self.account(address, PreAccount { balance, nonce, ..PreAccount::default() })
    }

    fn contract(self, program: Program) -> Self {
        let storage = BTreeMap::from([(U256::from(1), U256::from(5))]);
        self.account(CONTRACTS[0], PreAccount { nonce: 1, code: program.code(), storage, ..PreAccount::default() })
    }

    /// Appends a transaction with the sender's next nonce.
    fn sends(mut self, sender: Address, envelope: Envelope, fields: Fields) -> Self {
        let earlier = self.case.transactions.iter().filter(|transaction| transaction.sender == sender).count() as u64;
        let nonce = self.case.pre.get(&sender).map_or(0, |account| account.nonce) + earlier;
        let none = Deposit::by(sender, B256::ZERO);
        let tx = encode_by(&mut Dice::of(1, earlier), sender, envelope, Fields { nonce, ..fields }, &none);
        self.case.transactions.push(BlockTransaction { sender, tx });
        self
    }

    fn deposits(mut self, sender: Address, mint: u128, fields: Fields) -> Self {
        let deposit = Deposit { mint, ..Deposit::by(sender, B256::repeat_byte(0x55)) };
        let tx = encode_by(&mut Dice::of(0, 0), sender, Envelope::Deposit, fields, &deposit);
        self.case.transactions.push(BlockTransaction { sender, tx });
        self
    }

    fn refund(mut self, index: u64, gas: u64) -> Self {
        self.refunds.push((index, gas));
        self
    }

    /// Refunds all gas of a transaction.
    fn refund_whole(self, index: u64) -> Self {
        let gas = self.run().executed[index as usize].evm_gas;
        self.refund(index, gas)
    }

    /// Appends a post-execution transaction with these bytes after its type.
    fn raw(mut self, rlp: &[u8]) -> Self {
        let tx = [&[POST_EXEC], rlp].concat().into();
        self.case.transactions.push(BlockTransaction { sender: Address::ZERO, tx });
        self
    }

    /// Appends the payload.
    fn payload(self, payload: &Payload) -> Self {
        self.raw(&payload.encode_2718()[1..])
    }

    /// Executes the transactions so far with the refunds so far.
    fn run(&self) -> BlockRun<'_> {
        let mut run = BlockRun::new(&self.case.block, &self.case.pre);
        for (at, transaction) in (0..).zip(&self.case.transactions) {
            let refund = self.refunds.iter().find(|(index, _)| *index == at).map(|(_, gas)| *gas);
            let executed = run.run(transaction).expect("a valid transaction");
            run.commit(transaction, executed, refund).expect("a valid refund");
        }
        run
    }

    /// Appends a transfer that costs `more` wei in addition to all that its sender has.
    fn spends_all(self, sender: Address, more: u64) -> Self {
        let state = self.run().state;
        let balance = state.basic_ref(sender).expect("a state in memory").unwrap_or_default().balance;
        let mut fields = Fields { gas_limit: 21_000, max_fee: 1_000, ..one_wei() };
        let mut spent = self.sends(sender, Envelope::Legacy, fields.clone());
        for _ in 0..8 {
            let transaction = spent.case.transactions.pop().expect("the transfer");
            let all = cost(&transaction, spent.case.block.number, &state).expect("a cost");
            fields.value = balance - (all - fields.value) + U256::from(more);
            spent = spent.sends(sender, Envelope::Legacy, fields.clone());
        }
        spent
    }

    /// Sets the expected outcome: the structure of the block violates these rules.
    fn violates(self, rules: &[BlockRule]) -> Self {
        self.fails(rules, None, None)
    }

    /// Sets the expected outcome: the block is invalid, because of the transaction at this index or of its refund.
    fn fails(mut self, rules: &[BlockRule], transaction: Option<usize>, error: Option<&str>) -> Self {
        let (rules, error) = (rules.to_vec(), error.map(str::to_owned));
        self.expected = Some(InvalidBlock { rules, transaction, error });
        self
    }

    /// Returns the case with its outcome.
    ///
    /// # Panics
    ///
    /// Panics if the outcome is not the expected one.
    fn done(mut self) -> BlockCase {
        if !self.refunds.is_empty() {
            let payload = Payload::of(self.case.block.number, self.refunds.clone());
            self = self.payload(&payload);
        }
        let outcome = execute(&self.case);
        match (&outcome, &self.expected) {
            (BlockOutcome::Valid(_), None) => (),
            (BlockOutcome::Invalid(invalid), Some(expected)) if invalid == expected => (),
            _ => panic!("{}: expected {:?}, found {outcome:?}", self.case.name, self.expected),
        }
        BlockCase { outcome: Some(outcome), ..self.case }
    }
}

/// Returns all edges, with their outcomes.
pub fn all() -> Vec<BlockCase> {
    [structure(), amounts(), senders_and_recipients(), orders(), blocks()].concat()
}

/// Returns blocks that violate a rule of the encoding or of the structure.
fn structure() -> Vec<BlockCase> {
    let usual = || Payload::of(9, [(1, 5_000), (3, 6_000)]);
    let version = |version| Payload { version, ..usual() };
    let list = |items: &[&[u8]]| {
        let items = items.concat();
        let mut rlp = Vec::new();
        Header { list: true, payload_length: items.len() }.encode(&mut rlp);
        [rlp, items].concat()
    };
    let entry = |items: &[&[u8]]| list(&[&list(items)]);
    let [first, ..] = signers();
    let mut cases = vec![
        transfers("two payloads").payload(&usual()).payload(&usual()).violates(&[MoreThanOne, NotLast]).done(),
        transfers("a payload that is not the last")
            .payload(&Payload::of(9, [(1, 5_000)]))
            .sends(first, Envelope::Market, one_wei())
            .violates(&[NotLast])
            .done(),
        transfers("a payload for a transaction behind it")
            .payload(&Payload::of(9, [(5, 5_000)]))
            .sends(first, Envelope::Market, one_wei())
            .violates(&[NotLast])
            .done(),
        transfers("two payloads around a transaction")
            .payload(&Payload::of(9, [(1, 5_000)]))
            .sends(first, Envelope::Market, one_wei())
            .payload(&Payload::of(9, [(2, 5_000)]))
            .violates(&[MoreThanOne, NotLast])
            .done(),
        transfers("the number of the parent")
            .payload(&Payload { block_number: 8, ..usual() })
            .violates(&[WrongBlockNumber])
            .done(),
        transfers("the number of the block after")
            .payload(&Payload { block_number: 10, ..usual() })
            .violates(&[WrongBlockNumber])
            .done(),
        transfers("version 0").payload(&version(0)).violates(&[UnknownVersion]).done(),
        transfers("version 2").payload(&version(2)).violates(&[UnknownVersion]).done(),
        transfers("version 255").payload(&version(255)).violates(&[UnknownVersion]).done(),
        transfers("version 2 with other fields")
            .raw(&list(&[&[2], &[9], &[0x83], b"abc"]))
            .violates(&[UnknownVersion])
            .done(),
        transfers("version 2 of another block")
            .payload(&Payload { block_number: 8, ..version(2) })
            .violates(&[UnknownVersion, WrongBlockNumber])
            .done(),
        transfers("no entries").payload(&Payload::of(9, [])).violates(&[NoEntries]).done(),
        transfers("indices that fall").payload(&Payload::of(9, [(3, 1), (1, 1)])).violates(&[UnorderedIndices]).done(),
        transfers("an index twice").payload(&Payload::of(9, [(1, 1), (1, 1)])).violates(&[UnorderedIndices]).done(),
        transfers("an index twice, and another between")
            .payload(&Payload::of(9, [(1, 1), (2, 1), (1, 1)]))
            .violates(&[UnorderedIndices])
            .done(),
        transfers("a refund of zero").payload(&Payload::of(9, [(1, 1), (2, 0)])).violates(&[ZeroRefund]).done(),
        transfers("the index of the L1 attributes")
            .payload(&Payload::of(9, [(0, 1)]))
            .violates(&[IndexOfDeposit])
            .done(),
        transfers("the index of the payload").payload(&Payload::of(9, [(4, 1)])).violates(&[IndexOfPostExec]).done(),
        transfers("the index after the payload's")
            .payload(&Payload::of(9, [(5, 1)]))
            .violates(&[IndexOutOfRange])
            .done(),
        transfers("the highest index")
            .payload(&Payload::of(9, [(1, 1), (u64::MAX, 1)]))
            .violates(&[IndexOutOfRange])
            .done(),
        transfers("many rules at once")
            .payload(&Payload::of(8, [(4, 0), (0, 1)]))
            .violates(&[WrongBlockNumber, UnorderedIndices, ZeroRefund, IndexOfDeposit, IndexOfPostExec])
            .done(),
        transfers("a fourth field")
            .raw(&list(&[&[1], &[9], &entry(&[&[1], &[1]]), &[0xc0]]))
            .violates(&[ExtraFields])
            .done(),
        transfers("a fourth field of no bytes")
            .raw(&list(&[&[1], &[9], &entry(&[&[1], &[1]]), &[0x80]]))
            .violates(&[ExtraFields])
            .done(),
        transfers("an entry with a third field")
            .raw(&list(&[&[1], &[9], &entry(&[&[1], &[1], &[1]])]))
            .violates(&[ExtraFields])
            .done(),
        empty("a payload in a block of deposits")
            .deposits(first, 5, Fields { to: NOBODY.into(), ..Fields::default() })
            .payload(&Payload::of(9, [(1, 21_000)]))
            .violates(&[IndexOfDeposit])
            .done(),
    ];
    let mut alone = empty("a payload alone in its block").payload(&Payload::of(9, [(0, 1)]));
    alone.case.transactions.remove(0);
    cases.push(alone.violates(&[IndexOfPostExec]).done());
    let malformed: [(&str, Vec<u8>); 14] = [
        ("no bytes after the type", Vec::new()),
        ("an empty list", vec![0xc0]),
        ("an integer instead of the list", vec![0x01]),
        ("no list of entries", list(&[&[1], &[9]])),
        ("an integer instead of the entries", list(&[&[1], &[9], &[1]])),
        ("an integer instead of an entry", list(&[&[1], &[9], &list(&[&[1], &[1]])])),
        ("an entry without a refund", list(&[&[1], &[9], &entry(&[&[1]])])),
        ("an empty entry", list(&[&[1], &[9], &entry(&[])])),
        ("a list instead of an index", list(&[&[1], &[9], &entry(&[&[0xc0], &[1]])])),
        ("an index with a zero in front", list(&[&[1], &[9], &entry(&[&[0x82, 0, 1], &[1]])])),
        ("an index of one byte with its length", list(&[&[1], &[9], &entry(&[&[0x81, 1], &[1]])])),
        ("a refund of 65 bits", list(&[&[1], &[9], &entry(&[&[1], &[0x89, 1, 0, 0, 0, 0, 0, 0, 0, 0]])])),
        ("a byte after the payload", [list(&[&[1], &[9], &entry(&[&[1], &[1]])]), vec![0]].concat()),
        ("a list that is longer than its bytes", vec![0xc8, 1, 9]),
    ];
    for (name, rlp) in malformed {
        cases.push(transfers(name).raw(&rlp).violates(&[Malformed]).done());
    }
    let mut early = transfers("a payload before Lagoon").payload(&usual());
    early.case.fork = BlockFork::Karst;
    cases.push(early.violates(&[BeforeLagoon]).done());
    let mut none = transfers("no payload before Lagoon");
    none.case.fork = BlockFork::Karst;
    cases.push(none.done());
    cases
}

/// Returns blocks with refunds of all amounts.
fn amounts() -> Vec<BlockCase> {
    let [first, second, ..] = signers();
    let mut cases = vec![
        transfers("no payload").done(),
        transfers("refunds of some").refund(1, 5_000).refund(3, 6_000).done(),
        transfers("refunds of one unit of gas").refund(1, 1).refund(2, 1).refund(3, 1).done(),
        transfers("refunds of all but one unit").refund(1, 20_999).refund(2, 20_999).refund(3, 20_999).done(),
        transfers("refunds of all gas").refund(1, 21_000).refund(2, 21_000).refund(3, 21_000).done(),
        transfers("a refund of one unit too much, which the others could pay")
            .balance(VAULTS[0], ether(1))
            .balance(VAULTS[1], ether(1))
            .balance(VAULTS[3], ether(1))
            .refund(2, 21_001)
            .fails(&[RefundAboveGas], Some(2), None)
            .done(),
        transfers("the highest refund")
            .refund(3, u64::MAX)
            .fails(&[RefundAboveGas, DebitBelowZero], Some(3), None)
            .done(),
        transfers("a refund too high for the fee recipient")
            .fee_recipient(NOBODY)
            .balance(VAULTS[1], ether(1))
            .balance(VAULTS[3], ether(1))
            .refund(1, 21_003)
            .fails(&[RefundAboveGas, DebitBelowZero], Some(1), None)
            .done(),
        transfers("a refund too high for the base fee vault")
            .balance(VAULTS[0], ether(1))
            .balance(VAULTS[3], ether(1))
            .refund(1, 21_001)
            .fails(&[RefundAboveGas, DebitBelowZero], Some(1), None)
            .done(),
        transfers("a refund too high for the operator fee vault")
            .balance(VAULTS[0], ether(1))
            .balance(VAULTS[1], ether(1))
            .refund(1, 21_003)
            .fails(&[RefundAboveGas, DebitBelowZero], Some(1), None)
            .done(),
        empty("a refund too high behind one that is not")
            .sends(first, Envelope::Market, one_wei())
            .sends(second, Envelope::Market, one_wei())
            .refund(1, 21_000)
            .refund(2, 21_001)
            .fails(&[RefundAboveGas, DebitBelowZero], Some(2), None)
            .done(),
    ];
    let usual = L1Fees::USUAL;
    let fees = [
        ("no fees but the base fee", L1Fees::default()),
        ("no scalar of the operator", L1Fees { operator_scalar: 0, ..usual }),
        ("no constant of the operator", L1Fees { operator_constant: 0, ..usual }),
        ("no operator fee", L1Fees { operator_scalar: 0, operator_constant: 0, ..usual }),
        ("the highest operator fee", L1Fees { operator_scalar: u32::MAX, operator_constant: u64::MAX, ..usual }),
        ("the least operator fee", L1Fees { operator_scalar: 1, operator_constant: 0, ..usual }),
    ];
    for (name, fees) in fees {
        for refund in [1, 20_000, 21_000] {
            let edge = transfers(&format!("{name}, and refunds of {refund}")).fees(fees, fees);
            cases.push(edge.refund(1, refund).refund(2, refund).done());
        }
        let set = transfers(&format!("{name}, as the block itself sets it")).fees(usual, fees);
        cases.push(set.refund(1, 21_000).refund(3, 5_000).done());
    }
    let tipless = |envelope| {
        let fields = Fields { max_fee: 1_000, priority_fee: 0, ..one_wei() };
        empty(&format!("{envelope:?} without a tip")).fee_recipient(NOBODY).sends(first, envelope, fields)
    };
    cases.extend([Envelope::Legacy, Envelope::Market].map(|envelope| tipless(envelope).refund(1, 21_000).done()));
    let mut capped = empty("a tip that the highest fee cuts");
    capped = capped.sends(first, Envelope::Market, Fields { max_fee: 1_004, priority_fee: 10, ..one_wei() });
    cases.push(capped.refund(1, 20_000).done());
    let mut free = transfers("a base fee of zero");
    (free.case.parent.base_fee, free.case.block.base_fee) = (0, 0);
    cases.push(free.refund(1, 21_000).refund(2, 1).done());

    type End = (&'static str, fn() -> Program);
    let stored = || Program::default().push(U256::from(9)).store(1);
    let ends: [End; 3] = [
        ("reverts", || Program::default().push(U256::from(9)).store(1).end(op::REVERT, 0, 32)),
        ("halts", || Program::default().push(U256::from(9)).store(1).op(op::INVALID)),
        ("gets a refund of the EVM", || Program::default().push(U256::ZERO).store(1).op(op::STOP)),
    ];
    for (end, program) in ends {
        let call = Fields { to: CONTRACTS[0].into(), ..one_wei() };
        let edge = empty(&format!("a call that {end}")).contract(program()).sends(first, Envelope::Market, call);
        cases.push(edge.refund_whole(1).done());
    }
    let data = Fields { input: Bytes::from(vec![1; 1_000]), ..one_wei() };
    let floor = empty("a call whose data has a floor of gas").sends(first, Envelope::Market, data);
    cases.push(floor.refund_whole(1).done());
    for envelope in
        [Envelope::Legacy, Envelope::Unprotected, Envelope::AccessList, Envelope::Market, Envelope::Delegations]
    {
        let authorizations = vec![authorize(1, CHAIN_ID, 3, CONTRACTS[0])];
        let fields = Fields { to: CONTRACTS[0].into(), authorizations, ..one_wei() };
        let edge = empty(&format!("{envelope:?}")).contract(stored().push(U256::from(1)).push(U256::ZERO).op(op::LOG0));
        cases.push(edge.sends(first, envelope, fields).refund_whole(1).done());
    }
    cases
}

/// Returns blocks in which fee recipients send, vaults send, and one account is several of those who settle a refund.
fn senders_and_recipients() -> Vec<BlockCase> {
    let [first, second, third, _] = signers();
    let mut cases = vec![
        transfers("a fee recipient that sends")
            .fee_recipient(first)
            .refund(1, 5_000)
            .refund(2, 21_000)
            .refund(3, 1)
            .done(),
        transfers("a fee recipient that is new and keeps nothing")
            .fee_recipient(Address::repeat_byte(0x99))
            .refund(1, 21_000)
            .refund(2, 21_000)
            .refund(3, 21_000)
            .done(),
        empty("a fee recipient that gets what it lost")
            .fee_recipient(Address::repeat_byte(0x99))
            .sends(first, Envelope::Market, one_wei())
            .sends(second, Envelope::Market, one_wei())
            .refund(1, 21_000)
            .done(),
        transfers("a fee recipient that is a contract")
            .contract(Program::default())
            .fee_recipient(CONTRACTS[0])
            .refund(1, 21_000)
            .done(),
        transfers("a fee recipient that is L1Block").fee_recipient(L1_BLOCK).refund(1, 21_000).done(),
    ];
    for vault in VAULTS {
        cases.push(
            transfers(&format!("a fee recipient that is {vault}"))
                .fee_recipient(vault)
                .refund(1, 21_000)
                .refund(2, 1)
                .done(),
        );
        for fee_recipient in BTreeSet::from([VAULTS[0], vault, second]) {
            let edge = empty(&format!("{vault} sends, and {fee_recipient} gets the fees"))
                .fee_recipient(fee_recipient)
                .balance(vault, ether(1))
                .sends(vault, Envelope::Market, one_wei())
                .sends(vault, Envelope::Legacy, one_wei())
                .refund(1, 20_000);
            cases.push(edge.refund(2, 21_000).done());
        }
        let emptied = empty(&format!("{vault} spends all, and gets a refund"))
            .balance(vault, ether(1))
            .spends_all(vault, 0)
            .refund(1, 21_000);
        cases.push(emptied.done());
    }
    // The fee recipient is the contract that the refunded transaction creates and destroys.
    let destroyed = |name: &str| {
        let init = Bytes::from_static(&[op::CALLER, op::SELFDESTRUCT]);
        let create = Fields { to: TxKind::Create, input: init, value: U256::from(100), ..one_wei() };
        empty(name).fee_recipient(first.create(7)).sends(first, Envelope::Market, create)
    };
    cases.push(destroyed("a fee recipient that is destroyed").refund_whole(1).done());
    let later = destroyed("a fee recipient that is destroyed, and gets fees later");
    cases.push(later.sends(second, Envelope::Market, one_wei()).refund(1, 1).refund(2, 20_000).done());

    let mut delegated = empty("a sender that has delegated").contract(Program::default());
    let code: Bytes = [&[0xef, 0x01, 0x00], CONTRACTS[0].as_slice()].concat().into();
    delegated.case.pre.entry(third).and_modify(|account| account.code = code);
    cases.push(
        delegated.sends(third, Envelope::Market, Fields { to: third.into(), ..one_wei() }).refund_whole(1).done(),
    );
    let to_vault = empty("a transfer to the base fee vault");
    let fields = Fields { to: VAULTS[1].into(), ..one_wei() };
    cases.push(to_vault.sends(first, Envelope::Market, fields).refund(1, 21_000).done());
    cases
}

/// Returns blocks in which a later transaction depends on an earlier refund.
fn orders() -> Vec<BlockCase> {
    let [first, second, third, _] = signers();
    let poor = |name: &str| {
        empty(name)
            .balance(second, U256::from(1_000_000_000_000_u64))
            .sends(second, Envelope::Market, Fields { gas_limit: 21_000, ..one_wei() })
            .refund(1, 15_000)
    };
    let lack = |edge: Edge| edge.fails(&[InvalidTransaction], Some(2), Some("LackOfFundForMaxFee")).done();
    let mut without = poor("a sender that spends a refund that it does not get").spends_all(second, 0);
    without.refunds.clear();
    let mut late = poor("a sender that spends a refund of the same transaction").spends_all(second, 0);
    late.refunds = vec![(2, 15_000)];
    let mut less = poor("a sender that spends a refund that is one unit less").spends_all(second, 0);
    less.refunds = vec![(1, 14_999)];
    let mut cases = vec![
        poor("a sender that spends its refund").spends_all(second, 0).done(),
        poor("a sender that spends its refund, and gets another").spends_all(second, 0).refund(2, 21_000).done(),
        lack(poor("a sender that spends one wei more than its refund").spends_all(second, 1)),
        lack(without),
        lack(late),
        lack(less),
    ];
    // A fee recipient that spends what it loses: the fees of the first transaction, of which a part is settled.
    let recipient = |name: &str| {
        empty(name)
            .fee_recipient(second)
            .balance(second, U256::from(1_000_000_000_000_u64))
            .sends(first, Envelope::Market, one_wei())
            .refund(1, 15_000)
    };
    cases.push(recipient("a fee recipient that spends what a refund leaves").spends_all(second, 0).done());
    cases.push(lack(recipient("a fee recipient that spends what it loses").spends_all(second, 1)));

    // A contract that reads the balances of those who settle the refund of the transaction before, and of its own.
    let mut reader = Program::default();
    for (slot, address) in (2..).zip([first, VAULTS[0], VAULTS[1], VAULTS[2], VAULTS[3], second]) {
        reader = reader.push_address(address).op(op::BALANCE).store(slot);
    }
    let read = Fields { to: CONTRACTS[0].into(), gas_limit: 300_000, ..one_wei() };
    for refund in [0, 1, 21_000] {
        let mut edge = empty(&format!("balances that are read after a refund of {refund}"))
            .contract(reader.clone())
            .sends(first, Envelope::Market, one_wei())
            .sends(third, Envelope::Market, read.clone());
        if refund > 0 {
            edge = edge.refund(1, refund);
        }
        cases.push(edge.refund(2, 50_000).done());
    }

    // All but 10,000 of 2,900,000 gas comes back, and the next transaction has a limit of all that is left.
    let burning = |name: &str| {
        let burn = Fields { to: CONTRACTS[0].into(), gas_limit: 2_400_000, ..one_wei() };
        empty(name)
            .gas_limit(3_000_000)
            .contract(Program::default().op(op::INVALID))
            .sends(first, Envelope::Market, burn)
            .refund(1, 2_390_000)
    };
    let filling = |edge: Edge, more: u64| {
        let gas_limit = edge.run().gas_left() + more;
        edge.sends(second, Envelope::Market, Fields { gas_limit, ..one_wei() })
    };
    let full = |edge: Edge| edge.fails(&[InvalidTransaction], Some(2), Some("CallerGasLimitMoreThanBlock")).done();
    cases.push(filling(burning("a gas limit of all that refunds leave"), 0).done());
    cases.push(full(filling(burning("a gas limit of more than refunds leave"), 1)));
    let mut without = filling(burning("a gas limit that a refund would leave"), 0);
    without.refunds.clear();
    cases.push(full(without));
    let mut own = filling(burning("a gas limit that the refund of the same transaction would leave"), 0);
    own.refunds = vec![(2, 20_000)];
    cases.push(full(own));
    cases
}

/// Returns blocks with a payload in which other rules matter: the DA footprint, deposits that fail, and long lists.
fn blocks() -> Vec<BlockCase> {
    let [first, second, third, _] = signers();
    // Each transfer has the least size of 100 bytes, so that two fill a block of a million.
    let heavy = L1Fees { footprint_scalar: 5_000, ..L1Fees::USUAL };
    let filled = |name: &str, gas_limit: u64| {
        empty(name)
            .fees(L1Fees::USUAL, heavy)
            .gas_limit(gas_limit)
            .sends(first, Envelope::Legacy, one_wei())
            .sends(second, Envelope::Legacy, one_wei())
            .refund(1, 21_000)
            .refund(2, 21_000)
    };
    let failing = Fields { value: ether(5_000), to: NOBODY.into(), ..Fields::default() };
    let minting = Fields { value: U256::from(3), to: third.into(), ..Fields::default() };
    let mut cases = vec![
        filled("a payload in a block with as much DA footprint as it may have", 1_000_000).done(),
        filled("a payload in a block with more DA footprint than it may have", 999_999)
            .fails(&[InvalidTransaction], Some(2), Some("DaFootprint"))
            .done(),
        empty("deposits that fail and mint before a refund")
            .deposits(second, 7, failing)
            .deposits(third, 1_000, minting)
            .sends(third, Envelope::Market, one_wei())
            .refund(3, 21_000)
            .done(),
    ];
    // Enough entries for a list whose length takes two bytes.
    let mut long = empty("40 refunds");
    for at in 1..=40 {
        long = long.sends(first, Envelope::Market, one_wei()).refund(at, 300 * at);
    }
    cases.push(long.done());
    cases
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_rule_is_violated_by_an_edge_and_each_edge_has_a_name_of_its_own() {
        let cases = all();
        let names: BTreeSet<&str> = cases.iter().map(|case| case.name.as_str()).collect();
        assert_eq!(names.len(), cases.len());
        let violated: BTreeSet<BlockRule> = cases
            .iter()
            .flat_map(|case| match &case.outcome {
                Some(BlockOutcome::Invalid(invalid)) => invalid.rules.clone(),
                _ => Vec::new(),
            })
            .collect();
        assert_eq!(violated.len(), InvalidTransaction as usize + 1, "each rule up to the last: {violated:?}");
    }

    #[test]
    fn a_settled_transaction_has_paid_for_the_gas_after_its_refund() {
        // 16,000 of 21,000 gas at a price of 1,010 and 700 for the operator, its constant, one wei, and the L1 fee.
        let [first, ..] = signers();
        let case = empty("").sends(first, Envelope::Market, one_wei()).refund(1, 5_000).done();
        let Some(BlockOutcome::Valid(valid)) = &case.outcome else { panic!("{case:?}") };
        let balance = |address| valid.post[&address].as_ref().expect("an account").balance;
        let l1_fee = balance(VAULTS[2]);
        assert_eq!(ether(1_000) - balance(first) - l1_fee, U256::from(16_000 * (1_010 + 700) + 1_000 + 1));
        assert_eq!(balance(VAULTS[0]), U256::from(16_000 * 10));
        assert_eq!(balance(VAULTS[1]), U256::from(16_000 * 1_000));
        assert_eq!(balance(VAULTS[3]), U256::from(16_000 * 700 + 1_000));
        let [attributes, transfer, payload] = &valid.transactions[..] else { panic!("{valid:?}") };
        assert_eq!((transfer.evm_gas, transfer.op_gas_refund, transfer.gas_used), (21_000, Some(5_000), 16_000));
        assert_eq!(transfer.cumulative_gas_used, attributes.gas_used + 16_000);
        assert_eq!(payload.cumulative_gas_used, valid.gas_used);
    }
}
