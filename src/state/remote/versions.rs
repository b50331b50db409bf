//! The versions of one value across blocks.

/// The value of one key at several blocks, each from the block at which it was seen to the one that changed it.
///
/// Versions do not overlap. One that nothing has ended yet is valid at every later block of the chain.
#[derive(Clone, Debug, Default)]
pub(super) struct Versions<T> {
    newest: Version<T>,
    /// The earlier versions, oldest first.
    #[expect(clippy::box_collection, reason = "most have none, and there are many: it is to take a word")]
    older: Option<Box<Vec<Version<T>>>>,
}

#[derive(Clone, Debug, Default)]
struct Version<T> {
    from: u64,
    /// The first block at which the value is no longer valid; [`OPEN`] if none is known. A version with `until` not
    /// past `from` does not exist.
    until: u64,
    value: T,
}

/// The `until` of a version that no block has ended.
pub(super) const OPEN: u64 = u64::MAX;

impl<T> Version<T> {
    const fn is_there(&self) -> bool {
        self.from < self.until
    }

    const fn covers(&self, block: u64, since: u64) -> bool {
        self.from <= block && block < self.until && self.from >= since
    }
}

impl<T: Clone + Default + PartialEq> Versions<T> {
    /// The bytes of a version that is not the newest.
    pub const BYTES: usize = size_of::<Version<T>>();

    /// Returns the value at `block`, if it is known. Versions that began before `since` do not count.
    pub fn at(&self, block: u64, since: u64) -> Option<&T> {
        if self.newest.covers(block, since) {
            return Some(&self.newest.value);
        }
        let older = self.older.as_ref()?;
        older.iter().rev().find(|version| version.covers(block, since)).map(|version| &version.value)
    }

    /// Records that the value is `value` from `block` on, which is after all known versions. Drops versions that ended
    /// before `oldest`. Returns false if the newest version has the same value.
    pub fn begin(&mut self, block: u64, since: u64, value: T, oldest: u64) -> bool {
        let same = self.newest.until == OPEN && self.newest.from >= since && self.newest.value == value;
        if !same {
            self.end(block);
            self.push(Version { from: block, until: OPEN, value }, oldest);
        }
        !same
    }

    /// Notes that the value changed in `block`, after all known versions, to an unknown value.
    pub fn end(&mut self, block: u64) {
        self.newest.until = self.newest.until.min(block);
    }

    /// Notes that the value was seen at `block` and did not change before `until`. Drops versions that ended before
    /// `oldest`, but for this one: its block is being read.
    pub fn insert(&mut self, block: u64, until: u64, since: u64, value: T, oldest: u64) {
        if self.at(block, since).is_some() {
            return;
        }
        let mut all = self.older.take().map_or_else(Vec::new, |older| *older);
        if self.newest.is_there() {
            all.push(std::mem::take(&mut self.newest));
        }
        let at = all.partition_point(|version| version.from <= block);
        if let Some(before) = at.checked_sub(1).and_then(|before| all.get_mut(before)) {
            before.until = before.until.min(block);
        }
        match all.get_mut(at) {
            // The value did not change between the two, so they are one version.
            Some(next) if next.from <= until && next.value == value => next.from = block,
            Some(next) => {
                let until = until.min(next.from);
                all.insert(at, Version { from: block, until, value });
            }
            None => all.push(Version { from: block, until, value }),
        }
        all.retain(|version| version.is_there() && (version.until > oldest || version.from == block));
        self.newest = all.pop().unwrap_or_default();
        self.older = (!all.is_empty()).then(|| Box::new(all));
    }

    /// Returns the versions that began after the block `last`; `None` if none did.
    pub fn since(&self, last: u64) -> Option<Self> {
        if !self.newest.is_there() || self.newest.from <= last {
            return None;
        }
        let older: Vec<_> =
            self.older.iter().flat_map(|older| older.iter()).filter(|one| one.from > last).cloned().collect();
        Some(Self { newest: self.newest.clone(), older: (!older.is_empty()).then(|| Box::new(older)) })
    }

    /// Returns whether [`revert_to`](Self::revert_to) changes anything.
    pub const fn has_changed_since(&self, last: u64) -> bool {
        let Version { from, until, .. } = self.newest;
        self.newest.is_there() && (from > last || until > last && until != OPEN)
    }

    /// Removes the blocks after `last`.
    pub fn revert_to(&mut self, last: u64) {
        while self.newest.is_there() && self.newest.from > last {
            self.newest = self.older.as_mut().and_then(|older| older.pop()).unwrap_or_default();
        }
        if self.newest.is_there() && self.newest.until > last {
            self.newest.until = OPEN;
        }
        self.older.take_if(|older| older.is_empty());
    }

    /// Returns the number of versions before the newest.
    pub fn count_older(&self) -> usize {
        self.older.as_ref().map_or(0, |older| older.len())
    }

    fn push(&mut self, version: Version<T>, oldest: u64) {
        let before = std::mem::replace(&mut self.newest, version);
        if before.is_there() && before.until > oldest {
            self.older.get_or_insert_default().push(before);
        }
        if let Some(older) = &mut self.older {
            let gone = older.iter().take_while(|version| version.until <= oldest).count();
            older.drain(..gone);
        }
        self.older.take_if(|older| older.is_empty());
    }
}
