//! Line charts as SVG within the page. They show without a script; a script adds the values under the pointer.

use std::fmt::Write as _;

use serde_json::json;

use super::text::{escape, format_micros, thousands};

/// Size of a plot, and the margins for its axes, in the SVG's own units.
const SIZE: (f64, f64) = (720.0, 300.0);
const MARGIN: Margin = Margin { left: 66.0, right: 18.0, top: 20.0, bottom: 44.0 };

struct Margin {
    left: f64,
    right: f64,
    top: f64,
    bottom: f64,
}

/// The quantity on an axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AxisUnit {
    Seconds,
    /// Microseconds, on a logarithmic axis.
    Latency,
    Millis,
    PerSecond,
    /// Numbers of connections, on an axis where each doubling takes the same room.
    Connections,
    /// Quantiles as the number of their nines: log10 of 1 / (1 - quantile).
    Nines,
    Round,
}

impl AxisUnit {
    fn name(self) -> &'static str {
        match self {
            Self::Seconds => "seconds",
            Self::Latency => "latency",
            Self::Millis => "millis",
            Self::PerSecond => "rate",
            Self::Connections => "connections",
            Self::Nines => "nines",
            Self::Round => "round",
        }
    }

    fn format(self, value: f64) -> String {
        match self {
            // Ticks are round numbers, so zeros after the point mean nothing.
            Self::Latency => format_micros(value).replace(".00 ", " ").replace(".0 ", " "),
            Self::PerSecond if value >= 100_000.0 => format!("{} k", trim(value / 1_000.0)),
            Self::PerSecond if value >= 1_000.0 => thousands(value.round() as u64),
            Self::Nines => match value {
                value if value <= 0.0 => "0 %".to_owned(),
                value => format!("{} %", trim_to((1.0 - 10_f64.powf(-value)) * 100.0, 6)),
            },
            _ => trim(value),
        }
    }
}

pub struct Series {
    pub name: String,
    /// The colour, as a class of the page's style.
    pub class: &'static str,
    pub dashed: bool,
    /// Whether to draw each point too.
    pub dots: bool,
    pub points: Vec<(f64, f64)>,
}

impl Series {
    pub fn new(name: impl Into<String>, class: &'static str, points: Vec<(f64, f64)>) -> Self {
        Self { name: name.into(), class, dashed: false, dots: false, points }
    }

    pub fn dashed(self) -> Self {
        Self { dashed: true, ..self }
    }

    pub fn dots(self) -> Self {
        Self { dots: true, ..self }
    }
}

