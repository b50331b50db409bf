//! The licences and the sources of all crates are those that `deny.toml` accepts.

use std::{path::Path, process::Command};

use serde::Deserialize;

#[derive(Deserialize)]
struct Deny {
    licenses: Licences,
    sources: Sources,
}

#[derive(Deserialize)]
struct Licences {
    allow: Vec<String>,
    exceptions: Vec<LicenceException>,
}

#[derive(Deserialize)]
struct LicenceException {
    #[serde(rename = "crate")]
    name: String,
    allow: Vec<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Sources {
    allow_registry: Vec<String>,
    allow_git: Vec<String>,
}

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<CratePackage>,
}

#[derive(Deserialize)]
struct CratePackage {
    name: String,
    version: String,
    license: Option<String>,
    /// `None` for the crates of this repository.
    source: Option<String>,
}

/// An expression of SPDX: licences with AND, OR and brackets.
struct Expression<'a> {
    words: Vec<&'a str>,
    is_accepted: &'a dyn Fn(&str) -> bool,
}

impl Expression<'_> {
    /// Whether the terms of the expression, from the word at `at` on, can be met by accepted licences.
    fn any(&self, at: &mut usize) -> bool {
        let mut met = self.all(at);
        while self.words.get(*at) == Some(&"OR") {
            *at += 1;
            met |= self.all(at);
        }
        met
    }

    fn all(&self, at: &mut usize) -> bool {
        let mut met = self.one(at);
        while self.words.get(*at) == Some(&"AND") {
            *at += 1;
            met &= self.one(at);
        }
        met
    }

    fn one(&self, at: &mut usize) -> bool {
        let word = self.words.get(*at).copied().unwrap_or_default();
        *at += 1;
        if word == "(" {
            let met = self.any(at);
            *at += 1;
            return met;
        }
        if self.words.get(*at) == Some(&"WITH") {
            *at += 2;
            let exception = self.words.get(*at - 1).copied().unwrap_or_default();
            return (self.is_accepted)(&format!("{word} WITH {exception}"));
        }
        (self.is_accepted)(word)
    }
}

fn is_met(expression: &str, is_accepted: &dyn Fn(&str) -> bool) -> bool {
    // A slash is an older form of OR.
    let spaced = expression.replace('/', " OR ").replace('(', " ( ").replace(')', " ) ");
    let expression = Expression { words: spaced.split_whitespace().collect(), is_accepted };
    let mut at = 0;
    expression.any(&mut at) && at == expression.words.len()
}

#[test]
fn each_crate_has_a_licence_and_a_source_that_are_accepted() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let deny: Deny = toml::from_str(&std::fs::read_to_string(root.join("deny.toml")).unwrap()).unwrap();
    let platform = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let output = Command::new(env!("CARGO"))
        .current_dir(root)
        .args(["metadata", "--format-version", "1", "--locked", "--offline", "--filter-platform", &platform])
        .output()
        .expect("cargo runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let Metadata { packages } = serde_json::from_slice(&output.stdout).unwrap();
    assert!(packages.len() > 300, "{} crates", packages.len());
    let exceptions = &deny.licenses.exceptions;
    let is_there = |one: &LicenceException| packages.iter().any(|package| package.name == one.name);
    let unused: Vec<&str> = exceptions.iter().filter(|one| !is_there(one)).map(|one| one.name.as_str()).collect();
    assert_eq!(unused, [""; 0], "deny.toml has exceptions for crates that are not there");
    let mut problems = Vec::new();
    for CratePackage { name, version, license, source } in &packages {
        let excepted = exceptions.iter().filter(|one| one.name == *name).flat_map(|one| &one.allow);
        let accepted: Vec<&String> = deny.licenses.allow.iter().chain(excepted).collect();
        let is_accepted = |licence: &str| accepted.iter().any(|accepted| *accepted == licence);
        if !license.as_deref().is_some_and(|license| is_met(license, &is_accepted)) {
            problems.push(format!("{name} {version}: licence {license:?}"));
        }
        let is_known = source.as_deref().is_none_or(|source| {
            let accepted = |urls: &[String], kind: &str| {
                source
                    .strip_prefix(kind)
                    .is_some_and(|url| urls.iter().any(|accepted| url.starts_with(accepted.as_str())))
            };
            accepted(&deny.sources.allow_registry, "registry+") || accepted(&deny.sources.allow_git, "git+")
        });
        if !is_known {
            problems.push(format!("{name} {version}: source {source:?}"));
        }
    }
    assert_eq!(problems, [""; 0], "deny.toml does not accept them");
}

#[test]
fn an_expression_is_met_by_one_of_its_choices_and_all_of_its_parts() {
    let is_accepted = |licence: &str| ["MIT", "Apache-2.0 WITH LLVM-exception"].contains(&licence);
    for (expression, met) in [
        ("MIT", true),
        ("GPL-3.0", false),
        ("GPL-3.0 OR MIT", true),
        ("GPL-3.0/MIT", true),
        ("GPL-3.0 AND MIT", false),
        ("(GPL-3.0 OR MIT) AND ISC", false),
        ("(GPL-3.0 OR MIT) AND MIT", true),
        ("Apache-2.0", false),
        ("Apache-2.0 WITH LLVM-exception", true),
        ("ISC OR Apache-2.0 WITH LLVM-exception", true),
        ("", false),
    ] {
        assert_eq!(is_met(expression, &is_accepted), met, "{expression}");
    }
}
