//! The rules of this project's English that a machine can check, over all Rust files of the repository.

use std::{
    collections::BTreeSet,
    fmt::Write,
    fs,
    path::{Path, PathBuf},
};

/// Words that cannot open a comment, because a reader who has seen nothing yet does not know what they stand for.
const OPENINGS: [&str; 17] = [
    "What", "Whatever", "Who", "Whoever", "Whose", "How", "That", "Those", "It", "Its", "They", "Them", "Nobody",
    "Rather", "Comes", "Goes", "Stands",
];

/// Documents that this repository does not hold, so a comment cannot cite them.
const ABSENT: [&str; 3] = ["design.md", "api.md", "ruling"];

struct SourceFile {
    path: String,
    lines: Vec<String>,
}

/// A paragraph of a comment: consecutive lines of one kind, without their markers.
struct Paragraph<'a> {
    line: usize,
    text: Vec<&'a str>,
    /// Whether it begins the comment.
    is_first: bool,
}

/// Returns the Rust files of the crates, sorted by path.
fn sources() -> Vec<SourceFile> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut pending: Vec<PathBuf> =
        ["src", "tests", "benches", "loadtest", "profiles"].iter().map(|folder| root.join(folder)).collect();
    let mut files = Vec::new();
    while let Some(path) = pending.pop() {
        if path.is_dir() {
            // The oracle's build has one in `benches`.
            if !path.ends_with("target") {
                pending.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
            }
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = fs::read_to_string(&path).unwrap();
            let path = path.strip_prefix(root).unwrap().display().to_string();
            files.push(SourceFile { path, lines: text.lines().map(str::to_owned).collect() });
        }
    }
    files.sort_by(|a, b| a.path.cmp(&b.path));
    assert!(files.len() > 200, "{} files were found", files.len());
    files
}

/// Returns a comment line's marker and its text.
fn comment(line: &str) -> Option<(&'static str, &str)> {
    let line = line.trim_start();
    ["///", "//!", "//"].into_iter().find_map(|marker| Some((marker, line.strip_prefix(marker)?.trim())))
}

impl SourceFile {
    fn paragraphs(&self) -> Vec<Paragraph<'_>> {
        let mut paragraphs: Vec<Paragraph<'_>> = Vec::new();
        let (mut marker_before, mut is_open, mut is_code) = (None, false, false);
        for (at, line) in self.lines.iter().enumerate() {
            let Some((marker, text)) = comment(line) else {
                (marker_before, is_open, is_code) = (None, false, false);
                continue;
            };
            let is_first = marker_before != Some(marker);
            is_open &= !is_first && !text.is_empty();
            marker_before = Some(marker);
            if text.starts_with("```") {
                (is_code, is_open) = (!is_code, false);
            } else if is_open {
                paragraphs.last_mut().expect("an open paragraph").text.push(text);
            } else if !text.is_empty() && !is_code {
                paragraphs.push(Paragraph { line: at + 1, text: vec![text], is_first });
                is_open = true;
            }
        }
        paragraphs
    }
}

/// Returns the Markdown files of the repository.
fn pages() -> Vec<PathBuf> {
    let mut pending = vec![PathBuf::from(env!("CARGO_MANIFEST_DIR"))];
    let mut pages = Vec::new();
    while let Some(path) = pending.pop() {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if path.is_dir() {
            if !["target", "node_modules", "venv", ".git"].contains(&name.as_ref()) {
                pending.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
            }
        } else if name.ends_with(".md") {
            pages.push(path);
        }
    }
    assert!(pages.len() >= 10, "{} pages were found", pages.len());
    pages
}

/// Returns the targets of a page's links, without those in blocks of code.
fn links(text: &str) -> Vec<&str> {
    let mut is_code = false;
    let lines = text.lines().filter(|line| {
        is_code ^= line.starts_with("```");
        !is_code
    });
    lines.flat_map(|line| line.split("](").skip(1)).filter_map(|rest| Some(rest.split_once(')')?.0)).collect()
}

/// Returns the anchors of a page's headings, as GitHub makes them.
fn anchors(text: &str) -> BTreeSet<String> {
    let headings =
        text.lines().filter_map(|line| line.strip_prefix('#')).map(|line| line.trim_start_matches('#').trim());
    let slug = |heading: &str| {
        let kept = heading.chars().filter(|character| character.is_alphanumeric() || " -_".contains(*character));
        kept.flat_map(char::to_lowercase).map(|character| if character == ' ' { '-' } else { character }).collect()
    };
    headings.map(slug).collect()
}

/// Panics with one line for each finding.
fn assert_none(findings: Vec<String>, rule: &str) {
    let mut text = String::new();
    for finding in &findings {
        writeln!(text, "  {finding}").unwrap();
    }
    assert!(findings.is_empty(), "{rule}:\n{text}");
}

