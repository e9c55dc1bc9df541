//! How much memory does the structure keep? Anonymous resident bytes of the process, after the
//! allocator has given back what it can, less those before the structure was made.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Instant;

use crate::check::Truth;
use crate::json::Object;
use crate::ops::{Op, Ops};
use crate::structure::{Source, Structure};

unsafe extern "C" {
    fn mi_collect(force: bool);
}

/// A figure of /proc/self/status, in bytes.
fn status(name: &str) -> Option<i64> {
    let text = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = text.lines().find(|line| line.starts_with(name))?;
    Some(line.split_whitespace().nth(1)?.parse::<i64>().ok()? * 1024)
}

fn resident() -> i64 {
    // Safe: mimalloc is the global allocator, and may be asked from any thread.
    unsafe { mi_collect(true) };
    status("RssAnon:").unwrap_or(0)
}

/// Forgets the highest resident size so far; false where the kernel cannot.
fn reset_peak() -> bool {
    std::fs::write("/proc/self/clear_refs", "5").is_ok()
}

/// The stream's events, converted one by one, then one clear per worker.
struct Building {
    ops: Arc<Ops>,
    at: usize,
    cleared: u32,
    built: i64,
    peak: Option<i64>,
    clearing_since: Instant,
    clear_s: f64,
    after_clear: i64,
}

impl<I: Structure> Source<I> for Building {
    fn next(&mut self, index: &I) -> Option<I::Event> {
        while self.at < self.ops.len() {
            let op = self.ops.get(self.at);
            self.at += 1;
            if !op.is_query() {
                return Some(index.event(&op));
            }
        }
        if self.cleared == 0 {
            self.peak = status("VmHWM:");
            index.clean_up();
            self.built = resident();
            self.clearing_since = Instant::now();
        }
        if self.cleared < self.ops.workers {
            self.cleared += 1;
            return Some(index.event(&Op::clear(self.cleared - 1)));
        }
        self.clear_s = self.clearing_since.elapsed().as_secs_f64();
        index.clean_up();
        self.after_clear = resident();
        None
    }
}

pub fn run<I: Structure>(make: &impl Fn() -> I, ops: &Arc<Ops>) -> Object {
    let has_peak = reset_peak();
    let before = resident();
    let before_peak = status("VmRSS:").unwrap_or(0);
    let index = make();
    let building = Building {
        ops: ops.clone(),
        at: 0,
        cleared: 0,
        built: 0,
        peak: None,
        clearing_since: Instant::now(),
        clear_s: 0.0,
        after_clear: 0,
    };
    let done = index.feed(building);
    let (holdings, blocks) = live(ops);
    let built = (done.built - before) as f64;
    let per = |count: usize| (count > 0).then(|| built / count as f64);
    let peak = done
        .peak
        .filter(|_| has_peak)
        .map(|peak| (peak - before_peak) as f64);
    Object::new()
        .text("mode", "mem")
        .count("holdings", holdings as u64)
        .count("distinct_blocks", blocks as u64)
        .figure("bytes_built", Some(built))
        .figure("bytes_per_holding", per(holdings))
        .figure("bytes_per_block", per(blocks))
        .figure("bytes_peak", peak)
        .figure(
            "bytes_after_clear",
            Some((done.after_clear - before) as f64),
        )
        .figure("clear_s", Some(done.clear_s))
}

/// Holdings, and distinct blocks, at the end of the stream.
fn live(ops: &Ops) -> (usize, usize) {
    let mut truth = Truth::new(ops.workers);
    for op in ops.iter() {
        truth.apply(&op);
    }
    let blocks: HashSet<u64> = truth.held.iter().flatten().copied().collect();
    (truth.held.iter().map(|held| held.len()).sum(), blocks.len())
}
