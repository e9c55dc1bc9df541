//! Dynamo's indexes (crate `dynamo-kv-router`).

use std::cell::RefCell;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Wake, Waker};

use dynamo_kv_router::indexer::positional::{LevelIndex, SearchMode};
use dynamo_kv_router::indexer::{KvIndexerMetrics, WorkerTask};
use dynamo_kv_router::protocols::{
    ExternalSequenceBlockHash, KvCacheEvent, KvCacheEventData, KvCacheRemoveData, KvCacheStoreData,
    KvCacheStoredBlockData, LocalBlockHash, OverlapScores, RouterEvent, WorkerWithDpRank,
};
use dynamo_kv_router::{ConcurrentRadixTreeCompressed, PositionalIndexer, RadixTree, SyncIndexer};
use flume::{Receiver, Sender};
use rustc_hash::FxHashMap;
use tokio::sync::oneshot;

use crate::ops::{Kind, Op};
use crate::structure::{Overlap, Source, Structure};

type Query = Vec<LocalBlockHash>;

fn query_of(op: &Op) -> Query {
    op.blocks()
        .map(|(local, _)| LocalBlockHash(local))
        .collect()
}

fn event_of(op: &Op) -> RouterEvent {
    let block = |(local, seq)| KvCacheStoredBlockData {
        block_hash: ExternalSequenceBlockHash(seq),
        tokens_hash: LocalBlockHash(local),
        mm_extra_info: None,
    };
    let data = match op.kind {
        Kind::Store => KvCacheEventData::Stored(KvCacheStoreData {
            parent_hash: op.parent.map(ExternalSequenceBlockHash),
            start_position: None,
            blocks: op.blocks().map(block).collect(),
        }),
        Kind::Remove => KvCacheEventData::Removed(KvCacheRemoveData {
            block_hashes: op
                .removed()
                .iter()
                .copied()
                .map(ExternalSequenceBlockHash)
                .collect(),
        }),
        _ => KvCacheEventData::Cleared,
    };
    RouterEvent::new(
        op.worker.into(),
        KvCacheEvent {
            event_id: 0,
            data,
            dp_rank: 0,
        },
    )
}

fn overlaps_of(found: OverlapScores) -> Vec<Overlap> {
    found
        .scores
        .iter()
        .map(|(worker, &depth)| (worker.worker_id as u32, depth))
        .collect()
}

/// An index that applies events in a loop of its own, run on the calling thread.
///
/// The concurrent tree applies events only in `SyncIndexer::worker`, which reads a channel; its
/// way of applying one is private. So the loop runs here, and control comes back between events:
///
/// 1. `Relay::step` puts an event into the channel, and behind it a `Flush` whose acknowledgement
///    it has polled once, so that the acknowledgement wakes the relay.
/// 2. The loop applies the event and acknowledges the flush, which calls `Relay::wake` there and
///    then, on this thread: step again.
/// 3. When there is no event left, `Terminate` ends the loop.
///
/// No second thread, no context switch. What it adds to a measured event are two receives from a
/// filled channel and an acknowledgement; `peers_null_loop` shows how much.
pub struct Loop<T> {
    backend: Arc<T>,
}

impl Loop<ConcurrentRadixTreeCompressed> {
    pub fn crtc() -> Self {
        Loop {
            backend: Arc::new(ConcurrentRadixTreeCompressed::new()),
        }
    }
}

impl Loop<NullBackend> {
    pub fn null() -> Self {
        Loop {
            backend: Arc::new(NullBackend),
        }
    }
}

struct Relay<T, S> {
    index: Loop<T>,
    tasks: Sender<WorkerTask>,
    // One thread uses it; the lock is what lets a waker hold it.
    turn: Mutex<Turn<S>>,
}

struct Turn<S> {
    source: S,
    /// The acknowledgement to come, and the one before, which is being sent and freed next time.
    acknowledgements: [Option<oneshot::Receiver<()>>; 2],
}

impl<T: SyncIndexer, S: Source<Loop<T>>> Relay<T, S> {
    fn step(self: &Arc<Self>) {
        let mut turn = self.turn.lock().expect("panics abort");
        let Some(event) = turn.source.next(&self.index) else {
            self.send(WorkerTask::Terminate);
            return;
        };
        let (sender, mut acknowledgement) = oneshot::channel();
        let waker = Waker::from(self.clone());
        let polled = Pin::new(&mut acknowledgement).poll(&mut Context::from_waker(&waker));
        assert!(polled.is_pending(), "nothing was sent yet");
        turn.acknowledgements.swap(0, 1);
        turn.acknowledgements[0] = Some(acknowledgement);
        drop(waker);
        self.send(WorkerTask::Event(event));
        self.send(WorkerTask::Flush(sender));
        if self.index.backend.try_schedule_cleanup() {
            self.send(WorkerTask::CleanupStaleChildren);
        }
        turn.source.handed_over();
    }

