//! The command `loadtest bodies`: writes request bodies of the classes into files.

use std::{fs, path::PathBuf};

use clap::{Args as ClapArgs, ValueEnum};
use eyre::{Context, Result};

use crate::{
    body::Tag,
    classes::{Class, ClassBodies, RecordedWorld},
};

/// Writes request bodies made at random, a file CLASS.ndjson for each class, one body per line
#[derive(Clone, Debug, ClapArgs)]
pub struct BodiesArgs {
    /// Choose by this seed: the same seed makes the same bodies
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Make only these classes. Separate by commas
    #[arg(long, value_enum, value_delimiter = ',', value_name = "CLASS")]
    pub class: Vec<Class>,
    /// Make this many bodies of each class
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    pub count: u64,
    /// Ask for this state
    #[arg(long, value_enum, default_value_t = Tag::Latest)]
    pub tag: Tag,
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
        let world = RecordedWorld::read(&self.world)?;
        let bodies = ClassBodies { world: &world, seed: self.seed, tag: &self.tag.to_string() };
        let classes = if self.class.is_empty() { Class::value_variants() } else { &self.class };
        fs::create_dir_all(&self.out).wrap_err_with(|| format!("--out: {} cannot be created", self.out.display()))?;
        for class in classes {
            let file = self.out.join(class.to_string()).with_extension("ndjson");
            let lines: String = (0..self.count).map(|number| bodies.body(*class, number) + "\n").collect();
            fs::write(&file, &lines).wrap_err_with(|| format!("{}: cannot be written", file.display()))?;
            println!("wrote {}: {} bodies, {} bytes", file.display(), self.count, lines.len());
        }
        Ok(())
    }
}
