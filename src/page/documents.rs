//! The READMEs and the guides as pages, under the paths that they have in the repository, so that their links to each other hold.

use std::{collections::BTreeMap, fmt::Write, mem};

use pulldown_cmark::{Alignment, CowStr, Event, Options, Parser, Tag, TagEnd, html};

use crate::rpc::ServedFile;

/// The folder of the documents.
const FOLDER: &str = "/documents/";

macro_rules! documents {
    ($($path:literal),+ $(,)?) => {
        [$((concat!("/documents/", $path), include_str!(concat!("../../", $path)))),+]
    };
}

/// The paths of the documents, each with its Markdown.
const DOCUMENTS: [(&str, &str); 22] = documents![
    "README.md",
    "docs/README.md",
    "docs/comparison.md",
    "docs/cookbook.md",
    "docs/errors.md",
    "docs/from-anvil-hardhat-foundry.md",
    "docs/next-fork.md",
    "docs/operations.md",
    "docs/stability.md",
    "docs/start.md",
    "src/README.md",
    "src/command/README.md",
    "src/config/README.md",
    "src/fleet/README.md",
    "src/ledger/README.md",
    "src/page/README.md",
    "src/rpc/README.md",
    "src/rpc/searchers.md",
    "src/rpc/security.md",
    "src/source/README.md",
    "src/store/README.md",
    "src/wallet/README.md",
];

/// Returns the documents as files of the media type `kind` (HTML).
pub fn files(kind: &'static str) -> impl Iterator<Item = ServedFile> {
    DOCUMENTS.into_iter().map(move |(path, text)| ServedFile::new(path, kind, page(path, text)))
}

/// Returns the page of a document. Links to files that are not served become text.
fn page(path: &str, text: &str) -> String {
    let mut events: Vec<_> = Parser::new_ext(text, Options::ENABLE_TABLES).collect();
    name_headings(&mut events);
    let mut is_dropped = false;
    events.retain(|event| match event {
        Event::Start(Tag::Link { dest_url, .. }) => {
            is_dropped = !is_served(path, dest_url);
            !is_dropped
        }
        Event::End(TagEnd::Link) => !mem::take(&mut is_dropped),
        // Images are not served. Their text describes them.
        Event::Start(Tag::Image { .. }) | Event::End(TagEnd::Image) => false,
        _ => true,
    });
    let events = events.into_iter().map(unaligned).flat_map(in_frame);
    let mut body = String::with_capacity(2 * text.len());
    html::push_html(&mut body, events);
    let name = path.strip_prefix(FOLDER).unwrap_or(path);
    let up = "../".repeat(path.matches('/').count() - 1);
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<meta name=\"viewport\" \
         content=\"width=device-width, initial-scale=1\">\n<meta name=\"color-scheme\" content=\"light \
         dark\">\n<title>{name} · presim</title>\n<link rel=\"icon\" href=\"{up}page/icon.svg\" \
         type=\"image/svg+xml\">\n<link rel=\"stylesheet\" href=\"{up}page/page.css\">\n</head>\n<body>\n<header><nav \
         aria-label=\"Documents\"><a href=\"{up}\">The node</a><a \
         href=\"{up}documents/README.md\">Documents</a></nav></header>\n<main class=\"document\">\n{body}</main>\n</body>\n</html>\n"
    )
}

/// Gives each heading the same anchor as GitHub.
fn name_headings(events: &mut [Event<'_>]) {
    let mut seen = BTreeMap::<String, u32>::new();
    for start in 0..events.len() {
        if !matches!(events[start], Event::Start(Tag::Heading { .. })) {
            continue;
        }
        let inside = events[start + 1..].iter().take_while(|event| !matches!(event, Event::End(TagEnd::Heading(_))));
        let texts = inside.filter_map(|event| match event {
            Event::Text(text) | Event::Code(text) => Some(&**text),
            _ => None,
        });
        let kept = texts.flat_map(str::chars).filter(|letter| letter.is_alphanumeric() || " -_".contains(*letter));
        let mut anchor: String =
            kept.flat_map(char::to_lowercase).map(|letter| if letter == ' ' { '-' } else { letter }).collect();
        let times = seen.entry(anchor.clone()).or_default();
        if *times > 0 {
            let _ = write!(anchor, "-{times}");
        }
        *times += 1;
        if let Event::Start(Tag::Heading { id, .. }) = &mut events[start] {
            *id = Some(CowStr::from(anchor));
        }
    }
}

/// Returns whether a link of a document leads to another one, to a place in it, or to another host.
fn is_served(path: &str, link: &str) -> bool {
    let target = link.split('#').next().unwrap_or_default();
    if target.is_empty() || link.contains("://") {
        return true;
    }
    let mut parts: Vec<&str> = path.split('/').collect();
    parts.pop();
    for part in target.split('/') {
        match part {
            ".." => drop(parts.pop()),
            "." => {}
            part => parts.push(part),
        }
    }
    let target = parts.join("/");
    DOCUMENTS.iter().any(|(path, _)| *path == target)
}

/// Takes the alignment of columns away, which would be written as styles inline.
fn unaligned(event: Event<'_>) -> Event<'_> {
    match event {
        Event::Start(Tag::Table(columns)) => Event::Start(Tag::Table(vec![Alignment::None; columns.len()])),
        other => other,
    }
}

/// Wraps a table in a scrolling frame that is accessible by keyboard.
fn in_frame(event: Event<'_>) -> impl Iterator<Item = Event<'_>> {
    let frame = |text| Some(Event::Html(CowStr::Borrowed(text)));
    let (before, after) = match &event {
        Event::Start(Tag::Table(_)) => {
            (frame("<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"Table\">"), None)
        }
        Event::End(TagEnd::Table) => (None, frame("</div>\n")),
        _ => (None, None),
    };
    before.into_iter().chain([event]).chain(after)
}