#[test]
fn a_comment_opens_with_its_subject_or_its_verb() {
    let mut findings = Vec::new();
    for file in sources() {
        for paragraph in file.paragraphs().iter().filter(|paragraph| paragraph.is_first) {
            let word = paragraph.text[0].split(|character: char| !character.is_alphabetic()).next().unwrap_or_default();
            if OPENINGS.contains(&word) {
                findings.push(format!("{}:{}: {}", file.path, paragraph.line, paragraph.text[0]));
            }
        }
    }
    assert_none(findings, "a comment begins with a noun or a verb, not with a pronoun");
}

#[test]
fn a_comment_cites_only_what_a_reader_can_open() {
    let mut findings = Vec::new();
    for file in sources().iter().filter(|file| !file.path.ends_with("prose.rs")) {
        for paragraph in file.paragraphs() {
            let text = paragraph.text.join(" ").to_lowercase();
            if let Some(absent) = ABSENT.iter().find(|absent| text.contains(**absent)) {
                findings.push(format!("{}:{}: {absent}", file.path, paragraph.line));
            }
        }
    }
    assert_none(findings, "a comment cites a document that is not in the repository");
}

#[test]
fn each_link_of_a_page_leads_somewhere() {
    let mut findings = Vec::new();
    for page in pages() {
        let text = fs::read_to_string(&page).unwrap();
        for link in links(&text).into_iter().filter(|link| !link.contains("://")) {
            let (path, anchor) = link.split_once('#').unwrap_or((link, ""));
            let target = if path.is_empty() { page.clone() } else { page.parent().unwrap().join(path) };
            let leads = target.exists()
                && (anchor.is_empty() || anchors(&fs::read_to_string(&target).unwrap()).contains(anchor));
            if !leads {
                findings.push(format!("{}: {link}", page.display()));
            }
        }
    }
    assert_none(findings, "a link leads nowhere");
}

/// Returns the pages of the guides that a page links to.
fn linked_guides(guides: &Path, page: &Path) -> BTreeSet<PathBuf> {
    let text = fs::read_to_string(page).unwrap();
    let folder = page.parent().unwrap();
    let paths = links(&text).into_iter().filter_map(|link| link.split('#').next());
    let targets = paths.filter_map(|path| folder.join(path).canonicalize().ok());
    targets.filter(|target| target.starts_with(guides) && target.extension().is_some_and(|end| end == "md")).collect()
}

#[test]
fn every_guide_is_reached_from_their_index_and_is_in_the_book() {
    let guides = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs").canonicalize().unwrap();
    let summary = guides.join("SUMMARY.md");
    let mut expected: BTreeSet<PathBuf> = pages().into_iter().map(|page| page.canonicalize().unwrap()).collect();
    expected.retain(|page| page.starts_with(&guides) && *page != summary);
    assert!(expected.len() > 5, "{expected:?}");
    let index = guides.join("README.md");
    let mut reached = BTreeSet::from([index.clone()]);
    let mut pending = vec![index];
    while let Some(page) = pending.pop() {
        for target in linked_guides(&guides, &page) {
            if reached.insert(target.clone()) {
                pending.push(target);
            }
        }
    }
    assert_eq!(reached, expected);
    assert_eq!(linked_guides(&guides, &summary), expected);
}

#[test]
fn the_program_of_the_page_for_searchers_is_the_one_that_runs() {
    let page = include_str!("../../src/rpc/searchers.md");
    let program = format!("```rust\n{}```", include_str!("../clients/searcher.rs"));
    assert!(page.contains(&program), "src/rpc/searchers.md has another program than tests/clients/searcher.rs");
}

/// Returns the rows of a page's table of what an attacker can do.
fn attackers(page: &str) -> Vec<String> {
    let text = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(page)).unwrap();
    let table = text.split_once("\n## What an attacker can do\n").unwrap_or_else(|| panic!("{page} has no table")).1;
    let rows: Vec<String> = table.lines().filter(|line| line.starts_with("| ")).skip(1).map(str::to_owned).collect();
    assert!(rows.len() > 8, "{page}: {rows:?}");
    rows
}

#[test]
fn what_an_attacker_cannot_do_is_shown_by_tests_that_exist() {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
    let mut missing = Vec::new();
    for page in ["src/rpc/security.md", "src/wallet/README.md"] {
        for row in attackers(page) {
            let shown = row.trim_end_matches(" |").rsplit(" | ").next().unwrap_or_default().to_owned();
            let names: Vec<&str> = shown.split('`').skip(1).step_by(2).collect();
            assert!(!names.is_empty(), "{page}: {row}: no test");
            for name in names {
                let exists = match name.rsplit_once("::") {
                    Some((module, function)) => {
                        let file = [format!("{module}.rs"), format!("{module}/mod.rs")];
                        let texts =
                            file.iter().filter_map(|file| fs::read_to_string(tests.join("suite").join(file)).ok());
                        texts.into_iter().any(|text| text.contains(&format!("fn {function}(")))
                    }
                    None => tests.join("browser").join(name).is_file(),
                };
                if !exists {
                    missing.push(format!("{page}: {name}"));
                }
            }
        }
    }
    assert_eq!(missing, [""; 0]);
}
