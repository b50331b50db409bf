//! The layers of the crate and the files in them: each uses only those below it, and no use leads back to where it began.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write,
    fs,
    path::{Path, PathBuf},
};

use syn::{
    Attribute, ImplItemFn, ItemConst, ItemMod, ItemStatic, ItemUse, Macro, UseTree, Visibility,
    buffer::{Cursor, TokenBuffer},
    visit::{self, Visit},
};

/// The names of a module from the root of the crate on: `["chain", "op", "tx"]`.
type Module = Vec<String>;

/// For each file, the other files of which it uses names, with the names as it writes them.
type Uses = BTreeMap<Module, BTreeMap<Module, BTreeSet<String>>>;

#[derive(Debug, PartialEq)]
struct Named {
    path: Vec<String>,
    /// The name by which the file knows the path, if a `use` gives it one.
    alias: Option<String>,
    context: Context,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Context {
    Code,
    PubUse,
    /// A `const` or `static`, which may list the module's children.
    Table,
    Test,
}

/// Returns whether a path of this context makes a file depend on another.
fn is_code(context: Context) -> bool {
    matches!(context, Context::Code | Context::Table)
}

/// Collects the paths that a file names.
struct Names {
    context: Context,
    found: Vec<Named>,
}

impl Names {
    fn of(code: &str) -> syn::Result<Vec<Named>> {
        let mut names = Self { context: Context::Code, found: Vec::new() };
        names.visit_file(&syn::parse_file(code)?);
        Ok(names.found)
    }

    /// Runs `visit` in `context`, or in that of a test if the item is compiled for tests alone.
    fn within(&mut self, context: Context, attributes: &[Attribute], visit: impl FnOnce(&mut Self)) {
        let outer = self.context;
        let is_test = |attribute: &Attribute| {
            attribute
                .meta
                .require_list()
                .is_ok_and(|list| list.path.is_ident("cfg") && list.tokens.to_string() == "test")
        };
        if outer != Context::Test {
            self.context = if attributes.iter().any(is_test) { Context::Test } else { context };
        }
        visit(self);
        self.context = outer;
    }

    /// Adds a path in code. One of a single name says nothing of modules.
    fn add(&mut self, path: Vec<String>) {
        if path.len() > 1 {
            self.found.push(Named { path, alias: None, context: self.context });
        }
    }

    fn add_use(&mut self, tree: &UseTree, before: &[String]) {
        let with = |name: &dyn ToString| [before, &[name.to_string()]].concat();
        let (path, alias) = match tree {
            UseTree::Path(path) => return self.add_use(&path.tree, &with(&path.ident)),
            UseTree::Group(group) => return group.items.iter().for_each(|tree| self.add_use(tree, before)),
            UseTree::Name(name) if name.ident == "self" => (before.to_vec(), before.last().cloned()),
            UseTree::Name(name) => (with(&name.ident), Some(name.ident.to_string())),
            UseTree::Rename(name) => (with(&name.ident), Some(name.rename.to_string())),
            UseTree::Glob(_) => (before.to_vec(), None),
        };
        self.found.push(Named { path, alias, context: self.context });
    }

    /// Adds the paths in the arguments of a macro, which need not be Rust.
    fn add_tokens(&mut self, mut cursor: Cursor<'_>) {
        while !cursor.eof() {
            if let Some((inner, _, _, after)) = cursor.any_group() {
                self.add_tokens(inner);
                cursor = after;
                continue;
            }
            let mut path = Vec::new();
            while let Some((name, after)) = cursor.ident() {
                path.push(name.to_string());
                cursor = after;
                let colons =
                    after.punct().filter(|(colon, _)| colon.as_char() == ':').and_then(|(_, after)| after.punct());
                let Some((_, after)) = colons.filter(|(colon, _)| colon.as_char() == ':') else { break };
                cursor = after;
            }
            if path.is_empty() {
                cursor = cursor.token_tree().unwrap().1;
            }
            self.add(path);
        }
    }
}

impl<'a> Visit<'a> for Names {
    fn visit_item_use(&mut self, item: &'a ItemUse) {
        let is_private = matches!(item.vis, Visibility::Inherited);
        let context = if is_private { self.context } else { Context::PubUse };
        self.within(context, &item.attrs, |names| names.add_use(&item.tree, &[]));
    }

