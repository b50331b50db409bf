//! The layers of the crate: each uses only those below it.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

/// Returns the layers from the top, as `src/lib.rs` lists them.
fn floors() -> Vec<String> {
    let text = fs::read_to_string(source("lib.rs")).unwrap();
    let floors = text.lines().filter_map(|line| line.strip_prefix("//! - [`")?.split_once('`'));
    floors.map(|(name, _)| name.to_owned()).collect()
}

fn source(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src").join(path)
}

/// Returns the Rust files of a layer: its file, and all files in its folder.
fn files_of(floor: &str) -> Vec<PathBuf> {
    let mut files = Vec::new();
    let mut pending = vec![source(floor), source(&format!("{floor}.rs"))];
    while let Some(path) = pending.pop() {
        if path.is_dir() {
            pending.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        } else if path.extension().is_some_and(|extension| extension == "rs") && path.is_file() {
            files.push(path);
        }
    }
    files
}

/// Returns the modules of this crate that a file names: `crate::one::…`, and the first names of `use crate::{one::…}`.
fn used(text: &str) -> BTreeSet<String> {
    let code: String =
        text.lines().filter(|line| !line.trim_start().starts_with("//")).flat_map(|line| [line, "\n"]).collect();
    let mut used = BTreeSet::new();
    for after in code.split("crate::").skip(1) {
        let Some(group) = after.strip_prefix('{') else {
            used.extend(word(after));
            continue;
        };
        let (mut depth, mut is_first) = (0, true);
        for (at, character) in group.char_indices() {
            match character {
                '{' => depth += 1,
                '}' if depth == 0 => break,
                '}' => depth -= 1,
                ',' if depth == 0 => is_first = true,
                _ if is_first && !character.is_whitespace() => {
                    used.extend(word(&group[at..]));
                    is_first = false;
                }
                _ => {}
            }
        }
    }
    used
}

/// Returns the name that a text begins with, if it can be a module's.
fn word(text: &str) -> Option<String> {
    let end = text.find(|character: char| !character.is_alphanumeric() && character != '_')?;
    let word = &text[..end];
    word.starts_with(char::is_lowercase).then(|| word.to_owned())
}

#[test]
fn each_floor_uses_only_those_below_it() {
    let floors = floors();
    let modules: BTreeSet<String> = fs::read_to_string(source("lib.rs"))
        .unwrap()
        .lines()
        .filter_map(|line| Some(line.strip_prefix("pub mod ")?.trim_end_matches(';').to_owned()))
        .collect();
    assert_eq!(floors.iter().cloned().collect::<BTreeSet<_>>(), modules, "lib.rs lists each of its modules as a floor");
    let mut arrows = 0;
    for (height, floor) in floors.iter().enumerate() {
        let files = files_of(floor);
        assert!(!files.is_empty(), "{floor} has no files");
        for file in files {
            for other in used(&fs::read_to_string(&file).unwrap()) {
                let Some(below) = floors.iter().position(|name| *name == other) else { continue };
                assert!(below >= height, "{}: {floor} uses {other}, which is above it", file.display());
                arrows += usize::from(below > height);
            }
        }
    }
    assert!(arrows > 100, "only {arrows} uses were found");
}

#[test]
fn names_are_found_however_they_are_written() {
    let found = used(
        "use crate::chain::Spec;\nuse crate::{\n    feed::{self, apply::{a, b}},\n    state::World,\n};\n// crate::rpc\nfn f() -> crate::store::Row { crate::World }",
    );
    assert_eq!(found.iter().map(String::as_str).collect::<Vec<_>>(), ["chain", "feed", "state", "store"]);
}
