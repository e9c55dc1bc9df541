//! One thread, the operations in order, each timed by itself.

use std::sync::Arc;

use crate::clock::{cpu_seconds, ns_per_tick, ticks};
use crate::json::{self, Object, Percentiles};
use crate::ops::{Kind, Op, Ops};
use crate::structure::{Overlap, Source, Structure};

enum Step<I: Structure> {
    Query(I::Query),
    Event(Option<I::Event>),
}

/// The stream, and how many ticks each of its operations took.
struct Stream<I: Structure> {
    steps: Vec<Step<I>>,
    took: Vec<u64>,
    /// Since when the event is being applied that was handed over last.
    since: Option<u64>,
    results: usize,
    room: Vec<Overlap>,
}

impl<I: Structure> Stream<I> {
    fn new(index: &I, ops: &Ops) -> Self {
        let step = |op: Op| match op.kind {
            Kind::Query => Step::Query(index.query(&op)),
            _ => Step::Event(Some(index.event(&op))),
        };
        Stream {
            steps: ops.iter().map(step).collect(),
            took: Vec::with_capacity(ops.len()),
            since: None,
            results: 0,
            room: Vec::with_capacity(ops.workers as usize),
        }
    }
}

impl<I: Structure> Source<I> for Stream<I> {
    fn next(&mut self, index: &I) -> Option<I::Event> {
        if let Some(since) = self.since.take() {
            self.took.push(ticks() - since);
        }
        loop {
            match self.steps.get_mut(self.took.len())? {
                Step::Query(query) => {
                    let begin = ticks();
                    let results = index.find(query, &mut self.room);
                    self.took.push(ticks() - begin);
                    self.results += results;
                }
                Step::Event(event) => return event.take(),
            }
        }
    }

    fn handed_over(&mut self) {
        self.since = Some(ticks());
    }
}

/// What the times of all operations say together.
struct Summary {
    block_ops: u64,
    block_ops_per_s: f64,
    /// Of `KINDS`.
    ns_per_block: [Option<f64>; 3],
    query: Percentiles,
}

const KINDS: [Kind; 3] = [Kind::Store, Kind::Remove, Kind::Query];

impl Summary {
    fn of(ops: &Ops, took: &[u64], ns: f64) -> Summary {
        let (mut ticks, mut blocks) = ([0; 4], [0; 4]);
        let mut latencies = vec![];
        for (op, &took) in std::iter::zip(ops.iter(), took) {
            ticks[op.kind as usize] += took;
            blocks[op.kind as usize] += op.count();
            if op.is_query() {
                latencies.push(took.min(u32::MAX.into()) as u32);
            }
        }
        let per_block = |kind: Kind| {
            let (ticks, blocks) = (ticks[kind as usize] as f64, blocks[kind as usize]);
            (blocks > 0).then(|| ticks * ns / blocks as f64)
        };
        let block_ops = blocks.iter().sum();
        Summary {
            block_ops,
            block_ops_per_s: block_ops as f64 / (ticks.iter().sum::<u64>() as f64 * ns) * 1e9,
            ns_per_block: KINDS.map(per_block),
            query: Percentiles::of(&mut latencies, ns),
        }
    }
}

struct Repetition {
    took: Vec<u64>,
    summary: Summary,
    results: usize,
    block_ops_per_cpu_s: Option<f64>,
}

fn repeat_once<I: Structure>(make: &impl Fn() -> I, ops: &Ops, ns: f64) -> Repetition {
    let index = make();
    let stream = Stream::new(&index, ops);
    let begin = cpu_seconds();
    let done = index.feed(stream);
    let cpu = begin.zip(cpu_seconds()).map(|(begin, end)| end - begin);
    let summary = Summary::of(ops, &done.took, ns);
    Repetition {
        block_ops_per_cpu_s: cpu.map(|cpu| summary.block_ops as f64 / cpu),
        summary,
        took: done.took,
        results: done.results,
    }
}

/// Of every operation its fastest time in any repetition. Each does the same to the same state, so
/// what remains is the structure without the machine's other work. Needs two.
fn undisturbed(ops: &Ops, warm: &[Repetition], ns: f64) -> Option<Summary> {
    let (first, rest) = warm.split_first().filter(|(_, rest)| !rest.is_empty())?;
    let mut fastest = first.took.clone();
    for repetition in rest {
        std::iter::zip(&mut fastest, &repetition.took).for_each(|(a, b)| *a = (*a).min(*b));
    }
    Some(Summary::of(ops, &fastest, ns))
}

/// Every column's best, under `index_bench`'s names.
fn columns<'a>(all: impl Iterator<Item = &'a Summary> + Clone) -> Object {
    let ns = |kind: usize| json::lowest(all.clone().map(|one| one.ns_per_block[kind]));
    Object::new()
        .figure("ns_per_stored_block", ns(0))
        .figure("ns_per_removed_block", ns(1))
        .figure("ns_per_query_block", ns(2))
        .object(
            "query_ns",
            Percentiles::best(all.clone().map(|one| one.query)),
        )
}

/// Every column's best of `repeat`, the first left out where there are more.
pub fn run<I: Structure>(make: &impl Fn() -> I, ops: &Arc<Ops>, repeat: usize) -> Object {
    let ns = ns_per_tick();
    let all: Vec<Repetition> = (0..repeat).map(|_| repeat_once(make, ops, ns)).collect();
    let rates: Vec<f64> = all.iter().map(|one| one.summary.block_ops_per_s).collect();
    let warm = json::warm(&all);
    let queries = ops.iter().filter(|op| op.is_query()).count();
    let per_cpu_s = warm
        .iter()
        .filter_map(|one| one.block_ops_per_cpu_s)
        .max_by(f64::total_cmp);
    let line = Object::new()
        .text("mode", "seq")
        .count("event_threads", 1u64)
        .count("query_threads", 1u64)
        .count("block_ops", all[0].summary.block_ops)
        .append(json::rates(&rates))
        .figure("block_ops_per_cpu_s", per_cpu_s)
        .append(columns(warm.iter().map(|one| &one.summary)))
        .figure(
            "results_per_query",
            (queries > 0).then(|| all[0].results as f64 / queries as f64),
        );
    match undisturbed(ops, warm, ns) {
        None => line,
        Some(summary) => line.object(
            "undisturbed",
            Object::new()
                .figure("block_ops_per_s", Some(summary.block_ops_per_s))
                .append(columns(std::iter::once(&summary))),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::tests::small;

    fn repetition(took: [u64; 5]) -> Repetition {
        let summary = Summary::of(&small(), &took, 1.0);
        Repetition {
            took: took.to_vec(),
            summary,
            results: 0,
            block_ops_per_cpu_s: None,
        }
    }

    #[test]
    fn times_are_summed_by_kind() {
        // store 2, store 1, query 3, remove 1, query 3
        let summary = repetition([40, 20, 30, 50, 60]).summary;
        assert_eq!(summary.ns_per_block, [Some(20.0), Some(50.0), Some(15.0)]);
        assert_eq!(summary.block_ops, 10);
        assert_eq!(summary.block_ops_per_s, 10.0 / 200e-9);
    }

    #[test]
    fn undisturbed_takes_the_fastest_of_every_operation() {
        let all = [
            repetition([40, 20, 30, 50, 60]),
            repetition([20, 40, 90, 25, 30]),
        ];
        let summary = undisturbed(&small(), &all, 1.0).unwrap();
        assert_eq!(summary.block_ops_per_s, 10.0 / 125e-9);
        assert!(undisturbed(&small(), &all[..1], 1.0).is_none());
    }
}