    fn visit_item_mod(&mut self, item: &'a ItemMod) {
        let before = self.found.len();
        self.within(self.context, &item.attrs, |names| visit::visit_item_mod(names, item));
        // `super` is the file itself there, which does not know the names.
        for named in &mut self.found[before..] {
            named.alias = None;
            if named.path[0] == "super" {
                named.path[0] = "self".to_owned();
            }
        }
    }

    fn visit_item_const(&mut self, item: &'a ItemConst) {
        self.within(Context::Table, &item.attrs, |names| visit::visit_item_const(names, item));
    }

    fn visit_item_static(&mut self, item: &'a ItemStatic) {
        self.within(Context::Table, &item.attrs, |names| visit::visit_item_static(names, item));
    }

    fn visit_impl_item_fn(&mut self, item: &'a ImplItemFn) {
        self.within(self.context, &item.attrs, |names| visit::visit_impl_item_fn(names, item));
    }

    fn visit_path(&mut self, path: &'a syn::Path) {
        self.add(path.segments.iter().map(|segment| segment.ident.to_string()).collect());
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, call: &'a Macro) {
        self.visit_path(&call.path);
        self.add_tokens(TokenBuffer::new2(call.tokens.clone()).begin());
    }

    /// A visibility is no use.
    fn visit_visibility(&mut self, _: &'a Visibility) {}
}

fn source(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src").join(path)
}

/// Returns the sources of the load test, which is a crate of its own.
fn load_test() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("loadtest").join("src")
}

/// The files of the crate, and what each of them names.
struct House(BTreeMap<Module, Vec<Named>>);

impl House {
    fn of(files: impl IntoIterator<Item = (String, String)>) -> Self {
        let files = files.into_iter().map(|(path, code)| {
            let names = path.trim_end_matches(".rs").trim_end_matches("/mod").trim_start_matches("lib");
            let module: Module = names.split('/').filter(|name| !name.is_empty()).map(str::to_owned).collect();
            let mut found = Names::of(&code).unwrap_or_else(|error| panic!("{path}: {error}"));
            if module.iter().any(|name| name == "tests") {
                found.iter_mut().for_each(|named| named.context = Context::Test);
            }
            (module, found)
        });
        Self(files.collect())
    }

    fn read() -> Self {
        Self::read_in(&source(""))
    }

    /// Reads the crate whose sources are in `root`.
    fn read_in(root: &Path) -> Self {
        let (mut files, mut pending) = (Vec::new(), vec![root.to_owned()]);
        while let Some(path) = pending.pop() {
            if path.is_dir() {
                pending.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
            } else if path.extension().is_some_and(|extension| extension == "rs") && path != root.join("main.rs") {
                let name = path.strip_prefix(root).unwrap().to_str().unwrap().to_owned();
                files.push((name, fs::read_to_string(&path).unwrap()));
            }
        }
        Self::of(files)
    }

    /// Returns the files that define what `path` names in the file of `module`, or export it again on the way there, if they are of this
    /// crate. The last one defines it.
    fn files(&self, module: &[String], path: &[String]) -> Vec<Module> {
        let mut file = module.to_vec();
        let mut rest = path;
        match rest[0].as_str() {
            "crate" => file.clear(),
            "self" | "super" => {}
            name => {
                file.push(name.to_owned());
                if !self.0.contains_key(&file) {
                    return Vec::new();
                }
            }
        }
        if rest[0] != "super" {
            rest = &rest[1..];
        }
        while let Some((name, after)) = rest.split_first() {
            if name == "super" {
                file.pop();
            } else {
                file.push(name.clone());
                if !self.0.contains_key(&file) {
                    file.pop();
                    break;
                }
            }
            rest = after;
        }
        let Some((name, after)) = rest.split_first() else { return vec![file] };
        match self.0[&file].iter().find(|named| named.alias.as_ref() == Some(name)) {
            Some(named) => {
                let mut files = self.files(&file, &[&named.path[..], after].concat());
                files.insert(0, file);
                files
            }
            None => vec![file],
        }
    }