    fn send(&self, task: WorkerTask) {
        self.tasks.send(task).expect("the loop holds the other end");
    }
}

impl<T: SyncIndexer, S: Source<Loop<T>>> Wake for Relay<T, S> {
    fn wake(self: Arc<Self>) {
        self.step();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.step();
    }
}

impl<T: SyncIndexer> Structure for Loop<T> {
    type Query = Query;
    type Event = RouterEvent;

    fn query(&self, op: &Op) -> Query {
        query_of(op)
    }

    fn event(&self, op: &Op) -> RouterEvent {
        event_of(op)
    }

    #[inline]
    fn find(&self, query: &mut Query, _room: &mut Vec<Overlap>) -> usize {
        self.backend.find_matches(query, false).scores.len()
    }

    fn overlaps(&self, query: Query) -> Vec<Overlap> {
        overlaps_of(self.backend.find_matches(&query, false))
    }

    fn feed<S: Source<Self>>(&self, source: S) -> S {
        let (tasks, receiver) = flume::unbounded();
        let relay = Arc::new(Relay {
            index: Loop {
                backend: self.backend.clone(),
            },
            tasks,
            turn: Mutex::new(Turn {
                source,
                acknowledgements: [None, None],
            }),
        });
        relay.step();
        self.backend
            .worker(receiver, None)
            .expect("ends by Terminate");
        // An acknowledgement holds a waker, which holds the relay.
        relay.turn.lock().expect("panics abort").acknowledgements = [None, None];
        let relay = Arc::into_inner(relay).expect("no waker is left");
        relay.turn.into_inner().expect("panics abort").source
    }

    fn clean_up(&self) {
        self.backend.run_cleanup_task();
    }
}

/// Nothing in Dynamo's loop: what this way of driving costs.
pub struct NullBackend;

impl SyncIndexer for NullBackend {
    fn worker(
        &self,
        tasks: Receiver<WorkerTask>,
        _metrics: Option<Arc<KvIndexerMetrics>>,
    ) -> anyhow::Result<()> {
        while let Ok(task) = tasks.recv() {
            match task {
                WorkerTask::Event(event) => drop(event),
                WorkerTask::Flush(acknowledge) => drop(acknowledge.send(())),
                WorkerTask::Terminate => break,
                _ => {}
            }
        }
        Ok(())
    }

    fn find_matches(&self, _query: &[LocalBlockHash], _early_exit: bool) -> OverlapScores {
        OverlapScores::new()
    }
}

/// The single-threaded tree. A query is used up by asking it.
pub struct Radix {
    tree: RefCell<RadixTree>,
}

impl Radix {
    pub fn new() -> Radix {
        Radix {
            tree: RefCell::new(RadixTree::new()),
        }
    }
}

impl Structure for Radix {
    type Query = Query;
    type Event = RouterEvent;
    const QUERIES_ARE_USED_UP: bool = true;

    fn query(&self, op: &Op) -> Query {
        query_of(op)
    }

    fn event(&self, op: &Op) -> RouterEvent {
        event_of(op)
    }

    #[inline]
    fn find(&self, query: &mut Query, _room: &mut Vec<Overlap>) -> usize {
        self.tree
            .borrow()
            .find_matches(std::mem::take(query), false)
            .scores
            .len()
    }

    fn overlaps(&self, query: Query) -> Vec<Overlap> {
        overlaps_of(self.tree.borrow().find_matches(query, false))
    }

    fn feed<S: Source<Self>>(&self, mut source: S) -> S {
        while let Some(event) = source.next(self) {
            source.handed_over();
            // A store under an evicted parent is refused; a router logs it and goes on.
            let _ = self.tree.borrow_mut().apply_event(event);
        }
        source
    }
}

/// The index by position; jumps of 32 blocks, as its authors' default.
pub struct Positional {
    index: PositionalIndexer,
}

const JUMP: usize = 32;

impl Positional {
    pub fn new() -> Positional {
        Positional {
            index: PositionalIndexer::new_with_mode(JUMP, SearchMode::Strided),
        }
    }
}

impl Structure for Positional {
    type Query = Query;
    type Event = RouterEvent;

    fn query(&self, op: &Op) -> Query {
        query_of(op)
    }

    fn event(&self, op: &Op) -> RouterEvent {
        event_of(op)
    }

    #[inline]
    fn find(&self, query: &mut Query, _room: &mut Vec<Overlap>) -> usize {
        self.index.find_matches(query, false).scores.len()
    }

    fn overlaps(&self, query: Query) -> Vec<Overlap> {
        overlaps_of(self.index.find_matches(&query, false))
    }

    fn feed<S: Source<Self>>(&self, mut source: S) -> S {
        let mut blocks: FxHashMap<WorkerWithDpRank, LevelIndex> = FxHashMap::default();
        while let Some(event) = source.next(self) {
            source.handed_over();
            let _ = self.index.apply_event(&mut blocks, event, None);
        }
        source
    }
}
