//! An example of the file of `--config`, made from the flags themselves.

use clap::{Arg, ArgAction, Command, builder::PossibleValue};

/// Width of the comments.
const WIDTH: usize = 100;

/// Returns the file: every setting in a comment, with its default and its meaning.
pub fn example(command: &Command) -> String {
    let mut text =
        "# Settings of presim, for `presim --config FILE`. Flags and PRESIM_* variables take precedence over them.\n\
                    # A setting that begins with # alone has its default. Remove the # to set another value.\n"
            .to_owned();
    let mut heading = None;
    for flag in command.get_arguments() {
        let (Some(long), Some(of)) = (flag.get_long(), flag.get_help_heading()) else { continue };
        // The file cannot name itself.
        if long == "config" {
            continue;
        }
        if heading != Some(of) {
            text.push_str(&format!("\n## {of}\n"));
            heading = Some(of);
        }
        let help = flag.get_long_help().or_else(|| flag.get_help()).map(ToString::to_string).unwrap_or_default();
        text.push('\n');
        // The help of a flag ends without a full stop.
        for line in wrapped(&format!("{help}.")) {
            text.push_str(&format!("# {line}\n"));
        }
        let values: Vec<String> =
            flag.get_possible_values().iter().map(PossibleValue::get_name).map(str::to_owned).collect();
        if !values.is_empty() && flag.get_action().takes_values() {
            text.push_str(&format!("# One of: {}.\n", values.join(", ")));
        }
        let note = if has_default(flag) { "" } else { "  # no default" };
        text.push_str(&format!("#{long} = {}{note}\n", value(flag)));
    }
    text
}

/// Returns whether a flag has a default. That of a switch is `false`.
fn has_default(flag: &Arg) -> bool {
    !flag.get_action().takes_values() || !flag.get_default_values().is_empty()
}

/// Returns the default of a flag as TOML, or an example.
fn value(flag: &Arg) -> String {
    if !flag.get_action().takes_values() {
        return "false".to_owned();
    }
    let defaults: Vec<String> =
        flag.get_default_values().iter().map(|value| written(&value.to_string_lossy())).collect();
    let is_list = matches!(flag.get_action(), ArgAction::Append);
    match defaults.as_slice() {
        [] => {
            let name = flag.get_value_names().and_then(|names| names.first()).map_or("VALUE", |name| name.as_str());
            let values = flag.get_possible_values();
            let example = match values.first() {
                Some(value) => format!("{:?}", value.get_name()),
                None if is_number(flag) => "0".to_owned(),
                None => format!("{name:?}"),
            };
            if is_list { format!("[{example}]") } else { example }
        }
        [one] if !is_list => one.clone(),
        all => format!("[{}]", all.join(", ")),
    }
}

/// Returns whether a flag without a default takes a number.
fn is_number(flag: &Arg) -> bool {
    flag.get_value_names()
        .and_then(|names| names.first())
        .is_some_and(|name| matches!(name.as_str(), "N" | "MS" | "MB" | "BYTES"))
}

/// Returns a value as TOML: a number as it is, another text in quotes.
fn written(text: &str) -> String {
    match text.parse::<f64>() {
        Ok(_) => text.to_owned(),
        Err(_) => toml::Value::String(text.to_owned()).to_string(),
    }
}

fn wrapped(text: &str) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for paragraph in text.lines() {
        let mut line = String::new();
        for word in paragraph.split_whitespace() {
            if !line.is_empty() && line.len() + 1 + word.len() > WIDTH {
                lines.push(std::mem::take(&mut line));
            }
            if !line.is_empty() {
                line.push(' ');
            }
            line.push_str(word);
        }
        if !line.is_empty() {
            lines.push(line);
        }
    }
    lines
}
