//! Samples, and the one table that is printed.

use std::fmt;
use std::time::Duration;

/// Samples of one latency.
#[derive(Debug, Default, Clone)]
pub struct Samples(Vec<Duration>);

impl Samples {
    pub fn add(&mut self, sample: Duration) {
        self.0.push(sample);
    }

    /// The sample that `percent` of a hundred do not exceed; zero without samples.
    pub fn percentile(&self, percent: usize) -> Duration {
        let mut sorted = self.0.clone();
        sorted.sort_unstable();
        let rank = (sorted.len() * percent).div_ceil(100).max(1);
        sorted.get(rank - 1).copied().unwrap_or_default()
    }

    pub fn p50(&self) -> Duration {
        self.percentile(50)
    }

    /// `p50 / p99`, in the unit that reads best.
    pub fn shown(&self) -> String {
        format!("{} / {}", time(self.p50()), time(self.percentile(99)))
    }
}

pub fn time(duration: Duration) -> String {
    let micros = duration.as_secs_f64() * 1e6;
    if micros < 1000.0 { format!("{micros:.0} us") } else { format!("{:.2} ms", micros / 1000.0) }
}

pub fn rate(per_second: f64) -> String {
    format!("{per_second:.0} /s")
}

/// What a measure has to reach.
#[derive(Debug, Clone, Copy)]
pub enum Target {
    AtMost(f64),
    AtLeast(f64),
    /// Shown for what it is.
    None,
}

impl Target {
    fn met(self, ratio: f64) -> Option<bool> {
        match self {
            Self::AtMost(bound) => Some(ratio <= bound),
            Self::AtLeast(bound) => Some(ratio >= bound),
            Self::None => None,
        }
    }
}

/// All measures of one run, in the order they were made.
#[derive(Debug, Default)]
pub struct Table {
    rows: Vec<[String; 6]>,
    remarks: Vec<String>,
}

impl Table {
    /// A number that others are compared with.
    pub fn floor(&mut self, measure: &str, value: String) {
        self.rows.push([measure.to_owned(), value, String::new(), String::new(), String::new(), "floor".to_owned()]);
    }

    /// A measure, the floor that it is compared with, and their ratio.
    pub fn compare(&mut self, measure: &str, value: String, floor: String, ratio: f64, target: Target) {
        let (bound, met) = match target {
            Target::AtMost(bound) => (format!("<= {bound}"), target.met(ratio)),
            Target::AtLeast(bound) => (format!(">= {bound}"), target.met(ratio)),
            Target::None => (String::new(), None),
        };
        let verdict = match met {
            Some(true) => "met",
            Some(false) => "MISSED",
            None => "",
        };
        self.rows.push([measure.to_owned(), value, floor, format!("{ratio:.2}"), bound, verdict.to_owned()]);
        eprintln!("{measure}: {}", self.rows[self.rows.len() - 1][1..].join("  "));
    }

    /// A sentence under the table.
    pub fn remark(&mut self, text: &str) {
        self.remarks.push(text.to_owned());
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const HEAD: [&str; 6] = ["measure", "p50 / p99 or rate", "floor", "ratio", "target", ""];
        let mut widths = HEAD.map(str::len);
        for row in &self.rows {
            for (width, cell) in widths.iter_mut().zip(row) {
                *width = (*width).max(cell.len());
            }
        }
        let mut line = |cells: [&str; 6]| {
            let cells: Vec<String> = cells.iter().zip(widths).map(|(cell, width)| format!("{cell:width$}")).collect();
            writeln!(f, "| {} |", cells.join(" | "))
        };
        line(HEAD)?;
        line(widths.map(|width| "-".repeat(width)).each_ref().map(String::as_str))?;
        for row in &self.rows {
            line(row.each_ref().map(String::as_str))?;
        }
        for remark in &self.remarks {
            writeln!(f, "\n{remark}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_percentile_is_a_sample() {
        let samples = Samples((1..=100).rev().map(Duration::from_micros).collect());
        assert_eq!(samples.p50(), Duration::from_micros(50));
        assert_eq!(samples.percentile(99), Duration::from_micros(99));
        assert_eq!(Samples(vec![Duration::from_micros(7)]).percentile(99), Duration::from_micros(7));
        assert_eq!(Samples::default().p50(), Duration::ZERO);
    }

    #[test]
    fn the_table_says_what_was_met_and_what_was_missed() {
        let mut table = Table::default();
        table.compare("a", rate(9.0), rate(10.0), 0.9, Target::AtLeast(0.8));
        table.compare("b", rate(7.0), rate(10.0), 0.7, Target::AtLeast(0.8));
        let text = table.to_string();
        assert!(text.contains(">= 0.8 | met") && text.contains("MISSED"), "{text}");
    }
}
