//! News of standing bundles, as clients are told it.

use std::{collections::VecDeque, sync::Arc};

use super::{Watch, WatchState, WatchedBundle};
use crate::{
    rpc::encode::{self, Object},
    state::{Selector, Snapshot, SnapshotId},
    watch::{StandingAnswer, StandingBundle},
};

/// The length of a list of answers or of names above which a notification is divided.
const NOTIFICATION: usize = 1 << 20;

impl Watch {
    /// Writes the answer of a poll: what changed after `id`, and what is behind. The next poll is from the last snapshot
    /// of which nothing more will be told, so that it tells what comes late.
    pub(super) fn write_results(&self, id: SnapshotId, out: &mut Vec<u8>) {
        let state = self.state();
        let object = Object::new(out);
        self.write_changes(object, state.bundles.changed_after(id), &state);
    }

    /// Writes what a client lacks that was told the news of snapshot `id`, and what is behind.
    pub(super) fn write_again(&self, id: SnapshotId, out: &mut Vec<u8>) {
        let state = self.state();
        let mut object = Object::new(out);
        encode::string(object.key("watch"), &self.id.to_string());
        self.write_changes(object, state.bundles.news_since(id), &state);
    }

    /// Returns the number of the sealed block on whose state bundles run, if they stand on sealed blocks. Such a block's
    /// state has no id of its own: the id selects what `pending` was, the block opened on it.
    pub(super) fn sealed_block(&self, snapshot: &Snapshot) -> Option<u64> {
        (self.selector == Selector::Latest).then(|| snapshot.head.number())
    }

    fn write_changes<'a>(
        &self,
        mut object: Object<'_>,
        changed: impl Iterator<Item = (&'a str, &'a StandingAnswer)>,
        state: &WatchState,
    ) {
        object.quantity("id", state.settled.0);
        if let Some(block) = state.current.as_ref().and_then(|(_, snapshot)| self.sealed_block(snapshot)) {
            object.quantity("blockNumber", block);
        }
        encode::list(object.key("changed"), changed, |out, (name, answer)| write_answer(out, name, &answer.text));
        encode::list(object.key("behind"), state.behind(), write_behind);
        object.end();
    }
}

fn write_answer(out: &mut Vec<u8>, name: &str, text: &[u8]) {
    let mut object = Object::new(out);
    encode::string(object.key("name"), name);
    object.member(text);
    object.end();
}

fn write_behind(out: &mut Vec<u8>, bundle: &StandingBundle<Arc<WatchedBundle>>) {
    let mut object = Object::new(out);
    encode::string(object.key("name"), &bundle.name);
    match bundle.holds_at() {
        Some(id) => encode::quantity(object.key("id"), id.0),
        None => object.key("id").extend_from_slice(b"null"),
    }
    if let Some(reason) = bundle.stale() {
        object.key("stale").extend_from_slice(reason);
    }
    object.end();
}

/// The elements of a JSON list, divided so that each part fits into a notification.
#[derive(Default)]
struct ListParts(VecDeque<Vec<u8>>);

impl ListParts {
    /// Adds an element. Only a part of a single element may be longer than a notification.
    fn add(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        let Some(last) = self.0.back_mut() else {
            let mut first = Vec::new();
            write(&mut first);
            self.0.push_back(first);
            return;
        };
        let end = last.len();
        last.push(b',');
        write(last);
        if last.len() > NOTIFICATION {
            let next = last[end + 1..].to_vec();
            last.truncate(end);
            self.0.push_back(next);
        }
    }
}

/// The news of a snapshot, in parts.
pub(super) struct News {
    id: SnapshotId,
    /// The number of the block, if the bundles stand on sealed blocks.
    block: Option<u64>,
    told: usize,
    /// The answers that are to be told.
    changed: ListParts,
}

impl News {
    pub(super) fn of(watch: &Watch, snapshot: &Snapshot) -> Self {
        let (id, block) = (snapshot.id, watch.sealed_block(snapshot));
        Self { id, block, told: 0, changed: ListParts::default() }
    }

    pub(super) fn add(&mut self, name: &str, text: &[u8]) {
        self.changed.add(|out| write_answer(out, name, text));
    }

    /// Returns a part, if there is one to tell.
    pub(super) fn part(&mut self) -> Option<Vec<u8>> {
        let changed = self.changed.0.pop_front()?;
        Some(self.write(&changed, None, false))
    }

    /// Returns the last parts, with what is behind.
    pub(super) fn end(mut self, watch: &Watch) -> Vec<Vec<u8>> {
        let mut behind = ListParts::default();
        watch.state().behind().for_each(|bundle| behind.add(|out| write_behind(out, bundle)));
        let mut behind = behind.0;
        let first = behind.pop_front().unwrap_or_default();
        // The last answers and the first names may share a part.
        let fits = |changed: &Vec<u8>| changed.len() + first.len() <= NOTIFICATION;
        let shared = if self.changed.0.back().is_none_or(fits) { self.changed.0.pop_back() } else { None };
        let mut parts: Vec<Vec<u8>> = std::iter::from_fn(|| self.part()).collect();
        parts.push(self.write(&shared.unwrap_or_default(), Some(&first), behind.is_empty()));
        while let Some(names) = behind.pop_front() {
            parts.push(self.write(b"", Some(&names), behind.is_empty()));
        }
        parts
    }

    fn write(&mut self, changed: &[u8], behind: Option<&[u8]>, is_last: bool) -> Vec<u8> {
        let mut out = Vec::with_capacity(changed.len() + behind.map_or(0, <[u8]>::len) + 128);
        let mut object = Object::new(&mut out);
        object.quantity("id", self.id.0);
        if let Some(block) = self.block {
            object.quantity("blockNumber", block);
        }
        object.number("part", self.told);
        encode::value(object.key("last"), &is_last);
        object.key("changed").extend_from_slice(&[b"[", changed, b"]"].concat());
        if let Some(behind) = behind {
            object.key("behind").extend_from_slice(&[b"[", behind, b"]"].concat());
        }
        object.end();
        self.told += 1;
        out
    }
}
