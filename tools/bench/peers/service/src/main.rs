//! Dynamo's standalone KV indexer (`python -m dynamo.indexer`) from its published crate, without
//! Python.
//!
//! `dynamo_service PORT [THREADS]` listens on all addresses, as the original does, until it is
//! ended. THREADS is the original's `--threads`, 4 by default, which runs the concurrent tree.

use dynamo_kv_router::services::indexer::{IndexerConfig, run_server};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const THREADS: usize = 4;

fn main() -> anyhow::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let port = arguments
        .next()
        .ok_or(anyhow::anyhow!("dynamo_service PORT [THREADS]"))?;
    let config = IndexerConfig {
        block_size: None, // as registered
        port: port.parse()?,
        threads: arguments.next().map_or(Ok(THREADS), |text| text.parse())?,
        workers: None,
        model_name: "default".into(),
        routing_group: "default".into(),
        peers: None,
        access_log: None,
        trace_id_header: http::HeaderName::from_static("x-trace-id"),
        access_log_local_time: false,
    };
    tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?
        .block_on(run_server(config))
}
