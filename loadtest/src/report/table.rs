//! The report as text for a terminal.

use std::fmt::Write as _;

use super::{
    Knee, Latency, MedianRange, Report, TargetReport,
    text::{format_micros, plural, usage_text},
};
use crate::usage::UsageCores;

/// Most steps that are shown. If there are more, only the knee is.
const MAX_STEPS: usize = 40;

/// Returns the report as text.
pub fn table(report: &Report) -> String {
    let mut text = String::new();
    // Writing to a string does not fail.
    let _ = write(&mut text, report);
    text
}

fn write(out: &mut String, report: &Report) -> std::fmt::Result {
    writeln!(out, "{}", report.load)?;
    writeln!(out, "mix {}, seed {}", report.mix, report.seed)?;
    if report.ended_early {
        writeln!(out, "ENDED EARLY")?;
    }
    for note in &report.notes {
        writeln!(out, "note: {note}")?;
    }
    for target in &report.targets {
        write_target(out, target, report.machine.cores)?;
    }
    if !report.ratios.is_empty() {
        writeln!(out, "\nratios, medians over rounds [least, greatest]")?;
        for ratio in &report.ratios {
            let spread = |s: MedianRange| format!("{:.2} [{:.2}, {:.2}]", s.median, s.least, s.greatest);
            writeln!(
                out,
                "  {}/{}: throughput {}, p50 {}, p99 {}",
                ratio.of,
                ratio.to,
                spread(ratio.throughput),
                spread(ratio.p50),
                spread(ratio.p99)
            )?;
        }
    }
    if !report.assertions.is_empty() {
        writeln!(out)?;
    }
    for verdict in &report.assertions {
        let measured = verdict.measured.as_deref().unwrap_or("not measured");
        writeln!(out, "{} {}: {measured}", if verdict.holds { "PASS" } else { "FAIL" }, verdict.assertion)?;
    }
    Ok(())
}

fn write_target(out: &mut String, target: &TargetReport, cores: usize) -> std::fmt::Result {
    let summary = &target.summary;
    writeln!(out, "\n{} {} ({})", target.name, target.url, target.client)?;
    write!(out, "  {:.0} right answers/s", summary.throughput)?;
    if let Some(offered) = summary.offered {
        write!(out, " of {offered:.0} offered")?;
    }
    let rate = summary.error_rate * 100.0;
    writeln!(
        out,
        ", {} requests in {:.1} s, {} errors ({rate:.3} %)",
        summary.requests, summary.seconds, summary.errors
    )?;
    for (fault, count) in summary.faults.iter() {
        writeln!(out, "    {count} {}: {}", fault.name(), fault.meaning())?;
    }
    for example in &target.examples {
        writeln!(out, "    e.g. {}: {}", example.fault, example.text)?;
    }
    writeln!(
        out,
        "  {:14} {:>10} {:>8} {:>9} {:>9} {:>9} {:>9} {:>9}",
        "", "right", "errors", "p50", "p90", "p99", "p99.9", "max"
    )?;
    let mut line = |name: &str, right: u64, errors: u64, latency: &Latency| {
        let Latency { p50, p90, p99, p999, max, .. } = *latency;
        let [p50, p90, p99, p999, max] = [p50, p90, p99, p999, max].map(|micros| format_micros(micros as f64));
        writeln!(out, "  {name:14} {right:>10} {errors:>8} {p50:>9} {p90:>9} {p99:>9} {p999:>9} {max:>9}")
    };
    line("all", summary.right, summary.errors, &summary.latency)?;
    if summary.offered.is_some() {
        line("once sent", summary.right, summary.errors, &summary.service)?;
    }
    for workload in &target.workloads {
        line(&workload.name, workload.right, workload.errors, &workload.latency)?;
    }
    match &summary.age {
        Some(age) => writeln!(
            out,
            "  snapshot age p50 {} ms, p99 {} ms, max {} ms; {} of {} dated answers stale",
            age.p50, age.p99, age.max, age.stale, age.answers
        )?,
        None => writeln!(out, "  snapshot age unknown")?,
    }
    let checked = &target.checked;
    writeln!(out, "  {} answers compared with a reference, {} differ", summary.checked, checked.mismatches)?;
    for (why, count) in &checked.not_comparable {
        writeln!(out, "    {count} not comparable: {why}")?;
    }
    let wallet = checked.wallet;
    if wallet != crate::check::Batches::default() {
        let crate::check::Batches { confirmed, failed, pending } = wallet;
        writeln!(
            out,
            "  sampled wallet batches: {confirmed} confirmed, {pending} still pending, {failed} failed or unknown"
        )?;
    }
    let late = if summary.offered.is_some() { format!("{} sent late, ", summary.late) } else { String::new() };
    writeln!(out, "  generator: {late}{} reconnects", summary.reconnects)?;
    if let Some(usage) = usage_text(&summary.usage, cores) {
        writeln!(out, "  cores: {usage}")?;
    }
    // Many steps, such as the intervals of a ramp, are only plotted.
    let steps = if target.steps.len() > MAX_STEPS { &[] } else { target.steps.as_slice() };
    for step in steps {
        let load = match step.offered {
            Some(offered) => format!("{offered:>8.0}/s offered"),
            None => format!("{:>6} connection{}", step.connections, if step.connections == 1 { " " } else { "s" }),
        };
        let busy = match step.usage {
            Some(UsageCores { machine: Some(machine), node: Some(node), .. }) => {
                format!(", machine {machine:.2}, node {node:.2} cores")
            }
            Some(UsageCores { machine: Some(machine), .. }) => format!(", machine {machine:.2} cores"),
            _ => String::new(),
        };
        writeln!(
            out,
            "  {} {load}, {:>8.0}/s right, p50 {:>9}, p99 {:>9}, {} errors{busy}",
            if step.held { "held" } else { "    " },
            step.achieved,
            format_micros(step.p50 as f64),
            format_micros(step.p99 as f64),
            step.errors
        )?;
    }
    if target.steps.is_empty() {
        return Ok(());
    }
    match target.knee {
        Some(Knee { rate, connections, at_least }) => {
            write!(out, "  knee: {}{rate:.0}/s", if at_least { "at least " } else { "" })?;
            match (connections, at_least) {
                (Some(connections), _) => writeln!(out, " on {}", plural(connections, "connection")),
                (None, true) => writeln!(out, ", as every rate was held"),
                (None, false) => writeln!(out),
            }
        }
        None => writeln!(out, "  knee: below the first step"),
    }
}
