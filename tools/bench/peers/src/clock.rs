//! How long did it take? The processor's counter where there is one, to resolve 100 ns.

use std::time::{Duration, Instant};

/// Ticks since some moment; earlier instructions have finished.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub fn ticks() -> u64 {
    use core::arch::x86_64::{_mm_lfence, _rdtsc};
    // Safe: every x86-64 processor has both.
    unsafe {
        _mm_lfence();
        _rdtsc()
    }
}

#[cfg(not(target_arch = "x86_64"))]
pub fn ticks() -> u64 {
    use std::sync::OnceLock;
    static START: OnceLock<Instant> = OnceLock::new();
    START.get_or_init(Instant::now).elapsed().as_nanos() as u64
}

/// Measures the counter against the clock.
pub fn ns_per_tick() -> f64 {
    let (begin, first) = (Instant::now(), ticks());
    while begin.elapsed() < Duration::from_millis(50) {}
    begin.elapsed().as_nanos() as f64 / (ticks() - first) as f64
}

/// Processor time of this thread, where the kernel tells.
pub fn cpu_seconds() -> Option<f64> {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    Some(text.split_whitespace().next()?.parse::<f64>().ok()? * 1e-9)
}
