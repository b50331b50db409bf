//! Formats numbers and text for reports.

use crate::usage::UsageCores;

/// Escapes text for HTML content and attributes.
pub fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            c => escaped.push(c),
        }
    }
    escaped
}

/// Formats a rate in requests per second.
pub fn rate(rate: f64) -> String {
    format!("{}/s", thousands(rate.round() as u64))
}

/// Formats a count with thousands separators.
pub fn thousands(count: u64) -> String {
    let digits = count.to_string();
    let mut text = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Formats a time with three digits and a unit.
pub fn format_micros(micros: f64) -> String {
    match micros {
        micros if micros < 1_000.0 => format!("{micros:.0} µs"),
        micros if micros < 10_000.0 => format!("{:.2} ms", micros / 1e3),
        micros if micros < 100_000.0 => format!("{:.1} ms", micros / 1e3),
        micros if micros < 1_000_000.0 => format!("{:.0} ms", micros / 1e3),
        micros => format!("{:.2} s", micros / 1e6),
    }
}

/// Describes what was used of a machine with so many cores; `None` if nothing is known.
pub fn usage_text(usage: &UsageCores, of: usize) -> Option<String> {
    let machine = usage.machine?;
    let mut parts = vec![format!("machine {machine:.2} of {} busy", plural(of, "core"))];
    for (name, cores) in [("generator", usage.generator), ("node", usage.node), ("other processes", usage.others)] {
        parts.extend(cores.map(|cores| format!("{name} {cores:.2}")));
    }
    parts.extend(usage.stolen.filter(|stolen| *stolen >= 0.005).map(|stolen| format!("kept by its host {stolen:.2}")));
    let memory =
        usage.node_bytes.map(|bytes| format!("; the node's memory {:.0} MiB", bytes as f64 / f64::from(1 << 20)));
    Some(parts.join(", ") + &memory.unwrap_or_default())
}

/// Formats a count with its noun.
pub fn plural(count: usize, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}
