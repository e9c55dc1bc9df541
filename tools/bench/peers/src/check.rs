//! Are the answers right? Compared with one hash set of held blocks per worker.

use std::sync::Arc;

use rustc_hash::{FxHashMap, FxHashSet};

use crate::json::Object;
use crate::ops::{Kind, Op, Ops};
use crate::structure::{Source, Structure};

/// What each worker holds, by sequence hash.
pub struct Truth {
    pub held: Vec<FxHashSet<u64>>,
}

impl Truth {
    pub fn new(workers: u32) -> Truth {
        Truth {
            held: vec![FxHashSet::default(); workers as usize],
        }
    }

    pub fn apply(&mut self, op: &Op) {
        let held = &mut self.held[op.worker as usize];
        match op.kind {
            Kind::Query => {}
            Kind::Store => held.extend(op.blocks().map(|(_, seq)| seq)),
            Kind::Remove => op.removed().iter().for_each(|seq| {
                held.remove(seq);
            }),
            Kind::Clear => held.clear(),
        }
    }

    /// How many leading blocks of `query` each worker holds.
    pub fn overlaps<'a>(&'a self, query: &'a Op) -> impl Iterator<Item = u32> + 'a {
        let leading = |held: &FxHashSet<u64>| {
            query
                .blocks()
                .take_while(|(_, seq)| held.contains(seq))
                .count()
        };
        self.held.iter().map(move |held| leading(held) as u32)
    }
}

/// The stream with every n-th query compared.
struct Checking {
    ops: Arc<Ops>,
    at: usize,
    truth: Truth,
    every: usize,
    queries: usize,
    checked_queries: u64,
    checked: u64,
    over: u64,
    under: u64,
    over_blocks: u64,
    under_blocks: u64,
}

impl Checking {
    fn compare(&mut self, query: usize, answer: Vec<(u32, u32)>) {
        let mut answer: FxHashMap<u32, u32> = answer.into_iter().collect();
        let op = self.ops.get(query);
        self.checked_queries += 1;
        for (worker, truth) in self.truth.overlaps(&op).enumerate() {
            let told = answer.remove(&(worker as u32)).unwrap_or(0);
            self.checked += u64::from(truth > 0 || told > 0);
            self.over += u64::from(told > truth);
            self.under += u64::from(told < truth);
            self.over_blocks += u64::from(told.saturating_sub(truth));
            self.under_blocks += u64::from(truth.saturating_sub(told));
        }
        // What is left is no worker of the file.
        self.checked += answer.len() as u64;
        self.over += answer.len() as u64;
    }
}

impl<I: Structure> Source<I> for Checking {
    fn next(&mut self, index: &I) -> Option<I::Event> {
        let ops = self.ops.clone();
        while self.at < ops.len() {
            let number = self.at;
            let op = ops.get(number);
            self.at += 1;
            if !op.is_query() {
                self.truth.apply(&op);
                return Some(index.event(&op));
            }
            self.queries += 1;
            if self.queries % self.every == 0 {
                self.compare(number, index.overlaps(index.query(&op)));
            }
        }
        None
    }
}

/// Compares about `samples` queries, evenly over the stream.
pub fn run<I: Structure>(make: &impl Fn() -> I, ops: &Arc<Ops>, samples: usize) -> Object {
    let queries = ops.iter().filter(|op| op.is_query()).count();
    let checking = Checking {
        ops: ops.clone(),
        at: 0,
        truth: Truth::new(ops.workers),
        every: (queries / samples).max(1),
        queries: 0,
        checked_queries: 0,
        checked: 0,
        over: 0,
        under: 0,
        over_blocks: 0,
        under_blocks: 0,
    };
    let done = make().feed(checking);
    Object::new()
        .count("checked_queries", done.checked_queries)
        .count("checked", done.checked)
        .count("over", done.over)
        .count("under", done.under)
        .count("over_blocks", done.over_blocks)
        .count("under_blocks", done.under_blocks)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::tests::small;

    #[test]
    fn truth_stops_at_a_hole() {
        let ops = small();
        let mut truth = Truth::new(ops.workers);
        (0..3).for_each(|number| truth.apply(&ops.get(number)));
        assert_eq!(truth.overlaps(&ops.get(2)).collect::<Vec<_>>(), [0, 3]);
        truth.apply(&ops.get(3));
        assert_eq!(truth.overlaps(&ops.get(4)).collect::<Vec<_>>(), [0, 1]);
    }

    /// Every peer answers the small stream, so every way of driving one works; nothing does not.
    #[test]
    fn peers_answer_and_nothing_is_noticed() {
        fn figures<I: Structure>(make: impl Fn() -> I) -> String {
            run(&make, &Arc::new(small()), 10).to_string()
        }
        let right = r#""checked":2,"over":0,"under":0"#;
        assert!(figures(crate::dynamo::Loop::crtc).contains(right));
        assert!(figures(crate::dynamo::Radix::new).contains(right));
        assert!(figures(|| crate::smg::Chain::<true>::new(2)).contains(right));
        assert!(figures(|| crate::null::Null).contains(r#""under":2"#));
    }
}
