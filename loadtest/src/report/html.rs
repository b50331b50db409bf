//! The report as one HTML page that needs no other file.

use std::fmt::Write as _;

use super::{
    Knee, Latency, MedianRange, Report, TargetReport, noise,
    plots::{self, colour},
    text::{escape, format_micros, plural, rate, thousands, usage_text},
};

/// Returns the report as an HTML page, with its plots, style and script.
pub fn html(report: &Report) -> String {
    let mut page = String::new();
    // Writing to a string does not fail.
    let _ = write(&mut page, report);
    page
}

fn write(out: &mut String, report: &Report) -> std::fmt::Result {
    write!(
        out,
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>Load test, {}</title>\n<style>{}</style>\n</head>\n\
         <body><main>\n",
        escape(&report.started),
        include_str!("page.css")
    )?;
    write_head(out, report)?;
    if report.targets.len() > 1 {
        write_comparison(out, report)?;
    }
    for (place, target) in report.targets.iter().enumerate() {
        write_target(out, report, target, colour(place))?;
    }
    write_about(out, report)?;
    write!(out, "</main>\n<script>{}</script>\n</body>\n</html>\n", include_str!("page.js"))
}

fn write_head(out: &mut String, report: &Report) -> std::fmt::Result {
    let (class, verdict) = match (report.assertions.len(), report.holds()) {
        (0, _) => ("", "no assertions"),
        (_, true) => ("good", "✓ all assertions hold"),
        (_, false) => ("bad", "✗ an assertion failed"),
    };
    write!(out, "<h1>Load test <span class=\"pill {class}\">{verdict}</span>")?;
    if report.ended_early {
        write!(out, "<span class=\"pill bad\">ended early</span>")?;
    }
    write!(out, "</h1><p class=\"soft\">{}</p><p>{}.</p>", escape(&report.started), escape(&capital(&report.load)))?;
    if let Some(first) = report.targets.first() {
        write!(out, "<div class=\"tiles\">")?;
        write_tiles(out, report, first)?;
        write!(out, "</div>")?;
    }
    if !report.notes.is_empty() {
        write!(out, "<div class=\"box\"><ul>")?;
        for note in &report.notes {
            write!(out, "<li>{}</li>", escape(note))?;
        }
        write!(out, "</ul></div>")?;
    }
    if !report.assertions.is_empty() {
        write!(out, "<div class=\"scroll\"><table><tr><th>Assertion</th><th>Measured</th><th>Verdict</th></tr>")?;
        for verdict in &report.assertions {
            let (class, text) = if verdict.holds { ("good", "✓ holds") } else { ("bad", "✗ fails") };
            let measured = verdict.measured.as_deref().unwrap_or("not measured");
            let assertion = escape(&verdict.assertion);
            write!(
                out,
                "<tr><td><code>{assertion}</code></td><td>{measured}</td><td class=\"{class}\">{text}</td></tr>"
            )?;
        }
        write!(out, "</table></div>")?;
    }
    Ok(())
}

fn write_tiles(out: &mut String, report: &Report, target: &TargetReport) -> std::fmt::Result {
    let summary = &target.summary;
    let mut tile = |name: &str, value: String, small: String, class: &str| {
        let (value, small) = (escape(&value), escape(&small));
        write!(
            out,
            "<div class=\"tile\"><span>{name}</span><b class=\"{class}\">{value}</b><small>{small}</small></div>"
        )
    };
    let of = match summary.offered {
        Some(offered) => format!("of {} offered", rate(offered)),
        None => "closed loop".to_owned(),
    };
    let micros = |micros: u64| format_micros(micros as f64);
    let Latency { p50, p90, p99, p999, max, .. } = summary.latency;
    tile(&label(report, "Right answers"), rate(summary.throughput), of, "")?;
    tile("Latency p50", micros(p50), format!("p90 {}", micros(p90)), "")?;
    tile("Latency p99", micros(p99), format!("p99.9 {}", micros(p999)), "")?;
    tile("Longest", micros(max), format!("of {} requests", thousands(summary.requests)), "")?;
    let class = if summary.errors > 0 { "bad" } else { "good" };
    tile("Errors", thousands(summary.errors), format!("{:.3} %", summary.error_rate * 100.0), class)?;
    match &summary.age {
        Some(age) => tile(
            "Snapshot age p99",
            format!("{} ms", age.p99),
            format!("{} of {} stale", thousands(age.stale), thousands(age.answers)),
            if age.stale > 0 { "bad" } else { "" },
        )?,
        None => tile("Snapshot age", "unknown".to_owned(), "the target does not say".to_owned(), "")?,
    }
    if !target.steps.is_empty() {
        let limit = format!("p99 ≤ {}", format_micros(report.knee_p99_us));
        let (value, small) = match target.knee {
            Some(knee) => (knee.to_string(), format!("{}{limit}", on(&knee))),
            None => ("none".to_owned(), format!("below the first step, {limit}")),
        };
        let is_noise = noise(&target.steps).is_some();
        let small = if is_noise { format!("{small}; noise: see below") } else { small };
        tile("Knee", value, small, if is_noise { "bad" } else { "" })?;
    }
    Ok(())
}

