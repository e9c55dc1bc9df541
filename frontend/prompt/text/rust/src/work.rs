//! The time limit of calls of this thread.
//!
//! A body of a megabyte can cost minutes, and neither its size nor what it looks like tells
//! beforehand. So the caller says how long a call may take, and loops over a client's text call
//! `step` now and then. When the time is over, `step` unwinds the stack up to the C interface,
//! which makes an error of it: the libraries in between (the template engine above all) cannot be
//! stopped otherwise.
//!
//! *Cost*: a counter of the thread; the clock is read at every 1,024th step. Calls between two
//! steps must end soon by themselves: `tokenizers` is given texts of a bounded size.

use std::cell::Cell;
use std::time::{Duration, Instant};

const STEPS_BETWEEN_LOOKS: u32 = 1024;

thread_local! {
    // None: the thread has no limit.
    static UNTIL: Cell<Option<Instant>> = const { Cell::new(None) };
    // Steps since the thread began; never reset, so that many short calls look at the clock, too.
    static STEPS: Cell<u32> = const { Cell::new(0) };
}

/// The payload of the unwinding; the C interface makes "deadline exceeded" of it (lib.rs,
/// `guarded`).
pub struct Spent;

/// From now on this thread's calls may take `limit` together.
pub fn begin(limit: Duration) {
    UNTIL.with(|until| until.set(Instant::now().checked_add(limit)));
}

/// This thread's calls have no limit any more.
pub fn end() {
    UNTIL.with(|until| until.set(None));
}

#[inline]
pub fn step() {
    STEPS.with(|steps| {
        steps.set(steps.get().wrapping_add(1));
        if steps.get() % STEPS_BETWEEN_LOOKS == 0 {
            look();
        }
    });
}

/// A step that looks at the clock, for what takes long by itself.
pub fn look() {
    if UNTIL.with(Cell::get).is_some_and(|until| Instant::now() >= until) {
        std::panic::resume_unwind(Box::new(Spent)); // says nothing on standard error, as a panic does
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::panic::{catch_unwind, AssertUnwindSafe};

    fn is_stopped(body: impl FnOnce()) -> bool {
        catch_unwind(AssertUnwindSafe(body)).is_err_and(|panic| panic.is::<Spent>())
    }

    fn steps() {
        (0..=STEPS_BETWEEN_LOOKS).for_each(|_| step());
    }

    #[test]
    fn what_is_done_in_time_is_not_stopped() {
        begin(Duration::from_secs(3600));
        assert!(!is_stopped(steps));
        end();
    }

    #[test]
    fn what_is_not_is_stopped_until_the_end() {
        begin(Duration::ZERO);
        assert!(is_stopped(steps));
        assert!(is_stopped(steps));
        end();
        assert!(!is_stopped(steps));
    }
}
