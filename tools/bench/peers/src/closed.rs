//! Event threads and query threads as fast as they can.
//!
//! 1. The first half of the stream is applied, unmeasured and without queries.
//! 2. All threads meet; then the second half's events are applied against a loop over the second
//!    half's queries.
//! 3. The window ends when the last event is applied.
//!
//! A worker's events stay in order on one thread. Producers cost nothing: everything is converted
//! before. That is kinder to the peers than reality.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Barrier};
use std::time::Instant;
use std::vec::IntoIter;

use crate::clock::{ns_per_tick, ticks};
use crate::json::{self, Object, Percentiles};
use crate::ops::Ops;
use crate::structure::{Source, Structure};

/// Latencies kept per query thread; the queries after them are counted, not kept.
const LATENCIES_MAX: usize = 1 << 22;

struct Window {
    gate: Barrier,
    lanes_running: AtomicUsize,
}

struct Lane<I: Structure> {
    events: IntoIter<I::Event>,
    /// Events of the first half still to come.
    unmeasured: usize,
    window: Arc<Window>,
    begin: Option<Instant>,
    seconds: f64,
}

impl<I: Structure> Source<I> for Lane<I> {
    fn next(&mut self, _index: &I) -> Option<I::Event> {
        if self.unmeasured > 0 {
            self.unmeasured -= 1;
            return self.events.next();
        }
        let window = &self.window;
        let begin = self.begin.get_or_insert_with(|| {
            window.gate.wait();
            Instant::now()
        });
        let event = self.events.next();
        if event.is_none() {
            self.seconds = begin.elapsed().as_secs_f64();
            window.lanes_running.fetch_sub(1, Relaxed);
        }
        event
    }
}

struct Asked {
    latencies: Vec<u32>,
    blocks: u64,
    queries: u64,
    seconds: f64,
}

fn ask<I: Structure>(
    index: &I,
    mut queries: Vec<(I::Query, u64)>,
    begin_at: usize,
    window: &Window,
) -> Asked {
    let mut latencies = Vec::with_capacity(LATENCIES_MAX);
    let mut room = vec![];
    let (mut blocks, mut asked) = (0, 0);
    let mut at = begin_at;
    window.gate.wait();
    let begin = Instant::now();
    while window.lanes_running.load(Relaxed) > 0 && !queries.is_empty() {
        let (query, count) = &mut queries[at];
        let start = ticks();
        std::hint::black_box(index.find(query, &mut room));
        let took = ticks() - start;
        if latencies.len() < LATENCIES_MAX {
            latencies.push(took.min(u32::MAX.into()) as u32);
        }
        blocks += *count;
        asked += 1;
        at = (at + 1) % queries.len();
    }
    Asked {
        latencies,
        blocks,
        queries: asked,
        seconds: begin.elapsed().as_secs_f64(),
    }
}

struct Repetition {
    block_ops: u64,
    event_rate: f64,
    query_rate: f64,
    queries_per_s: f64,
    window_s: f64,
    query: Percentiles,
}

fn repeat_once<I: Structure + Send + Sync>(
    index: Arc<I>,
    ops: &Ops,
    event_threads: usize,
    query_threads: usize,
) -> Repetition {
    let middle = ops.len() / 2;
    let window = Arc::new(Window {
        gate: Barrier::new(event_threads + query_threads),
        lanes_running: AtomicUsize::new(event_threads),
    });
    let mut events: Vec<Vec<I::Event>> = (0..event_threads).map(|_| vec![]).collect();
    let mut unmeasured = vec![0; event_threads];
    let mut event_blocks = 0;
    for (number, op) in ops.iter().enumerate().filter(|(_, op)| !op.is_query()) {
        let lane = op.worker as usize % event_threads;
        events[lane].push(index.event(&op));
        if number < middle {
            unmeasured[lane] += 1;
        } else {
            event_blocks += op.count();
        }
    }
    let second_half = || {
        (middle..ops.len())
            .map(|number| ops.get(number))
            .filter(|op| op.is_query())
    };
    let ns = ns_per_tick();

    let (seconds, asked) = std::thread::scope(|scope| {
        let query_side: Vec<_> = (0..query_threads)
            .map(|thread| {
                let queries: Vec<_> = second_half()
                    .map(|op| (index.query(&op), op.count()))
                    .collect();
                let begin_at = queries.len() * thread / query_threads;
                let (index, window) = (&index, &window);
                scope.spawn(move || ask(&**index, queries, begin_at, window))
            })
            .collect();
        let event_side: Vec<_> = std::iter::zip(events, unmeasured)
            .map(|(events, unmeasured)| {
                let (index, window) = (&index, window.clone());
                let events = events.into_iter();
                let lane = Lane {
                    events,
                    unmeasured,
                    window,
                    begin: None,
                    seconds: 0.0,
                };
                scope.spawn(move || index.feed::<Lane<I>>(lane).seconds)
            })
            .collect();
        let seconds = event_side
            .into_iter()
            .map(|thread| thread.join().expect("panics abort"));
        let seconds = seconds.fold(0.0, f64::max);
        let asked = query_side
            .into_iter()
            .map(|thread| thread.join().expect("panics abort"));
        (seconds, asked.collect::<Vec<Asked>>())
    });

    let event_rate = event_blocks as f64 / seconds;
    let query_rate = asked
        .iter()
        .map(|thread| thread.blocks as f64 / thread.seconds)
        .sum();
    let queries_per_s = asked
        .iter()
        .map(|thread| thread.queries as f64 / thread.seconds)
        .sum();
    let query_blocks: u64 = asked.iter().map(|thread| thread.blocks).sum();
    let mut latencies: Vec<u32> = asked
        .into_iter()
        .flat_map(|thread| thread.latencies)
        .collect();
    Repetition {
        block_ops: event_blocks + query_blocks,
        event_rate,
        query_rate,
        queries_per_s,
        window_s: seconds,
        query: Percentiles::of(&mut latencies, ns),
    }
}

/// Every column's best of `repeat`, the first left out where there are more.
pub fn run<I: Structure + Send + Sync>(
    make: impl Fn() -> I,
    ops: &Arc<Ops>,
    event_threads: usize,
    query_threads: usize,
    repeat: usize,
) -> Object {
    const { assert!(!I::QUERIES_ARE_USED_UP, "queries are asked again and again") };
    let once = |_| repeat_once(Arc::new(make()), ops, event_threads, query_threads);
    let all: Vec<Repetition> = (0..repeat).map(once).collect();
    let rates: Vec<f64> = all
        .iter()
        .map(|one| one.event_rate + one.query_rate)
        .collect();
    let warm = json::warm(&all).iter();
    let highest = |rate: fn(&Repetition) -> f64| warm.clone().map(rate).max_by(f64::total_cmp);
    Object::new()
        .text("mode", "closed")
        .count("event_threads", event_threads as u64)
        .count("query_threads", query_threads as u64)
        .count("block_ops", all[0].block_ops)
        .append(json::rates(&rates))
        .figure("event_block_ops_per_s", highest(|one| one.event_rate))
        .figure("query_block_ops_per_s", highest(|one| one.query_rate))
        .figure("queries_per_s", highest(|one| one.queries_per_s))
        .figure("window_s", highest(|one| one.window_s))
        .object(
            "query_ns",
            Percentiles::best(warm.clone().map(|one| one.query)),
        )
}
