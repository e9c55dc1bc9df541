//! What every peer must be able to do to be measured.

use crate::ops::Op;

/// A worker and how many leading blocks of the query it holds.
pub type Overlap = (u32, u32);

/// An index behind its own interface, with its own types for queries and events.
pub trait Structure: Sized + 'static {
    type Query: Send + 'static;
    type Event: Send + 'static;

    fn query(&self, op: &Op) -> Self::Query;
    fn event(&self, op: &Op) -> Self::Event;

    /// The measured lookup: builds and drops the peer's own result, returns its size. `room` is
    /// for a peer that writes into its caller's memory. REQUIRES: `query` was not asked before,
    /// where `QUERIES_ARE_USED_UP`.
    fn find(&self, query: &mut Self::Query, room: &mut Vec<Overlap>) -> usize;
    const QUERIES_ARE_USED_UP: bool = false;

    /// The same answer in full, unmeasured.
    fn overlaps(&self, query: Self::Query) -> Vec<Overlap>;

    /// Applies the events of `source` on this thread until it has no more, and gives it back.
    /// What the peer keeps per event thread lives as long as this call.
    fn feed<S: Source<Self>>(&self, source: S) -> S;

    /// The upkeep that a deployment would run every few minutes.
    fn clean_up(&self) {}
}

/// Where events come from. A structure calls `next`, gets ready, calls `handed_over`, applies the
/// event, and calls `next` again: between the last two calls its own code runs and nothing else.
pub trait Source<I: Structure>: Send + 'static {
    fn next(&mut self, index: &I) -> Option<I::Event>;
    fn handed_over(&mut self) {}
}