fn label(report: &Report, text: &str) -> String {
    match report.targets.first() {
        Some(first) if report.targets.len() > 1 => format!("{text} of {}", first.name),
        _ => text.to_owned(),
    }
}

fn write_comparison(out: &mut String, report: &Report) -> std::fmt::Result {
    write!(
        out,
        "<h2>Targets in turn</h2><div class=\"scroll\"><table><tr><th>Target</th><th>Right answers</th><th>p50</th><th>p90</th><th>p99</th>\
         <th>p99.9</th><th>Longest</th><th>Errors</th><th>Stale</th></tr>"
    )?;
    for target in &report.targets {
        let summary = &target.summary;
        let stale = summary.age.as_ref().map_or("unknown".to_owned(), |age| thousands(age.stale));
        write!(
            out,
            "<tr><td>{} <code>{}</code></td><td>{}</td>",
            target.name,
            escape(&target.url),
            rate(summary.throughput)
        )?;
        let Latency { p50, p90, p99, p999, max, .. } = summary.latency;
        for micros in [p50, p90, p99, p999, max] {
            write!(out, "<td>{}</td>", format_micros(micros as f64))?;
        }
        write!(out, "<td>{}</td><td>{stale}</td></tr>", thousands(summary.errors))?;
    }
    write!(
        out,
        "</table></div><div class=\"scroll\"><table><tr><th>Ratio</th><th>Throughput</th><th>least … greatest</th><th>p50</th>\
         <th>least … greatest</th><th>p99</th><th>least … greatest</th></tr>"
    )?;
    for ratio in &report.ratios {
        write!(out, "<tr><td>{} / {}, median of rounds</td>", ratio.of, ratio.to)?;
        for MedianRange { median, least, greatest } in [ratio.throughput, ratio.p50, ratio.p99] {
            write!(out, "<td>{median:.2}</td><td class=\"soft\">{least:.2} … {greatest:.2}</td>")?;
        }
        write!(out, "</tr>")?;
    }
    write!(out, "</table></div><div class=\"charts\">")?;
    let coloured = report.targets.iter().enumerate().map(|(place, target)| (colour(place), target));
    write!(out, "{}{}</div>", plots::rounds(report).html(), plots::distribution(coloured, "distribution").html())
}

fn write_target(out: &mut String, report: &Report, target: &TargetReport, class: &'static str) -> std::fmt::Result {
    write!(
        out,
        "<h2>{} <code>{}</code></h2><p class=\"soft\">{}</p><div class=\"charts\">",
        escape(&target.name),
        escape(&target.url),
        escape(&target.client)
    )?;
    for chart in plots::of_target(report, target, class) {
        out.push_str(&chart.html());
    }
    write!(out, "</div>")?;
    if target.timeline.iter().all(|row| row.age.is_none()) {
        write!(out, "<p class=\"soft\">Snapshot age: unknown, as no answer said which snapshot it came from.</p>")?;
    }
    write_workloads(out, target)?;
    write_faults(out, target)?;
    write_checks(out, target, report.machine.cores)
}

fn write_workloads(out: &mut String, target: &TargetReport) -> std::fmt::Result {
    write!(
        out,
        "<h3 style=\"margin:18px 0 8px\">Workloads</h3><div class=\"scroll\"><table><tr><th>Workload</th><th>Weight</th><th>Right</th><th>Errors</th>\
         <th>mean</th><th>p50</th><th>p90</th><th>p99</th><th>p99.9</th><th>longest</th></tr>"
    )?;
    let mut line = |name: &str, weight: String, right: u64, errors: u64, latency: &Latency| {
        let Latency { mean, p50, p90, p99, p999, max, .. } = *latency;
        write!(out, "<tr><td>{}</td><td>{weight}</td><td>{}</td>", escape(name), thousands(right))?;
        let class = if errors > 0 { "bad" } else { "" };
        write!(out, "<td class=\"{class}\">{}</td><td>{}</td>", thousands(errors), format_micros(mean))?;
        for micros in [p50, p90, p99, p999, max] {
            write!(out, "<td>{}</td>", format_micros(micros as f64))?;
        }
        write!(out, "</tr>")
    };
    for workload in &target.workloads {
        line(&workload.name, workload.weight.to_string(), workload.right, workload.errors, &workload.latency)?;
    }
    let summary = &target.summary;
    line("all", String::new(), summary.right, summary.errors, &summary.latency)?;
    if summary.offered.is_some() {
        line("all, once sent", String::new(), summary.right, summary.errors, &summary.service)?;
    }
    write!(out, "</table></div>")
}

