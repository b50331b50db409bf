//! Cases written by hand: the edges of deposits, fees and limits.

use std::collections::BTreeMap;

use alloy_primitives::{Address, B256, Bytes, TxKind, U256};
use op_revm::{OpSpecId, estimate_tx_compressed_size};

use crate::{
    case::{Block, CHAIN_ID, Case, PreAccount},
    dice::Dice,
    execute::Deposit,
    generate::{CONTRACTS, DEPOSITOR, L1_BLOCK, L1Fees, NOBODY, VAULTS, cost},
    precompiles,
    program::{Program, op},
    transactions::{Envelope, Fields, authorize, encode, signers},
};

/// An edge that is being written.
struct Edge {
    case: Case,
    envelope: Envelope,
    fields: Fields,
    deposit: Deposit,
}

/// The end of a program, and the program.
type End = (&'static str, fn() -> Program);

fn ether(count: u64) -> U256 {
    U256::from(count) * U256::from(10).pow(U256::from(18))
}

/// Returns a transfer of one wei in a usual block.
fn edge(name: &str, envelope: Envelope) -> Edge {
    let sender = signers()[0];
    let pre = BTreeMap::from([
        (L1_BLOCK, L1Fees::USUAL.account(3)),
        (sender, PreAccount { balance: ether(1_000), nonce: 7, ..PreAccount::default() }),
    ]);
    let block = Block {
        number: 9,
        timestamp: 1_700_000_000,
        base_fee: 1_000,
        beneficiary: VAULTS[0],
        gas_limit: 30_000_000,
        prev_randao: B256::repeat_byte(0x44),
        excess_blob_gas: 0,
    };
    let case = Case { name: name.to_owned(), block, pre, sender, tx: Bytes::new(), outcomes: Vec::new() };
    let fields = Fields {
        nonce: 7,
        max_fee: 2_000,
        priority_fee: 10,
        to: NOBODY.into(),
        value: U256::from(1),
        ..Fields::default()
    };
    let deposit = Deposit::by(sender, B256::repeat_byte(0x55));
    Edge { case, envelope, fields, deposit }
}

impl Edge {
    /// Sets the receiver to a contract with this program.
    fn calls(mut self, program: Program) -> Self {
        let storage = BTreeMap::from([(U256::from(1), U256::from(5))]);
        let contract = PreAccount { nonce: 1, code: program.code(), storage, ..PreAccount::default() };
        self.case.pre.insert(CONTRACTS[0], contract);
        self.fields.to = CONTRACTS[0].into();
        self
    }

    fn creates(mut self, init: Bytes) -> Self {
        (self.fields.to, self.fields.input) = (TxKind::Create, init);
        self
    }

    fn to(mut self, to: Address) -> Self {
        self.fields.to = to.into();
        self
    }

    /// Sets the sender, which has this balance.
    fn from(mut self, sender: Address, balance: U256) -> Self {
        (self.case.sender, self.deposit.from) = (sender, sender);
        let nonce = self.fields.nonce;
        self.case.pre.entry(sender).or_default().balance = balance;
        self.case.pre.entry(sender).and_modify(|account| account.nonce = nonce);
        self
    }

    fn mint(mut self, mint: u128) -> Self {
        self.deposit.mint = mint;
        self
    }

    fn system(mut self) -> Self {
        self.deposit.is_system = true;
        self
    }

    fn value(mut self, value: U256) -> Self {
        self.fields.value = value;
        self
    }

    fn gas(mut self, gas: u64) -> Self {
        self.fields.gas_limit = gas;
        self
    }

    fn fees(mut self, fees: L1Fees) -> Self {
        self.case.pre.insert(L1_BLOCK, fees.account(3));
        self
    }

    fn done(mut self) -> Case {
        self.case.tx = encode(&mut Dice::of(0, 0), self.envelope, self.fields, &self.deposit);
        self.case
    }
}

/// Returns all edges.
pub fn all() -> Vec<Case> {
    [deposits(), fees(), limits(), delegations()].concat()
}

fn slots() -> Program {
    Program::default().push(U256::from(9)).store(1).push(U256::from(8)).store(2)
}

fn deposits() -> Vec<Case> {
    let deposit = |name: &str| edge(&format!("deposit {name}"), Envelope::Deposit).mint(1_000);
    let returning = |length: u64| Program::default().end(op::RETURN, 0, length).code();
    let long = |length: usize| Bytes::from(vec![0; length]);
    let mut cases = vec![
        deposit("without a mint").mint(0).done(),
        deposit("with the highest mint").mint(u128::MAX).done(),
        deposit("by nobody").from(DEPOSITOR, U256::from(1)).done(),
        deposit("by a contract").from(CONTRACTS[1], U256::from(5)).done(),
        deposit("to its sender").value(U256::from(999)).calls(Program::default()).done(),
        deposit("that spends its mint").from(DEPOSITOR, U256::from(1)).value(U256::from(1_001)).done(),
        deposit("of more than there is").from(DEPOSITOR, U256::from(1)).value(U256::from(1_002)).done(),
        deposit("of the highest value").value(U256::MAX).done(),
        deposit("that creates with more than there is").creates(returning(32)).value(U256::MAX).done(),
        deposit("with less gas than a transaction needs").gas(20_999).done(),
        deposit("without gas").gas(0).done(),
        deposit("with the least gas").gas(21_000).done(),
        deposit("with as much gas as the block").gas(30_000_000).done(),
        deposit("with more gas than the block").gas(30_000_001).done(),
        deposit("with more gas than EIP-7825 allows").gas((1 << 24) + 1).calls(slots().op(op::STOP)).done(),
        deposit("to the pairing precompile")
            .calls(precompiles::call(Program::default(), precompiles::PAIRING, 192, None))
            .done(),
        deposit("of the L1 attributes").from(DEPOSITOR, U256::from(1)).gas(1_000_000).to(L1_BLOCK).done(),
        deposit("that gets a refund").calls(Program::default().push(U256::ZERO).store(1).op(op::STOP)).done(),
    ];
    let floor = Fields { input: Bytes::from(vec![1; 1_000]), gas_limit: 45_000, ..Fields::default() };
    let mut below_floor = deposit("with less gas than the floor of its data");
    (below_floor.fields.input, below_floor.fields.gas_limit) = (floor.input, floor.gas_limit);
    cases.push(below_floor.done());
    let ends: [End; 5] = [
        ("stops", || slots().op(op::STOP)),
        ("halts", || slots().op(op::INVALID)),
        ("reverts", || slots().end(op::REVERT, 0, 32)),
        ("runs out of gas", || slots().op(op::JUMPDEST).push(U256::from(10)).op(0x56)),
        ("destroys itself", || slots().push_address(NOBODY).op(op::SELFDESTRUCT)),
    ];
    for (end, program) in ends {
        cases.push(deposit(&format!("that {end}")).value(U256::from(500)).calls(program()).done());
        cases.push(
            deposit(&format!("of the system that {end}")).system().value(U256::from(500)).calls(program()).done(),
        );
        let init = program().code();
        cases.push(deposit(&format!("that creates and {end}")).value(U256::from(500)).creates(init.clone()).done());
        cases.push(deposit(&format!("of the system that creates and {end}")).system().creates(init).done());
    }
    cases.extend([
        deposit("of the system of more than there is").system().value(U256::MAX).done(),
        deposit("of the system with less gas than a transaction needs").system().gas(20_999).done(),
        deposit("that creates").gas(200_000).creates(returning(100)).done(),
        deposit("that creates nothing").creates(Bytes::new()).done(),
        deposit("that creates by nobody").from(DEPOSITOR, U256::from(1)).gas(200_000).creates(returning(100)).done(),
        deposit("that creates the longest code").gas(10_000_000).creates(returning(24_576)).done(),
        deposit("that creates a code too long").gas(10_000_000).creates(returning(24_577)).done(),
        deposit("that creates without gas for the code").gas(60_000).creates(returning(1_000)).done(),
        deposit("with the longest init code").gas(10_000_000).creates(long(49_152)).done(),
        deposit("with an init code too long").gas(10_000_000).creates(long(49_153)).done(),
        deposit("of the system with an init code too long").system().gas(10_000_000).creates(long(49_153)).done(),
    ]);
    let mut collides = deposit("that creates where a contract is").gas(200_000).creates(returning(100));
    let taken = PreAccount { nonce: 1, balance: U256::from(3), ..PreAccount::default() };
    collides.case.pre.insert(signers()[0].create(7), taken);
    cases.push(collides.done());
    cases
}

fn fees() -> Vec<Case> {
    let usual = L1Fees::USUAL;
    let none = L1Fees::default();
    let scalars = [
        ("no fees at all", none),
        ("scalars of zero", L1Fees { base_fee_scalar: 0, blob_base_fee_scalar: 0, ..usual }),
        (
            "scalars of zero and no blob base fee",
            L1Fees { base_fee_scalar: 0, blob_base_fee_scalar: 0, blob_base_fee: U256::ZERO, ..usual },
        ),
        ("no scalar of the base fee", L1Fees { base_fee_scalar: 0, ..usual }),
        ("no scalar of the blob base fee", L1Fees { blob_base_fee_scalar: 0, ..usual }),
        ("no blob base fee", L1Fees { blob_base_fee: U256::ZERO, ..usual }),
        ("no base fee of L1", L1Fees { base_fee: U256::ZERO, ..usual }),
        ("no scalar of the operator", L1Fees { operator_scalar: 0, ..usual }),
        ("no constant of the operator", L1Fees { operator_constant: 0, ..usual }),
        ("no operator fee", L1Fees { operator_scalar: 0, operator_constant: 0, ..usual }),
        ("the highest operator fee", L1Fees { operator_scalar: u32::MAX, operator_constant: u64::MAX, ..usual }),
        ("the highest scalars", L1Fees { base_fee_scalar: u32::MAX, blob_base_fee_scalar: u32::MAX, ..usual }),
        ("no scalar of the DA footprint", L1Fees { footprint_scalar: 0, ..usual }),
    ];
    let mut cases = Vec::new();
    for (name, fees) in scalars {
        for envelope in [Envelope::Legacy, Envelope::Market] {
            cases.push(
                edge(&format!("{envelope:?} with {name}"), envelope).fees(fees).calls(slots().op(op::STOP)).done(),
            );
        }
    }
    for vault in VAULTS {
        for to in [NOBODY, vault] {
            let paying = edge(&format!("{vault} pays its own vault and sends to {to}"), Envelope::Market);
            cases.push(paying.from(vault, ether(1_000)).to(to).done());
        }
        // The whole balance is spent, and a part of it comes back.
        let mut whole = edge(&format!("{vault} pays all that it has"), Envelope::Legacy).from(vault, U256::from(1));
        whole.fields.value = U256::ZERO;
        let mut whole = whole.done();
        if let Some(cost) = cost(&whole, OpSpecId::KARST) {
            whole.pre.entry(vault).and_modify(|account| account.balance = cost);
        }
        cases.push(whole);
    }
    let mut producer = edge("the block's beneficiary pays itself", Envelope::Market);
    producer.case.block.beneficiary = signers()[0];
    cases.push(producer.done());
    for (fork, less) in
        [OpSpecId::BEDROCK, OpSpecId::REGOLITH, OpSpecId::ECOTONE, OpSpecId::FJORD, OpSpecId::ISTHMUS, OpSpecId::JOVIAN]
            .into_iter()
            .flat_map(|fork| [(fork, 0), (fork, 1)])
    {
        let mut case = edge(&format!("a balance of {less} wei less than {fork:?}'s fees"), Envelope::Market).done();
        if let Some(cost) = cost(&case, fork) {
            let sender = case.sender;
            case.pre.entry(sender).and_modify(|account| account.balance = cost - U256::from(less));
        }
        cases.push(case);
    }
    // A refund, and a floor (EIP-7623) above the gas that was used, change the operator fee.
    cases.push(
        edge("a refund", Envelope::Legacy).calls(Program::default().push(U256::ZERO).store(1).op(op::STOP)).done(),
    );
    let mut floor = edge("a floor of gas", Envelope::Legacy);
    floor.fields.input = Bytes::from(vec![1; 1_000]);
    cases.push(floor.done());
    let ends: [End; 2] = [("reverts", || slots().end(op::REVERT, 0, 32)), ("halts", || slots().op(op::INVALID))];
    for (end, program) in ends {
        cases.push(edge(&format!("a call that {end}"), Envelope::Market).calls(program()).done());
    }
    for (name, more) in [("as much DA footprint as the block's gas limit", 0), ("more DA footprint than that", 1)] {
        let mut case = edge(name, Envelope::Legacy).gas(21_000).done();
        let footprint = estimate_tx_compressed_size(&case.tx) / 1_000_000 * u64::from(L1Fees::USUAL.footprint_scalar);
        case.block.gas_limit = footprint - more;
        cases.push(case);
    }
    cases
}

fn limits() -> Vec<Case> {
    let mut cases = Vec::new();
    for (name, gas) in [("at", 1 << 24), ("above", (1 << 24) + 1)] {
        for envelope in [Envelope::Legacy, Envelope::AccessList, Envelope::Market] {
            cases.push(edge(&format!("{envelope:?} {name} EIP-7825's cap"), envelope).gas(gas).done());
        }
    }
    for (name, gas) in [("at", 30_000_000), ("above", 30_000_001)] {
        cases.push(edge(&format!("{name} the block's gas limit"), Envelope::Legacy).gas(gas).done());
    }
    for (to, element, bounds) in precompiles::LIMITED {
        for bound in bounds {
            let longest = bound / element * element;
            for size in [longest, longest + element] {
                let program =
                    precompiles::call(Program::default(), to, size, None).store(0).op(op::RETURNDATASIZE).store(1);
                let name = format!("precompile {to:#x} with {size} bytes");
                let mut case = edge(&name, Envelope::Deposit).gas(30_000_000).calls(program);
                case.fields.value = U256::ZERO;
                cases.push(case.done());
            }
        }
    }
    // Each precompile directly, and P256VERIFY's price, which Karst doubles.
    let mut dice = Dice::of(0, 1);
    for to in precompiles::ALL {
        let mut direct = edge(&format!("to precompile {to:#x}"), Envelope::Market).to(precompiles::address(to));
        direct.fields.input = precompiles::expected_input(&mut dice, to).into();
        direct.fields.gas_limit = 300_000;
        cases.push(direct.done());
    }
    let size = |size: u64| U256::from(size).to_be_bytes::<32>();
    for length in [1_024, 1_025] {
        let mut modexp =
            edge(&format!("modexp of {length} bytes"), Envelope::Market).to(precompiles::address(precompiles::MODEXP));
        modexp.fields.input = [size(length), size(1), size(1), [3; 32]].concat().into();
        modexp.fields.gas_limit = 1_000_000;
        cases.push(modexp.done());
    }
    let init = vec![0; 49_153];
    cases.push(edge("an init code too long", Envelope::Market).gas(5_000_000).creates(init.into()).done());
    cases.push(edge("blobs", Envelope::Blobs).done());
    let mut wrong = edge("another chain's id", Envelope::Market);
    wrong.fields.chain_id = CHAIN_ID + 1;
    cases.push(wrong.done());
    cases.push(edge("a contract that sends", Envelope::Market).calls(slots()).from(CONTRACTS[0], ether(1)).done());
    cases
}

fn delegations() -> Vec<Case> {
    let by = |name: &str, signer: usize, nonce: u64, chain: u64| {
        let mut edge = edge(name, Envelope::Delegations).calls(slots().op(op::STOP));
        edge.fields.authorizations = vec![authorize(signer, chain, nonce, CONTRACTS[0])];
        edge
    };
    let mut cases = vec![
        by("a delegation by another", 1, 0, CHAIN_ID).done(),
        by("a delegation by the sender", 0, 8, CHAIN_ID).to(signers()[0]).done(),
        by("a delegation for every chain", 1, 0, 0).done(),
        by("a delegation for another chain", 1, 0, CHAIN_ID + 1).done(),
        by("a delegation with a wrong nonce", 1, 3, CHAIN_ID).done(),
    ];
    let mut none = by("a list of no delegation", 1, 0, CHAIN_ID);
    none.fields.authorizations.clear();
    cases.push(none.done());
    let code: Bytes = [&[0xef, 0x01, 0x00], CONTRACTS[0].as_slice()].concat().into();
    for envelope in [Envelope::Market, Envelope::Deposit] {
        let mut delegated =
            edge(&format!("{envelope:?} by an account that has delegated"), envelope).calls(slots().op(op::STOP));
        let sender = delegated.case.sender;
        delegated.case.pre.entry(sender).and_modify(|account| account.code = code.clone());
        cases.push(delegated.to(sender).done());
    }
    cases
}