/// A line chart with its title and legend.
pub struct Chart {
    /// The id of the figure in the page.
    pub id: String,
    pub title: String,
    /// A sentence on how to read the chart.
    pub note: String,
    pub x: (&'static str, AxisUnit),
    pub y: (&'static str, AxisUnit),
    pub series: Vec<Series>,
    /// A marked value on the x axis, and its label.
    pub mark: Option<(f64, String)>,
    /// Values on the x axis where another load begins, and their labels.
    pub borders: Vec<(f64, String)>,
}

impl Chart {
    /// Returns the figure, or an empty string if there is nothing to draw.
    pub fn html(&self) -> String {
        let mut html = String::new();
        let points = || self.series.iter().flat_map(|series| &series.points);
        if points().next().is_none() {
            return html;
        }
        let x = Scale::of(points().map(|point| point.0), self.x.1, (MARGIN.left, SIZE.0 - MARGIN.right));
        let y = Scale::of(points().map(|point| point.1), self.y.1, (SIZE.1 - MARGIN.bottom, MARGIN.top));
        // Writing to a string does not fail.
        let _ = self.write(&mut html, &x, &y);
        html
    }

    fn write(&self, out: &mut String, x: &Scale, y: &Scale) -> std::fmt::Result {
        write!(out, r#"<figure class="chart" id="{}" data-chart="{}">"#, escape(&self.id), escape(&self.data(x, y)))?;
        write!(out, "<figcaption><h3>{}</h3><p>{}</p></figcaption>", escape(&self.title), escape(&self.note))?;
        write!(out, r#"<ul class="legend">"#)?;
        for series in &self.series {
            let dashed = if series.dashed { " dashed" } else { "" };
            write!(out, r#"<li><i class="{}{dashed}"></i>{}</li>"#, series.class, escape(&series.name))?;
        }
        write!(out, "</ul>")?;
        let (width, height) = SIZE;
        let (left, right, top, bottom) = (MARGIN.left, width - MARGIN.right, MARGIN.top, height - MARGIN.bottom);
        write!(out, r#"<svg viewBox="0 0 {width} {height}" role="img" aria-label="{}">"#, escape(&self.title))?;
        for tick in y.ticks() {
            let at = y.place(tick);
            write!(out, r#"<line class="grid" x1="{left}" x2="{right}" y1="{at:.1}" y2="{at:.1}"/>"#)?;
            write!(
                out,
                r#"<text class="tick y" x="{}" y="{:.1}">{}</text>"#,
                left - 8.0,
                at + 4.0,
                y.unit.format(tick)
            )?;
        }
        for tick in x.ticks() {
            let at = x.place(tick);
            write!(out, r#"<line class="grid" x1="{at:.1}" x2="{at:.1}" y1="{bottom}" y2="{}"/>"#, bottom + 4.0)?;
            write!(out, r#"<text class="tick x" x="{at:.1}" y="{}">{}</text>"#, bottom + 18.0, x.unit.format(tick))?;
        }
        write!(out, r#"<line class="axis" x1="{left}" x2="{right}" y1="{bottom}" y2="{bottom}"/>"#)?;
        write!(
            out,
            r#"<text class="label x" x="{}" y="{}">{}</text>"#,
            (left + right) / 2.0,
            height - 6.0,
            escape(self.x.0)
        )?;
        let middle = (top + bottom) / 2.0;
        write!(
            out,
            r#"<text class="label y" transform="translate(13 {middle}) rotate(-90)">{}</text>"#,
            escape(self.y.0)
        )?;
        for (place, (at, text)) in self.borders.iter().enumerate() {
            let at = x.place(*at);
            if place > 0 {
                write!(out, r#"<line class="border" x1="{at:.1}" x2="{at:.1}" y1="{top}" y2="{bottom}"/>"#)?;
            }
            write!(out, r#"<text class="border" x="{:.1}" y="{}">{}</text>"#, at + 3.0, top - 4.0, escape(text))?;
        }
        if let Some((at, text)) = &self.mark {
            let at = x.place(*at);
            let (anchor, text_at) = if at > (left + right) / 2.0 { ("end", at - 6.0) } else { ("start", at + 6.0) };
            write!(out, r#"<line class="mark" x1="{at:.1}" x2="{at:.1}" y1="{top}" y2="{bottom}"/>"#)?;
            let text = escape(text);
            write!(
                out,
                r#"<text class="mark" text-anchor="{anchor}" x="{text_at:.1}" y="{}">{text}</text>"#,
                top + 11.0
            )?;
        }
        for series in &self.series {
            let dashed = if series.dashed { " dashed" } else { "" };
            write!(out, r#"<polyline class="line {}{dashed}" points=""#, series.class)?;
            for (a, b) in &series.points {
                write!(out, "{:.1},{:.1} ", x.place(*a), y.place(*b))?;
            }
            write!(out, r#""/>"#)?;
            for (a, b) in series.points.iter().filter(|_| series.dots || series.points.len() == 1) {
                write!(
                    out,
                    r#"<circle class="dot {}" cx="{:.1}" cy="{:.1}" r="4"/>"#,
                    series.class,
                    x.place(*a),
                    y.place(*b)
                )?;
            }
        }
        write!(out, r#"<line class="cursor" y1="{top}" y2="{bottom}"/></svg><output></output></figure>"#)
    }

    /// Returns the data from which the script shows the values under the pointer.
    fn data(&self, x: &Scale, y: &Scale) -> String {
        let series: Vec<_> = self
            .series
            .iter()
            .map(|series| {
                let points: Vec<_> = series.points.iter().map(|(a, b)| json!([x.place(*a).round(), a, b])).collect();
                json!({"name": series.name, "class": series.class, "points": points})
            })
            .collect();
        json!({"x": x.unit.name(), "y": y.unit.name(), "width": SIZE.0, "series": series}).to_string()
    }
}

/// Maps values to places on an axis.
struct Scale {
    unit: AxisUnit,
    log: bool,
    from: f64,
    to: f64,
    places: (f64, f64),
}

impl Scale {
    fn of(values: impl Iterator<Item = f64> + Clone, unit: AxisUnit, places: (f64, f64)) -> Self {
        let log = matches!(unit, AxisUnit::Latency | AxisUnit::Connections);
        let values = values.filter(|value| value.is_finite() && (!log || *value > 0.0));
        let least = values.clone().fold(f64::INFINITY, f64::min);
        let greatest = values.fold(f64::NEG_INFINITY, f64::max);
        let (mut from, mut to) = if least <= greatest { (least, greatest) } else { (1.0, 10.0) };
        match unit {
            AxisUnit::Latency => {
                // The bounds are the next 1, 2 or 5 times a power of ten.
                from = round_number(from, |step, value| step <= value, true);
                to = round_number(to, |step, value| step >= value, false).max(from * 10.0);
            }
            AxisUnit::Connections => {
                from *= 0.9;
                to *= 1.1;
            }
            AxisUnit::Round => {
                from -= 0.5;
                to += 0.5;
            }
            AxisUnit::PerSecond | AxisUnit::Millis => {
                from = 0.0;
                let step = step(to.max(1.0));
                to = (to.max(1.0) * 1.04 / step).ceil() * step;
            }
            AxisUnit::Seconds | AxisUnit::Nines => {
                from = 0.0;
                to = to.max(0.1);
            }
        }
        Self { unit, log, from, to, places }
    }

    fn place(&self, value: f64) -> f64 {
        let share = match self.log {
            true => (value.max(self.from) / self.from).ln() / (self.to / self.from).ln(),
            false => (value - self.from) / (self.to - self.from),
        };
        self.places.0 + share * (self.places.1 - self.places.0)
    }

    fn ticks(&self) -> Vec<f64> {
        let within = |tick: &f64| *tick >= self.from * 0.999 && *tick <= self.to * 1.001;
        match self.unit {
            AxisUnit::Latency => {
                let (low, high) = (self.from.log10().floor() as i32, self.to.log10().ceil() as i32);
                let steps: &[f64] = if high - low > 3 { &[1.0] } else { &[1.0, 2.0, 5.0] };
                let decades = (low..=high).flat_map(|decade| steps.iter().map(move |step| step * 10_f64.powi(decade)));
                decades.filter(within).collect()
            }
            AxisUnit::Connections => (0..17).map(|doubled| f64::from(1 << doubled)).filter(within).collect(),
            AxisUnit::Nines => {
                let quantiles = [0.0, 0.5, 0.9, 0.99, 0.999, 0.9999, 0.99999, 0.999999];
                quantiles.into_iter().map(|quantile: f64| -(1.0 - quantile).log10()).filter(within).collect()
            }
            AxisUnit::Round => (self.from.ceil() as i64..=self.to.floor() as i64).map(|round| round as f64).collect(),
            _ => {
                let step = step(self.to - self.from);
                (0..=50).map(|tick| f64::from(tick) * step).filter(within).collect()
            }
        }
    }
}

/// Returns the distance of ticks: 1, 2 or 5 times a power of ten, for four to ten ticks.
fn step(length: f64) -> f64 {
    let rough = length / 6.0;
    let power = 10_f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].into_iter().find(|step| step * power >= rough).unwrap_or(10.0);
    step * power
}

fn round_number(value: f64, fits: impl Fn(f64, f64) -> bool, greatest: bool) -> f64 {
    let power = 10_f64.powf(value.log10().floor());
    let mut steps: Vec<f64> =
        [1.0, 2.0, 5.0, 10.0].into_iter().map(|step| step * power).filter(|step| fits(*step, value)).collect();
    if greatest {
        steps.reverse();
    }
    steps.first().copied().unwrap_or(value)
}

fn trim(value: f64) -> String {
    trim_to(value, 2)
}

fn trim_to(value: f64, digits: usize) -> String {
    let text = format!("{value:.digits$}");
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}