fn write_faults(out: &mut String, target: &TargetReport) -> std::fmt::Result {
    if target.summary.errors == 0 {
        return Ok(());
    }
    write!(
        out,
        "<h3 style=\"margin:18px 0 8px\">What went wrong</h3><div class=\"scroll\"><table><tr><th>Fault</th><th>Count</th>\
         <th class=\"text\">For example</th></tr>"
    )?;
    for (fault, count) in target.summary.faults.iter() {
        let example = target.examples.iter().find(|example| example.fault == fault.name());
        let example = example.map_or(String::new(), |example| escape(&example.text));
        write!(out, "<tr><td>{}</td><td class=\"bad\">{}</td>", fault.meaning(), thousands(count))?;
        write!(out, "<td class=\"text\"><code>{example}</code></td></tr>")?;
    }
    write!(out, "</table></div>")
}

fn write_checks(out: &mut String, target: &TargetReport, cores: usize) -> std::fmt::Result {
    let (summary, checked) = (&target.summary, &target.checked);
    let mut lines = vec![format!(
        "{} sampled answers were compared with a reference on the same state: {} equal, {} different.",
        thousands(summary.checked),
        thousands(checked.equal),
        thousands(checked.mismatches)
    )];
    for (why, count) in &checked.not_comparable {
        lines.push(format!("{} samples could not be compared: {why}.", thousands(*count)));
    }
    let crate::check::Batches { confirmed, failed, pending } = checked.wallet;
    if confirmed + failed + pending > 0 {
        lines.push(format!("Of the sampled wallet batches {confirmed} were confirmed, {pending} still pending, {failed} failed or unknown."));
    }
    if summary.late > 0 {
        lines.push(format!("{} requests waited for a free connection for more than 1 ms.", thousands(summary.late)));
    }
    if summary.reconnects > 0 {
        lines.push(format!("{} connections had to be made again.", thousands(summary.reconnects)));
    }
    if let Some(micros) = summary.refusal_p99_us {
        lines.push(format!("Refusals (-32005) took {} at p99.", format_micros(micros as f64)));
    }
    if let Some(usage) = usage_text(&summary.usage, cores) {
        lines.push(format!("In cores: {usage}."));
    }
    write!(out, "<div class=\"box\"><ul>")?;
    for line in lines {
        write!(out, "<li>{}</li>", escape(&line))?;
    }
    write!(out, "</ul></div>")
}

fn write_about(out: &mut String, report: &Report) -> std::fmt::Result {
    let machine = &report.machine;
    let memory = machine.memory_gib.map_or(String::new(), |memory| format!(", {memory:.1} GiB"));
    let rows = [
        ("Command", format!("<code>{}</code>", escape(&report.command.join(" ")))),
        ("Mix", format!("<code>{}</code>, seed {}", escape(&report.mix), report.seed)),
        (
            "Generator's machine",
            format!("{}, {} cores{memory}, {}", escape(&machine.processor), machine.cores, escape(&machine.system)),
        ),
        ("Latency", "Of right answers and of those that did not come in time. In an open loop it counts from the moment a request was due, so that \
          whoever waits because the target stalls is seen; “once sent” counts from sending."
            .to_owned()),
        ("Errors", "Everything that did not end in a right answer, requests that were due and could not be sent included.".to_owned()),
        ("Stale", "A pending answer from a snapshot older than one that the target had told of, to a subscriber of newFlashblocks or in another answer, \
          before the request was sent."
            .to_owned()),
    ];
    write!(out, "<h2>About this run</h2><div class=\"box\"><dl>")?;
    for (name, text) in rows {
        write!(out, "<dt>{name}</dt><dd>{text}</dd>")?;
    }
    write!(out, "</dl></div>")
}

fn on(knee: &Knee) -> String {
    knee.connections.map_or_else(String::new, |connections| format!("on {}, ", plural(connections, "connection")))
}

fn capital(text: &str) -> String {
    let mut chars = text.chars();
    chars.next().map_or(String::new(), |first| first.to_uppercase().chain(chars).collect())
}
