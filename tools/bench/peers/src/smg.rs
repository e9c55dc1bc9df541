//! SMG's chain index (crate `kv-index`).
//!
//! One index takes 1,024 workers at most; more are spread over as few shards as they need, which
//! every query then visits. With one shard this is `ChainIndex` behind one branch.

use kv_index::{ChainBlockMap, ContentHash, SequenceHash, ShardedChainIndex, StoredBlock};
use rustc_hash::FxHashMap;

use crate::ops::{Kind, Op};
use crate::structure::{Overlap, Source, Structure};

const WORKERS_PER_SHARD_MAX: usize = 1024;

/// `INTO`: results go into the caller's memory (`score_into`), else into a map (`find_matches`).
pub struct Chain<const INTO: bool> {
    index: ShardedChainIndex,
    /// Theirs by ours, and back.
    ids: Vec<u32>,
    workers: FxHashMap<u32, u32>,
}

impl<const INTO: bool> Chain<INTO> {
    pub fn new(workers: u32) -> Self {
        let count = workers as usize;
        let shards = count.div_ceil(WORKERS_PER_SHARD_MAX).max(1);
        let index = ShardedChainIndex::new(shards, count.div_ceil(shards));
        let intern = |worker: usize| {
            let name = format!("http://worker-{worker}:8000");
            index
                .intern_worker_in(worker % shards, &name)
                .expect("room for every worker")
        };
        let ids: Vec<u32> = (0..count).map(intern).collect();
        let workers = std::iter::zip(ids.iter().copied(), 0..).collect();
        Chain {
            index,
            ids,
            workers,
        }
    }

    fn apply(&self, event: &Event, map: &mut ChainBlockMap) {
        let id = self.ids[event.worker as usize];
        match &event.change {
            // Only a store whose parent was evicted fails; a router drops it, too.
            Change::Store(blocks, parent) => {
                let _ = self.index.apply_stored(id, blocks, *parent, map);
            }
            Change::Remove(blocks) => self.index.apply_removed(id, blocks, map),
            Change::Clear => self.index.apply_cleared(id, map),
        }
    }
}

pub struct Event {
    worker: u32,
    change: Change,
}

enum Change {
    Store(Vec<StoredBlock>, Option<SequenceHash>),
    Remove(Vec<SequenceHash>),
    Clear,
}

impl<const INTO: bool> Structure for Chain<INTO> {
    type Query = Vec<ContentHash>;
    type Event = Event;

    fn query(&self, op: &Op) -> Self::Query {
        op.blocks().map(|(local, _)| ContentHash(local)).collect()
    }

    fn event(&self, op: &Op) -> Event {
        let block = |(local, seq)| StoredBlock {
            seq_hash: SequenceHash(seq),
            content_hash: ContentHash(local),
        };
        let change = match op.kind {
            Kind::Store => Change::Store(
                op.blocks().map(block).collect(),
                op.parent.map(SequenceHash),
            ),
            Kind::Remove => {
                Change::Remove(op.removed().iter().copied().map(SequenceHash).collect())
            }
            _ => Change::Clear,
        };
        Event {
            worker: op.worker,
            change,
        }
    }

    #[inline]
    fn find(&self, query: &mut Self::Query, room: &mut Vec<Overlap>) -> usize {
        if INTO {
            room.clear();
            self.index.score_into(
                query,
                |block| block.0,
                false,
                |id, depth| room.push((id, depth)),
            );
            room.len()
        } else {
            self.index.find_matches(query, false).scores.len()
        }
    }

    fn overlaps(&self, query: Self::Query) -> Vec<Overlap> {
        let mut overlaps = vec![];
        let mut tell = |id: u32, depth: u32| overlaps.push((self.workers[&id], depth));
        if INTO {
            self.index.score_into(&query, |block| block.0, false, tell);
        } else {
            let found = self.index.find_matches(&query, false).scores;
            found.iter().for_each(|(&id, &depth)| tell(id, depth));
        }
        overlaps
    }

    fn feed<S: Source<Self>>(&self, mut source: S) -> S {
        let mut maps: Vec<ChainBlockMap> = self.ids.iter().map(|_| ChainBlockMap::new()).collect();
        while let Some(event) = source.next(self) {
            source.handed_over();
            self.apply(&event, &mut maps[event.worker as usize]);
        }
        source
    }
}