    /// Returns the uses of one file by another in the contexts that `counts` accepts.
    fn uses(&self, counts: impl Fn(Context) -> bool) -> Uses {
        let mut uses = Uses::new();
        for (module, names) in &self.0 {
            let others = uses.entry(module.clone()).or_default();
            for named in names.iter().filter(|named| counts(named.context)) {
                // A file is used through those above it, which export it again, without using these.
                let files = self.files(module, &named.path);
                let last = files.len().saturating_sub(1);
                let used =
                    files.into_iter().enumerate().filter(|(index, file)| *index == last || !module.starts_with(file));
                for (_, other) in used {
                    let is_in_a_table = named.context == Context::Table && other.starts_with(module);
                    if other != *module && !is_in_a_table {
                        others.entry(other).or_default().insert(named.path.join("::"));
                    }
                }
            }
        }
        uses
    }
}

/// Returns the circles: the largest sets of files in which each leads to each other.
fn circles(uses: &Uses) -> BTreeSet<BTreeSet<Module>> {
    let mut reached: BTreeMap<&Module, BTreeSet<&Module>> = BTreeMap::new();
    for from in uses.keys() {
        let (others, mut pending) = (reached.entry(from).or_default(), vec![from]);
        while let Some(file) = pending.pop() {
            pending.extend(uses[file].keys().filter(|other| others.insert(*other)));
        }
    }
    let circle = |(file, others): (&&Module, &BTreeSet<&Module>)| {
        others.iter().filter(|other| reached[*other].contains(file)).copied().cloned().collect()
    };
    let circles: BTreeSet<BTreeSet<Module>> = reached.iter().map(circle).collect();
    circles.into_iter().filter(|circle| !circle.is_empty()).collect()
}

/// Lists what the files of a circle use of each other, a line for each pair.
fn list(uses: &Uses, circle: &BTreeSet<Module>) -> String {
    let mut list = String::new();
    for file in circle {
        for (other, names) in uses[file].iter().filter(|(other, _)| circle.contains(*other)) {
            let names = names.iter().map(String::as_str).collect::<Vec<_>>().join(", ");
            writeln!(list, "    {} -> {}: {names}", file.join("::"), other.join("::")).unwrap();
        }
    }
    list
}

#[test]
fn each_layer_uses_only_those_below_it() {
    let text = fs::read_to_string(source("lib.rs")).unwrap();
    let names = |starts: &[&str], end: char| -> Vec<String> {
        let name =
            |line: &str| starts.iter().find_map(|start| Some(line.strip_prefix(start)?.split_once(end)?.0.to_owned()));
        text.lines().filter_map(name).collect()
    };
    let (layers, mut modules) = (names(&["//! - [`"], '`'), names(&["mod ", "pub mod "], ';'));
    // The simulation of faults is for tests, and uses all layers.
    modules.retain(|module| module != "faults");
    let set = |names: &[String]| names.iter().cloned().collect::<BTreeSet<_>>();
    assert_eq!(set(&layers), set(&modules), "lib.rs lists each of its modules as a layer");
    let height = |module: &Module| layers.iter().rev().position(|layer| Some(layer) == module.first());
    let mut arrows = 0;
    for (file, others) in House::read().uses(|_| true) {
        for (other, names) in others {
            let (Some(above), Some(below)) = (height(&file), height(&other)) else { continue };
            assert!(below <= above, "{} uses what is above it: {names:?}", file.join("::"));
            arrows += usize::from(below < above);
        }
    }
    assert!(arrows > 100, "only {arrows} uses were found");
}

#[test]
fn no_files_use_each_other_in_a_circle() {
    let text = |uses: &Uses, circle: &BTreeSet<Module>| {
        format!("{} files use each other:\n{}\n", circle.len(), list(uses, circle))
    };
    for root in [source(""), load_test()] {
        let uses = House::read_in(&root).uses(is_code);
        let circles: String = circles(&uses).iter().map(|circle| text(&uses, circle)).collect();
        assert!(circles.is_empty(), "in {}: {circles}", root.display());
    }
}

/// Returns the uses of the folders in `folder` by each other, with the files that use.
fn between_folders(uses: &Uses, folder: &[String]) -> Uses {
    let within = |file: &Module| {
        (file.len() > folder.len() + 1 && file.starts_with(folder)).then(|| file[..=folder.len()].to_vec())
    };
    let mut between: Uses = uses.keys().filter_map(within).map(|name| (name, BTreeMap::new())).collect();
    for (file, others) in uses {
        let Some(from) = within(file) else { continue };
        for (other, names) in others {
            let named = names.iter().map(|name| format!("{} uses {name}", file.join("::")));
            if let Some(to) = within(other).filter(|to| *to != from) {
                between.get_mut(&from).unwrap().entry(to).or_default().extend(named);
            }
        }
    }
    between
}

/// Lists the circles between the folders in each folder that `is_read` accepts.
fn circles_of_folders(uses: &Uses, is_read: impl Fn(&[String]) -> bool) -> String {
    let folders = uses.keys().flat_map(|file| (0..file.len()).map(|depth| &file[..depth]));
    let folders: BTreeSet<&[String]> = folders.filter(|folder| is_read(folder)).collect();
    assert!(!folders.is_empty(), "no folders were found");
    let mut text = String::new();
    for folder in folders {
        let between = between_folders(uses, folder);
        for circle in circles(&between) {
            writeln!(text, "in {}:\n{}", folder.join("::"), list(&between, &circle)).unwrap();
        }
    }
    text
}

#[test]
fn no_folders_of_a_layer_use_each_other_in_a_circle() {
    let node = circles_of_folders(&House::read().uses(is_code), |folder| !folder.is_empty());
    let load_test = circles_of_folders(&House::read_in(&load_test()).uses(is_code), |_| true);
    assert!(node.is_empty() && load_test.is_empty(), "{node}{load_test}");
}

#[test]
fn names_are_found_however_they_are_written() {
    let found = Names::of(
        "use crate::{feed::{self, apply::{a as b, c}}, state::*};\n\
         pub(in crate::feed) use self::d::D;\n\
         // crate::rpc\n\
         mod inner { use super::E; }\n\
         const TABLE: [u8; 1] = [child::ROW];\n\
         #[cfg(test)] mod tests { use crate::rpc; }\n\
         fn f() -> crate::store::Row { vec![super::World::new(\"crate::rpc\")] }",
    )
    .unwrap();
    let paths: Vec<_> = found.iter().map(|named| (named.path.join("::"), named.context)).collect();
    let paths: Vec<_> = paths.iter().map(|(path, context)| (path.as_str(), *context)).collect();
    let expected = [
        ("crate::feed", Context::Code),
        ("crate::feed::apply::a", Context::Code),
        ("crate::feed::apply::c", Context::Code),
        ("crate::state", Context::Code),
        ("self::d::D", Context::PubUse),
        ("self::E", Context::Code),
        ("child::ROW", Context::Table),
        ("crate::rpc", Context::Test),
        ("crate::store::Row", Context::Code),
        ("super::World::new", Context::Code),
    ];
    assert_eq!(paths, expected);
    let aliases: Vec<_> = found.iter().filter_map(|named| named.alias.as_deref()).collect();
    assert_eq!(aliases, ["feed", "b", "c", "D"]);
}

#[test]
fn circles_are_found_through_what_is_exported_again() {
    let files = |parent: &str, child: &str| {
        let files = [("a/mod.rs", parent), ("a/b.rs", child), ("a/c.rs", "use super::B; pub struct C;")];
        House::of(files.map(|(path, code)| (path.to_owned(), code.to_owned()))).uses(is_code)
    };
    let module = |path: &str| path.split("::").map(str::to_owned).collect::<Module>();
    let uses = files("pub use b::B; pub use c::C;", "use super::C; pub struct B;");
    let circle = BTreeSet::from([module("a::b"), module("a::c")]);
    assert_eq!(circles(&uses), BTreeSet::from([circle.clone()]));
    assert_eq!(list(&uses, &circle), "    a::b -> a::c: super::C\n    a::c -> a::b: super::B\n");
    // A parent calls its children in tables alone.
    let child = "use super::Row; pub struct B; pub const ROW: Row = Row;";
    assert_eq!(
        circles(&files("pub use b::B; pub struct Row; const TABLE: [Row; 1] = [b::ROW];", child)),
        BTreeSet::new()
    );
    assert_eq!(circles(&files("pub use b::B; pub struct Row; fn f() -> Row { b::ROW }", child)).len(), 1);
}
