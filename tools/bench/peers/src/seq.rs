//! One thread, the operations in order, each timed by itself.
//!
//! Two figures of the same passes, as `index_bench` has them: of all operations, from an empty
//! index on (cold), and of the second half alone (steady: the index has what the first half left).

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
    /// Processor time and results when the first operation of the second half is next.
    at_middle: Option<(Option<f64>, usize)>,
    room: Vec<Overlap>,
}

/// The number of the operation with which the second half begins.
fn middle(ops: &Ops) -> usize {
    ops.len() / 2
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
            at_middle: None,
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
            if self.took.len() >= self.steps.len() / 2 && self.at_middle.is_none() {
                self.at_middle = Some((cpu_seconds(), self.results));
            }
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

/// What the times of some operations say together.
struct Summary {
    block_ops: u64,
    block_ops_per_s: f64,
    /// Of `KINDS`.
    ns_per_block: [Option<f64>; 3],
    query: Percentiles,
}

const KINDS: [Kind; 3] = [Kind::Store, Kind::Remove, Kind::Query];

impl Summary {
    /// Of the operations from number `first` on.
    fn of(ops: &Ops, took: &[u64], first: usize, ns: f64) -> Summary {
        let (mut ticks, mut blocks) = ([0; 4], [0; 4]);
        let mut latencies = vec![];
        for (op, &took) in std::iter::zip(ops.iter(), took).skip(first) {
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
    /// Entries of all answers to the operations of the first half, and of all.
    results: [usize; 2],
    /// Processor time when it began, at the middle, at the end.
    cpu: [Option<f64>; 3],
}

fn repeat_once<I: Structure>(make: &impl Fn() -> I, ops: &Ops) -> Repetition {
    let index = make();
    let stream = Stream::new(&index, ops);
    let begin = cpu_seconds();
    let done = index.feed(stream);
    let (cpu_s, results) = done.at_middle.expect("a stream goes on to its end");
    Repetition {
        took: done.took,
        results: [results, done.results],
        cpu: [begin, cpu_s, cpu_seconds()],
    }
}

/// Of every operation its fastest time in any repetition. Each does the same to the same state, so
/// what remains is the structure without the machine's other work. Needs two.
fn undisturbed(warm: &[Repetition]) -> Option<Vec<u64>> {
    let (first, rest) = warm.split_first().filter(|(_, rest)| !rest.is_empty())?;
    let mut fastest = first.took.clone();
    for repetition in rest {
        std::iter::zip(&mut fastest, &repetition.took).for_each(|(a, b)| *a = (*a).min(*b));
    }
    Some(fastest)
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

#[derive(Clone, Copy, PartialEq)]
pub enum Part {
    All,
    SecondHalf,
}

/// What all repetitions say of one part of the stream: every column's best, the first left out
/// where there are more.
fn part_of(part: Part, ops: &Ops, all: &[Repetition], ns: f64) -> Object {
    let half = (part == Part::SecondHalf) as usize;
    let first = half * middle(ops);
    let summaries: Vec<Summary> = all
        .iter()
        .map(|one| Summary::of(ops, &one.took, first, ns))
        .collect();
    let rates: Vec<f64> = summaries.iter().map(|one| one.block_ops_per_s).collect();
    let warm = json::warm(all);
    let per_cpu_s = std::iter::zip(warm, json::warm(&summaries))
        .filter_map(|(one, summary)| {
            let cpu = one.cpu[half]
                .zip(one.cpu[2])
                .map(|(begin, end)| end - begin);
            cpu.map(|cpu| summary.block_ops as f64 / cpu)
        })
        .max_by(f64::total_cmp);
    let queries = ops.iter().skip(first).filter(|op| op.is_query()).count();
    let results = all[0].results[1] - half * all[0].results[0];
    let object = Object::new()
        .count("block_ops", summaries[0].block_ops)
        .append(json::rates(&rates))
        .figure("block_ops_per_cpu_s", per_cpu_s)
        .append(columns(json::warm(&summaries).iter()))
        .figure(
            "results_per_query",
            (queries > 0).then(|| results as f64 / queries as f64),
        );
    match undisturbed(warm).map(|took| Summary::of(ops, &took, first, ns)) {
        None => object,
        Some(summary) => object.object(
            "undisturbed",
            Object::new()
                .figure("block_ops_per_s", Some(summary.block_ops_per_s))
                .append(columns(std::iter::once(&summary))),
        ),
    }
}

/// `repeat` passes. Of `Part::All` the line says what the second half took beside the whole, else
/// it is of the second half alone.
pub fn run<I: Structure>(
    make: &impl Fn() -> I,
    ops: &Arc<Ops>,
    repeat: usize,
    part: Part,
) -> Object {
    let ns = ns_per_tick();
    let all: Vec<Repetition> = (0..repeat).map(|_| repeat_once(make, ops)).collect();
    let of = |part| part_of(part, ops, &all, ns);
    let head = |mode| {
        Object::new()
            .text("mode", mode)
            .count("event_threads", 1u64)
            .count("query_threads", 1u64)
    };
    match part {
        Part::All => head("seq")
            .append(of(part))
            .object("steady", of(Part::SecondHalf)),
        Part::SecondHalf => head("steady").append(of(part)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::tests::small;

    fn repetition(took: [u64; 5]) -> Repetition {
        Repetition {
            took: took.to_vec(),
            results: [1, 4],
            cpu: [Some(1.0), Some(2.0), Some(4.0)],
        }
    }

    #[test]
    fn times_are_summed_by_kind() {
        // store 2, store 1, query 3, remove 1, query 3
        let summary = Summary::of(&small(), &[40, 20, 30, 50, 60], 0, 1.0);
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
        assert_eq!(undisturbed(&all).unwrap(), [20, 20, 30, 25, 30]);
        assert!(undisturbed(&all[..1]).is_none());
    }

    #[test]
    fn steady_counts_the_operations_of_the_second_half_only() {
        // Of the five the last three: query 3, remove 1, query 3.
        let all = [repetition([4000, 2000, 30, 50, 60])];
        let steady = part_of(Part::SecondHalf, &small(), &all, 1.0).to_string();
        assert!(
            steady.contains(r#""block_ops":7,"block_ops_per_s":50000000.00,"#),
            "{steady}"
        );
        assert!(
            steady.contains(r#""block_ops_per_cpu_s":3.50,"#),
            "{steady}"
        );
        assert!(
            steady.contains(r#""ns_per_stored_block":null,"#),
            "{steady}"
        );
        assert!(steady.contains(r#""results_per_query":1.50"#), "{steady}");
        let cold = part_of(Part::All, &small(), &all, 1.0).to_string();
        assert!(cold.contains(r#""block_ops":10,"#), "{cold}");
        assert!(cold.contains(r#""block_ops_per_cpu_s":3.33,"#), "{cold}");
        assert!(cold.contains(r#""results_per_query":2.00"#), "{cold}");
    }

    #[test]
    fn both_parts_come_from_the_same_passes() {
        let ops = Arc::new(small());
        let seq = run(&|| crate::null::Null, &ops, 3, Part::All).to_string();
        assert!(seq.starts_with(r#"{"mode":"seq","#), "{seq}");
        assert!(seq.contains(r#""block_ops":10,"#), "{seq}");
        assert!(seq.contains(r#""steady":{"block_ops":7,"#), "{seq}");
        let steady = run(&|| crate::null::Null, &ops, 1, Part::SecondHalf).to_string();
        assert!(steady.starts_with(r#"{"mode":"steady","#), "{steady}");
        assert!(steady.contains(r#""block_ops":7,"#), "{steady}");
    }
}
