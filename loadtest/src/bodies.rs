//! The command `loadtest bodies`: writes request bodies of the classes, or of a node's world, into files.

use std::{fs, path::PathBuf, time::Duration};

use alloy_primitives::Address;
use clap::{Args as ClapArgs, ValueEnum};
use eyre::{Context, Result};

use crate::{
    body::{Body, Tag},
    classes::{Class, ClassBodies, RecordedWorld},
    mix::{Mix, Workload},
    rpc::Rpc,
    target::Target,
    workload::{self, Making},
    world::{ROUTER, World},
};

/// The kinds that `--from` writes: all that change nothing on the chain.
const KINDS: [Workload; 10] = [
    Workload::Balance,
    Workload::Quote,
    Workload::Code,
    Workload::Swap,
    Workload::Sandwich,
    Workload::Multi,
    Workload::Big,
    Workload::Override,
    Workload::Search,
    Workload::Batch,
];
/// The longest wait for an answer of the node of `--from`.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Writes request bodies made at random, one body per line: with --from a file KIND.ndjson for each kind of --mix that
/// changes nothing, otherwise a file CLASS.ndjson for each class
#[derive(Clone, Debug, ClapArgs)]
pub struct BodiesArgs {
    /// Choose by this seed: the same seed makes the same bodies
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Make only these classes. Separate by commas
    #[arg(long, value_enum, value_delimiter = ',', value_name = "CLASS")]
    pub class: Vec<Class>,
    /// Make this many bodies of each class or kind
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    pub count: u64,
    /// Ask for this state
    #[arg(long, value_enum, default_value_t = Tag::Latest)]
    pub tag: Tag,
    /// Use the accounts and markets of this node: http://HOST:PORT[/PATH], or the path of a Unix socket
    #[arg(long, value_name = "URL", conflicts_with_all = ["class", "world"])]
    pub from: Option<String>,
    /// With --from: use the markets of this Uniswap V2 router
    #[arg(long, value_name = "ADDRESS", default_value_t = ROUTER, requires = "from")]
    pub router: Address,
    /// Use the contracts of this folder's world.json
    #[arg(long, value_name = "DIR", default_value = "../shared/bench")]
    pub world: PathBuf,
    /// Write into this folder
    #[arg(long, value_name = "DIR", default_value = "bodies")]
    pub out: PathBuf,
}

impl BodiesArgs {
    /// Writes the files.
    ///
    /// # Errors
    ///
    /// Returns an error if the world cannot be read, or a file cannot be written.
    pub fn run(&self) -> Result<()> {
        match &self.from {
            Some(url) => self.write_kinds(url),
            None => self.write_classes(),
        }
    }

    fn write_kinds(&self, url: &str) -> Result<()> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().wrap_err("no runtime")?;
        let target = Target::parse(url, String::new(), false, &[])?;
        let mut rpc = Rpc::new(&target.for_calls(), TIMEOUT);
        let world = runtime.block_on(World::discover(&mut rpc, Some(self.router), &[]));
        let world = world.wrap_err_with(|| format!("--from {url}"))?;
        let mix = Mix(KINDS.map(|kind| (kind, 1)).to_vec());
        let making = Making { tag: self.tag, seed: self.seed, count: self.count as usize, max_bytes: u64::MAX };
        for (kind, bodies) in KINDS.iter().zip(workload::make(&mix, &world, making)?) {
            let line = |body: &Body| [&body.with_ids(0)[..], b"\n"].concat();
            self.write(&kind.to_string(), &bodies.iter().flat_map(line).collect::<Vec<u8>>())?;
        }
        Ok(())
    }

    fn write_classes(&self) -> Result<()> {
        let world = RecordedWorld::read(&self.world)?;
        let bodies = ClassBodies { world: &world, seed: self.seed, tag: &self.tag.to_string() };
        let classes = if self.class.is_empty() { Class::value_variants() } else { &self.class };
        for class in classes {
            let lines: String = (0..self.count).map(|number| bodies.body(*class, number) + "\n").collect();
            self.write(&class.to_string(), lines.as_bytes())?;
        }
        Ok(())
    }

    /// Writes the bodies of a class or kind.
    fn write(&self, name: &str, lines: &[u8]) -> Result<()> {
        fs::create_dir_all(&self.out).wrap_err_with(|| format!("--out: {} cannot be created", self.out.display()))?;
        let file = self.out.join(name).with_extension("ndjson");
        fs::write(&file, lines).wrap_err_with(|| format!("{}: cannot be written", file.display()))?;
        println!("wrote {}: {} bodies, {} bytes", file.display(), self.count, lines.len());
        Ok(())
    }
}
