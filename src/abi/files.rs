//! ABI files: a plain ABI, an artifact of foundry or hardhat, or a folder of them.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use alloy_json_abi::AbiItem;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::{AbiBook, item::read_item};
use crate::objects;

/// Maximum number of files of a folder that are read.
const MAX_FILES: usize = 20_000;
/// Maximum bytes of a file that is read.
const MAX_BYTES: u64 = 64 << 20;

/// The reason why ABI files cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum AbiFileError {
    /// The system cannot read a file or a folder.
    #[error("{}: {source}", path.display())]
    Read { path: PathBuf, source: io::Error },
    /// A file holds no ABI.
    #[error("{}: {problem}: expected an ABI, or an artifact of foundry or hardhat with an `abi`", path.display())]
    NoAbi { path: PathBuf, problem: String },
    /// A folder holds no ABI.
    #[error("{}: no file in it has an ABI: expected foundry's `out`, hardhat's `artifacts`, or JSON files of ABIs", path.display())]
    Empty { path: PathBuf },
    /// A folder or a file is too large.
    #[error("{}: {problem}", path.display())]
    TooLarge { path: PathBuf, problem: String },
}

/// The part of an artifact that is read.
#[derive(Deserialize)]
struct Artifact<'a> {
    #[serde(borrow)]
    abi: Vec<&'a RawValue>,
}

/// Returns the items of a file by which data is decoded.
fn read_items(text: &[u8]) -> serde_json::Result<Vec<AbiItem<'static>>> {
    let items = match text.trim_ascii_start().starts_with(b"[") {
        true => objects::from_slice(text)?,
        false => objects::from_slice::<Artifact<'_>>(text)?.abi,
    };
    items.into_iter().filter_map(|item| read_item(item.get()).transpose()).collect()
}

impl AbiBook {
    /// Adds the ABI of a file, or those of all files of a folder and the folders in it.
    ///
    /// # Errors
    ///
    /// Returns [`AbiFileError`] if the path cannot be read, or has no ABI in it.
    pub fn add_files(&mut self, path: &Path) -> Result<(), AbiFileError> {
        let is_folder = fs::metadata(path).map_err(|source| read_error(path, source))?.is_dir();
        if !is_folder {
            return self.add_file(path);
        }
        let mut pending = vec![path.to_owned()];
        let (mut files, mut found) = (0, false);
        while let Some(folder) = pending.pop() {
            let entries = fs::read_dir(&folder).map_err(|source| read_error(&folder, source))?;
            for entry in entries {
                let entry = entry.map_err(|source| read_error(&folder, source))?;
                let kind = entry.file_type().map_err(|source| read_error(&folder, source))?;
                // Links are not followed, so that no folder is read twice. Compilers' inputs and outputs have no ABI of
                // their own.
                if kind.is_dir() && entry.file_name() != "build-info" {
                    pending.push(entry.path());
                } else if kind.is_file() && entry.path().extension().is_some_and(|end| end == "json" || end == "abi") {
                    files += 1;
                    if files > MAX_FILES {
                        let problem = format!("it has more than {MAX_FILES} files: give the folder of the contracts");
                        return Err(AbiFileError::TooLarge { path: path.to_owned(), problem });
                    }
                    match self.add_file(&entry.path()) {
                        Ok(()) => found = true,
                        // A folder has other files, too.
                        Err(AbiFileError::NoAbi { .. }) => {}
                        Err(error) => return Err(error),
                    }
                }
            }
        }
        if found { Ok(()) } else { Err(AbiFileError::Empty { path: path.to_owned() }) }
    }

    fn add_file(&mut self, path: &Path) -> Result<(), AbiFileError> {
        let length = fs::metadata(path).map_err(|source| read_error(path, source))?.len();
        if length > MAX_BYTES {
            let problem = format!("{length} bytes: expected at most {MAX_BYTES}");
            return Err(AbiFileError::TooLarge { path: path.to_owned(), problem });
        }
        let text = fs::read(path).map_err(|source| read_error(path, source))?;
        let items = read_items(&text).map_err(|error| {
            let problem = match error.classify() {
                serde_json::error::Category::Data => "no ABI".to_owned(),
                _ => error.to_string(),
            };
            AbiFileError::NoAbi { path: path.to_owned(), problem }
        })?;
        items.into_iter().for_each(|item| self.add(item, true));
        Ok(())
    }
}

fn read_error(path: &Path, source: io::Error) -> AbiFileError {
    AbiFileError::Read { path: path.to_owned(), source }
}
