//! The chains that presim knows by their id, their forks, and forks that are moved.

use std::time::Duration;

use alloy_consensus::Header;
use revm::primitives::hardfork::SpecId;

use crate::chain::{ChainSpec, Family, Fork, ForkName, ForkTime};

/// The id of a chain, the time between its blocks, and the times at which its EVM becomes another.
type KnownChain = (u64, Duration, &'static [(u64, SpecId)]);

fn at(spec: &ChainSpec, timestamp: u64) -> SpecId {
    spec.evm_fork(&Header { number: 200_000_000, timestamp, base_fee_per_gas: Some(1), ..Header::default() })
}

#[test]
fn known_chains_have_the_evm_of_their_forks_from_the_very_second_on() {
    const SECOND: Duration = Duration::from_secs(1);
    let chains: [KnownChain; 18] = [
        (1, 12 * SECOND, &[(1_746_612_311, SpecId::PRAGUE), (1_764_798_551, SpecId::OSAKA)]),
        (10, 2 * SECOND, &[(1_746_806_401, SpecId::PRAGUE), (1_783_526_401, SpecId::OSAKA)]),
        (130, SECOND, &[(1_746_806_401, SpecId::PRAGUE), (1_783_526_401, SpecId::OSAKA)]),
        (480, 2 * SECOND, &[(1_789_992_000, SpecId::OSAKA)]),
        (57_073, SECOND, &[(1_783_526_401, SpecId::OSAKA)]),
        (1_868, 2 * SECOND, &[(1_783_526_401, SpecId::OSAKA)]),
        (34_443, 2 * SECOND, &[(1_710_374_401, SpecId::CANCUN), (1_783_526_401, SpecId::OSAKA)]),
        (7_777_777, 2 * SECOND, &[(1_783_526_401, SpecId::OSAKA)]),
        (8_453, Duration::from_millis(200), &[(1_746_806_401, SpecId::PRAGUE), (1_779_991_200, SpecId::OSAKA)]),
        (1_301, SECOND, &[(1_744_905_600, SpecId::PRAGUE), (1_781_712_001, SpecId::OSAKA)]),
        (763_373, SECOND, &[(1_699_981_200, SpecId::SHANGHAI), (1_781_712_001, SpecId::OSAKA)]),
        (1_946, 2 * SECOND, &[(1_744_905_600, SpecId::PRAGUE), (1_781_712_001, SpecId::OSAKA)]),
        (4_801, 2 * SECOND, &[(1_761_825_600, SpecId::PRAGUE), (1_788_868_800, SpecId::OSAKA)]),
        (919, 2 * SECOND, &[(1_703_203_200, SpecId::SHANGHAI), (1_781_712_001, SpecId::OSAKA)]),
        (999_999_999, 2 * SECOND, &[(1_708_534_800, SpecId::CANCUN), (1_781_712_001, SpecId::OSAKA)]),
        (4_202, 2 * SECOND, &[(1_705_312_994, SpecId::SHANGHAI), (1_781_712_001, SpecId::OSAKA)]),
        (1_740, 2 * SECOND, &[(1_708_129_622, SpecId::SHANGHAI), (1_781_712_001, SpecId::OSAKA)]),
        // X Layer's test network has no time at which its EVM becomes another.
        (1_952, SECOND, &[]),
    ];
    for (id, block_time, evms) in chains {
        let spec = ChainSpec::known(id).unwrap_or_else(|| panic!("chain {id} is known"));
        assert_eq!(spec.block_time(), block_time, "chain {id}");
        for (time, evm) in evms {
            assert_eq!(at(&spec, *time), *evm, "chain {id} at {time}");
            assert_ne!(at(&spec, *time - 1), *evm, "chain {id} before {time}");
            assert!(spec.executes_fork_at(*time) && !spec.executes_fork_at(*time + 1), "chain {id}");
        }
    }
    for id in ChainSpec::known_ids() {
        let spec = ChainSpec::known(id).expect("its forks are in order");
        assert_eq!(spec.chain_id(), id);
        assert_eq!(spec.family() == Family::Ethereum, [1, 11_155_111, 17_000, 560_048].contains(&id), "chain {id}");
    }
    assert!(ChainSpec::known(5).is_none());
}

/// The release notes of op-reth v2.10.0 have these times.
#[test]
fn lagoon_activates_first_on_the_test_networks_and_a_month_later_on_the_others() {
    for (ids, time) in [([11_155_420, 763_373, 1_946, 1_301], 1_796_918_401), ([10, 57_073, 1_868, 130], 1_799_683_201)]
    {
        for id in ids {
            let spec = ChainSpec::known(id).unwrap_or_else(|| panic!("chain {id} is known"));
            assert!(spec.activates_at(ForkName::Lagoon, time), "chain {id}");
            assert_eq!(at(&spec, time), SpecId::OSAKA, "chain {id}");
        }
    }
    let base = ChainSpec::known(8_453).expect("Base");
    assert!(base.activates_at(ForkName::Jovian, 1_764_691_201));
    let xlayer = ChainSpec::known(1_952).expect("X Layer's test network");
    assert!(xlayer.activates_at(ForkName::Jovian, 1_764_327_600));
}

/// The table of networks in the README is that of the code.
#[test]
fn the_table_of_networks_has_each_with_its_last_fork() {
    let rows: Vec<Vec<&str>> = include_str!("../../source/README.md")
        .lines()
        .filter_map(|line| line.strip_prefix("| ")?.strip_suffix(" |"))
        .map(|row| row.split(" | ").collect::<Vec<_>>())
        .filter(|row| matches!(row[..], [_, id, ..] if id.parse::<u64>().is_ok()))
        .collect();
    assert_eq!(rows.len(), ChainSpec::known_ids().count());
    for row in rows {
        let [name, id, fork, time] = row[..] else { panic!("a row of four cells: {row:?}") };
        let spec = ChainSpec::known(id.parse().expect("a number")).unwrap_or_else(|| panic!("{name} is known"));
        let (fork, time): (ForkName, u64) = (fork.parse().expect("a fork"), time.parse().expect("a time"));
        assert!(spec.activates_at(fork, time), "{name}");
        assert!(!spec.changes_after(u64::MAX, time), "{name} has a later fork");
    }
}

/// Denim: a block every 200 ms, of which five have one timestamp.
#[test]
fn timestamps_repeat_where_the_rules_say_so() {
    let base = ChainSpec::known(8_453).expect("Base");
    assert!(!base.timestamps_repeat(1_793_901_599) && base.timestamps_repeat(1_793_901_600));
    assert_eq!(base.prescribed_block_time(1_793_901_600), Some(Duration::from_millis(200)));
    assert_eq!(base.prescribed_block_time(1_793_901_599), None);
    assert!(!ChainSpec::known(10).expect("OP Mainnet").timestamps_repeat(1_793_901_600));
}

#[test]
fn a_fork_is_moved_by_its_name_within_its_family_and_order() {
    let moved = |text: &str| -> Result<ChainSpec, String> {
        let fork: ForkTime = text.parse()?;
        ChainSpec::known_with(10, &[fork]).expect("OP Mainnet").map_err(|error| error.to_string())
    };
    let spec = moved("karst=1799000000").expect("a later time");
    assert_eq!((at(&spec, 1_798_999_999), at(&spec, 1_799_000_000)), (SpecId::PRAGUE, SpecId::OSAKA));
    assert_eq!(at(&moved("Karst=never").expect("no time"), u64::MAX), SpecId::PRAGUE);
    // Lagoon follows Karst, and has its EVM.
    assert_eq!(at(&moved("lagoon=1800000000").expect("a time"), 1_800_000_000), SpecId::OSAKA);
    assert!(matches!(
        spec.fork(&Header { number: 200_000_000, timestamp: 1_800_000_000, ..Header::default() }),
        Fork::OpStack(_)
    ));
    for (text, named) in [
        ("karst", &["NAME=TIME"][..]),
        ("kaarst=1", &["kaarst", "karst", "denim"]),
        ("karst=soon", &["karst", "soon", "never"]),
        ("karst=5", &["karst", "jovian"]),
        ("lagoon=1783526400", &["lagoon", "karst"]),
        ("osaka=5", &["osaka", "OP stack", "karst"]),
    ] {
        let told = moved(text).map(|_| ()).expect_err(text);
        assert!(named.iter().all(|word| told.contains(word)), "{text}: {told}");
    }
}
