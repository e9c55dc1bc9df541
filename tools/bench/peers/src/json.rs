//! One line of a report.

use std::fmt;

/// A JSON object whose fields keep their order.
#[derive(Default)]
pub struct Object(String);

impl Object {
    pub fn new() -> Object {
        Object::default()
    }

    fn raw(mut self, name: &str, value: String) -> Object {
        if !self.0.is_empty() {
            self.0.push(',');
        }
        self.0 += &format!("{name:?}:{value}");
        self
    }

    pub fn text(self, name: &str, value: &str) -> Object {
        // Names and paths: Rust's escapes of what such text holds are JSON's.
        self.raw(name, format!("{value:?}"))
    }

    pub fn count(self, name: &str, value: impl Into<u64>) -> Object {
        self.raw(name, value.into().to_string())
    }

    /// A measured figure; null where it was not measured or has no meaning.
    pub fn figure(self, name: &str, value: Option<f64>) -> Object {
        let text = match value {
            Some(value) if value.is_finite() => format!("{value:.2}"),
            _ => "null".into(),
        };
        self.raw(name, text)
    }

    pub fn object(self, name: &str, value: Object) -> Object {
        self.raw(name, value.to_string())
    }

    pub fn append(mut self, other: Object) -> Object {
        if !self.0.is_empty() && !other.0.is_empty() {
            self.0.push(',');
        }
        self.0 += &other.0;
        self
    }
}

impl fmt::Display for Object {
    fn fmt(&self, out: &mut fmt::Formatter) -> fmt::Result {
        write!(out, "{{{}}}", self.0)
    }
}

/// Latencies in ns; nothing where nothing was asked.
#[derive(Clone, Copy)]
pub struct Percentiles {
    p50: Option<f64>,
    p99: Option<f64>,
    p999: Option<f64>,
    mean: Option<f64>,
}

impl Percentiles {
    /// By nearest rank; sorts the ticks.
    pub fn of(ticks: &mut [u32], ns_per_tick: f64) -> Percentiles {
        ticks.sort_unstable();
        let at = |share: f64| {
            let rank = (ticks.len() as f64 * share).ceil() as usize;
            ticks
                .get(rank.max(1) - 1)
                .map(|&value| f64::from(value) * ns_per_tick)
        };
        let sum: f64 = ticks.iter().map(|&value| f64::from(value)).sum();
        let mean = (!ticks.is_empty()).then(|| sum / ticks.len() as f64 * ns_per_tick);
        Percentiles {
            p50: at(0.5),
            p99: at(0.99),
            p999: at(0.999),
            mean,
        }
    }

    /// Of several repetitions, each column's best.
    pub fn best(all: impl Iterator<Item = Percentiles> + Clone) -> Object {
        Object::new()
            .figure("p50", lowest(all.clone().map(|one| one.p50)))
            .figure("p99", lowest(all.clone().map(|one| one.p99)))
            .figure("p999", lowest(all.clone().map(|one| one.p999)))
            .figure("mean", lowest(all.map(|one| one.mean)))
    }
}

pub fn lowest(values: impl Iterator<Item = Option<f64>>) -> Option<f64> {
    values.flatten().min_by(f64::total_cmp)
}

/// The first repetition touches its memory for the first time. It is told by itself, and counts
/// only where there is no other.
pub fn warm<T>(all: &[T]) -> &[T] {
    if all.len() > 1 { &all[1..] } else { all }
}

/// Best, median, worst of the warm repetitions and the first one's rate.
pub fn rates(all: &[f64]) -> Object {
    let mut sorted = warm(all).to_vec();
    sorted.sort_by(f64::total_cmp);
    Object::new()
        .figure("block_ops_per_s", sorted.last().copied())
        .figure(
            "block_ops_per_s_median",
            sorted.get((sorted.len() - 1) / 2).copied(),
        )
        .figure("block_ops_per_s_worst", sorted.first().copied())
        .figure(
            "block_ops_per_s_first",
            all.first().filter(|_| all.len() > 1).copied(),
        )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unmeasured_is_null() {
        let object = Object::new()
            .text("index", "x")
            .figure("a", None)
            .figure("b", Some(f64::NAN));
        assert_eq!(
            object.count("n", 3u64).to_string(),
            r#"{"index":"x","a":null,"b":null,"n":3}"#
        );
    }

    #[test]
    fn percentiles_are_values_that_occurred() {
        let mut ticks: Vec<u32> = (1..=100).rev().collect();
        let one = Percentiles::of(&mut ticks, 2.0);
        let none = Percentiles::of(&mut [], 2.0);
        let text = Percentiles::best([one, none].into_iter()).to_string();
        assert_eq!(
            text,
            r#"{"p50":100.00,"p99":198.00,"p999":200.00,"mean":101.00}"#
        );
        assert!(
            Percentiles::best([none].into_iter())
                .to_string()
                .contains(r#""p50":null"#)
        );
    }

    #[test]
    fn the_first_repetition_stands_by_itself() {
        let four = rates(&[1.0, 5.0, 3.0, 4.0])
            .to_string()
            .replace("block_ops_per_s", "x");
        assert_eq!(
            four,
            r#"{"x":5.00,"x_median":4.00,"x_worst":3.00,"x_first":1.00}"#
        );
        let one = rates(&[2.0]).to_string().replace("block_ops_per_s", "x");
        assert_eq!(
            one,
            r#"{"x":2.00,"x_median":2.00,"x_worst":2.00,"x_first":null}"#
        );
    }
}
