//! The chains that the tests name: a fork from the start, or a change from one fork to another.

use serde_json::{Map, Value, json};

use super::cases::TestConfig;

/// The forks in order, with the fields of a genesis `config` that activate each.
const FORKS: [(&str, &[&str]); 20] = [
    ("Frontier", &[]),
    ("Homestead", &["homesteadBlock"]),
    ("EIP150", &["eip150Block"]),
    ("EIP158", &["eip155Block", "eip158Block"]),
    ("Byzantium", &["byzantiumBlock"]),
    ("ConstantinopleFix", &["constantinopleBlock", "petersburgBlock"]),
    ("Istanbul", &["istanbulBlock"]),
    ("MuirGlacier", &["muirGlacierBlock"]),
    ("Berlin", &["berlinBlock"]),
    ("London", &["londonBlock"]),
    ("ArrowGlacier", &["arrowGlacierBlock"]),
    ("GrayGlacier", &["grayGlacierBlock"]),
    ("Paris", &["terminalTotalDifficulty"]),
    ("Shanghai", &["shanghaiTime"]),
    ("Cancun", &["cancunTime"]),
    ("Prague", &["pragueTime"]),
    ("Osaka", &["osakaTime"]),
    ("BPO1", &["bpo1Time"]),
    ("BPO2", &["bpo2Time"]),
    ("Amsterdam", &["amsterdamTime"]),
];

fn position(fork: &str) -> Option<usize> {
    let fork = if fork == "Merge" { "Paris" } else { fork };
    FORKS.iter().position(|(name, _)| *name == fork)
}

/// Returns a network's `config` of a genesis; `None` if the network has no name of the table.
pub fn genesis_config(network: &str, config: Option<&TestConfig>) -> Option<Value> {
    let chain_id = config.and_then(|config| config.chain_id).map_or(1, |id| id.to::<u64>());
    let blobs = config.and_then(|config| config.blobs.as_ref());
    let (from, then) = match network.split_once("To") {
        Some(("Homestead", "DaoAt5")) => (position("Homestead")?, None),
        Some((from, rest)) => {
            let (to, at) = rest.split_once("At")?;
            (position(from)?, Some((position(to)?, at)))
        }
        None => (position(network)?, None),
    };
    let mut config = Map::new();
    if network == "HomesteadToDaoAt5" {
        config.insert("homesteadBlock".to_owned(), json!(0));
        config.insert("daoForkBlock".to_owned(), json!(5));
        config.insert("daoForkSupport".to_owned(), json!(true));
    }
    let mut activate = |fork: usize, at: u64| {
        for field in FORKS[fork].1 {
            config.insert((*field).to_owned(), json!(at));
        }
    };
    for fork in 0..=from {
        activate(fork, 0);
    }
    if let Some((to, at)) = then {
        let at = at
            .strip_prefix("Time")
            .map_or_else(|| at.parse().ok(), |time| Some(time.strip_suffix('k')?.parse::<u64>().ok()? * 1000))?;
        for fork in from + 1..=to {
            activate(fork, at);
        }
    }
    config.insert("chainId".to_owned(), json!(chain_id));
    if let Some(blobs) = blobs {
        let number = |value: &Value| u64::from_str_radix(value.as_str()?.trim_start_matches("0x"), 16).ok();
        let schedule: Map<String, Value> = blobs
            .iter()
            .map(|(fork, params)| {
                let params: Map<_, _> = params
                    .as_object()
                    .unwrap()
                    .iter()
                    .map(|(name, value)| (name.clone(), json!(number(value))))
                    .collect();
                (fork.to_lowercase(), Value::Object(params))
            })
            .collect();
        config.insert("blobSchedule".to_owned(), Value::Object(schedule));
    }
    config.insert("depositContractAddress".to_owned(), json!("0x00000000219ab540356cbb839cbe05303d7705fa"));
    Some(Value::Object(config))
}
