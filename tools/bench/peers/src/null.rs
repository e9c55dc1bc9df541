//! Does nothing: what the harness itself costs.

use std::hint::black_box;

use crate::ops::{Kind, Op};
use crate::structure::{Overlap, Source, Structure};

pub struct Null;

impl Structure for Null {
    type Query = Vec<u64>;
    type Event = Vec<u64>;

    fn query(&self, op: &Op) -> Vec<u64> {
        op.blocks().map(|(local, _)| local).collect()
    }

    fn event(&self, op: &Op) -> Vec<u64> {
        match op.kind {
            Kind::Remove => op.removed().to_vec(),
            _ => op.blocks().map(|(_, seq)| seq).collect(),
        }
    }

    fn find(&self, query: &mut Vec<u64>, _room: &mut Vec<Overlap>) -> usize {
        black_box(query);
        0
    }

    fn overlaps(&self, _query: Vec<u64>) -> Vec<Overlap> {
        vec![]
    }

    fn feed<S: Source<Self>>(&self, mut source: S) -> S {
        while let Some(event) = source.next(self) {
            source.handed_over();
            black_box(&event);
        }
        source
    }
}
