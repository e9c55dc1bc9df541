//! One thread, the operations in order, each timed by itself.

use std::sync::Arc;

use crate::clock::{ns_per_tick, ticks};
use crate::json::{self, Object, Percentiles};
use crate::ops::{Kind, Ops};
use crate::structure::{Overlap, Source, Structure};

enum Step<I: Structure> {
    Query(I::Query, u64),
    Event(Option<I::Event>, Kind, u64),
}

/// Time and block ops of one kind of operation.
#[derive(Clone, Copy, Default)]
struct Sum {
    ticks: u64,
    blocks: u64,
}

struct Stream<I: Structure> {
    steps: Vec<Step<I>>,
    at: usize,
    /// The event that is being applied, and since when.
    open: Option<(Kind, u64)>,
    since: u64,
    sums: [Sum; 4],
    latencies: Vec<u32>,
    results: u64,
    room: Vec<Overlap>,
}

impl<I: Structure> Stream<I> {
    fn new(index: &I, ops: &Ops) -> Self {
        let step = |op: crate::ops::Op| match op.kind {
            Kind::Query => Step::Query(index.query(&op), op.count()),
            kind => Step::Event(Some(index.event(&op)), kind, op.count()),
        };
        Stream {
            steps: ops.iter().map(step).collect(),
            at: 0,
            open: None,
            since: 0,
            sums: Default::default(),
            latencies: Vec::with_capacity(ops.len()),
            results: 0,
            room: Vec::with_capacity(ops.workers as usize),
        }
    }

    fn add(&mut self, kind: Kind, ticks: u64, blocks: u64) {
        let sum = &mut self.sums[kind as usize];
        sum.ticks += ticks;
        sum.blocks += blocks;
    }
}

impl<I: Structure> Source<I> for Stream<I> {
    fn next(&mut self, index: &I) -> Option<I::Event> {
        if let Some((kind, blocks)) = self.open.take() {
            self.add(kind, ticks() - self.since, blocks);
        }
        loop {
            let step = self.steps.get_mut(self.at)?;
            self.at += 1;
            match step {
                Step::Query(query, blocks) => {
                    let begin = ticks();
                    let results = index.find(query, &mut self.room);
                    let took = ticks() - begin;
                    let blocks = *blocks;
                    self.results += results as u64;
                    self.latencies.push(took.min(u32::MAX.into()) as u32);
                    self.add(Kind::Query, took, blocks);
                }
                Step::Event(event, kind, blocks) => {
                    self.open = Some((*kind, *blocks));
                    return event.take();
                }
            }
        }
    }

    fn handed_over(&mut self) {
        self.since = ticks();
    }
}

struct Repetition {
    block_ops: u64,
    block_ops_per_s: f64,
    ns_per_block: [Option<f64>; 3],
    results_per_query: Option<f64>,
    query: Percentiles,
}

const KINDS: [Kind; 3] = [Kind::Store, Kind::Remove, Kind::Query];

fn repeat_once<I: Structure>(make: &impl Fn() -> I, ops: &Ops) -> Repetition {
    let index = make();
    let stream = Stream::new(&index, ops);
    let ns = ns_per_tick();
    let mut done = index.feed(stream);
    let block_ops: u64 = done.sums.iter().map(|sum| sum.blocks).sum();
    let all_ns = done.sums.iter().map(|sum| sum.ticks).sum::<u64>() as f64 * ns;
    let per_block = |kind: Kind| {
        let sum = done.sums[kind as usize];
        (sum.blocks > 0).then(|| sum.ticks as f64 * ns / sum.blocks as f64)
    };
    let queries = done.latencies.len();
    Repetition {
        block_ops,
        block_ops_per_s: block_ops as f64 / all_ns * 1e9,
        ns_per_block: KINDS.map(per_block),
        results_per_query: (queries > 0).then(|| done.results as f64 / queries as f64),
        query: Percentiles::of(&mut done.latencies, ns),
    }
}

/// Every column's best of `repeat`, the first left out where there are more.
pub fn run<I: Structure>(make: &impl Fn() -> I, ops: &Arc<Ops>, repeat: usize) -> Object {
    let all: Vec<Repetition> = (0..repeat).map(|_| repeat_once(make, ops)).collect();
    let rates: Vec<f64> = all.iter().map(|one| one.block_ops_per_s).collect();
    let warm = json::warm(&all).iter();
    let ns = |kind: usize| json::lowest(warm.clone().map(|one| one.ns_per_block[kind]));
    Object::new()
        .text("mode", "seq")
        .count("event_threads", 1u64)
        .count("query_threads", 1u64)
        .count("block_ops", all[0].block_ops)
        .append(json::rates(&rates))
        .figure("ns_per_stored_block", ns(0))
        .figure("ns_per_removed_block", ns(1))
        .figure("ns_per_query_block", ns(2))
        .object(
            "query_ns",
            Percentiles::best(warm.clone().map(|one| one.query)),
        )
        .figure("results_per_query", all[0].results_per_query)
}
