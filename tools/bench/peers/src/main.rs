//! How fast, how big and how exact are the published indexes on one ops file?
//!
//! Loads a KVOPS001 file, converts it to each peer's own types before any clock runs, drives the
//! peer through its public interface, and prints one JSON object per structure and mode, with the
//! field names of `index_bench`. README.md says how each peer is driven and what is unfair in it.

mod check;
mod clock;
mod closed;
mod dynamo;
mod json;
mod memory;
mod null;
mod ops;
mod seq;
mod smg;
mod structure;

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use ops::Ops;
use structure::Structure;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const USAGE: &str = "\
peers --ops FILE --index NAME[,NAME...]|all [--mode seq|steady|closed|mem|check]
      [--event_threads E] [--query_threads Q] [--repeat R] [--check N]

Prints one JSON object per line. Names: dynamo_crtc dynamo_radix dynamo_positional smg_chain
smg_chain_into, and peers_null and peers_null_loop, which do nothing (the harness's own cost).
--repeat R   best of R; the first repetition pays for the first touch of the process's memory and is
             left out where there are more
--check N    also compares the answers of about N queries with the truth, unmeasured
";

const NAMES: [&str; 7] = [
    "dynamo_crtc",
    "dynamo_radix",
    "dynamo_positional",
    "smg_chain",
    "smg_chain_into",
    "peers_null",
    "peers_null_loop",
];

/// Some destructors walk a structure by recursion; a deep one needs room for it.
const STACK_BYTES: usize = 1 << 30;

#[derive(Clone, Copy, PartialEq)]
enum Mode {
    Seq,
    Steady,
    Closed,
    Memory,
    Check,
}

struct Flags {
    ops: String,
    names: Vec<String>,
    mode: Mode,
    event_threads: usize,
    query_threads: usize,
    repeat: usize,
    check: usize,
}

fn parse(arguments: impl Iterator<Item = String>) -> Result<Flags, String> {
    let mut flags = Flags {
        ops: String::new(),
        names: vec![],
        mode: Mode::Seq,
        event_threads: 1,
        query_threads: 1,
        repeat: 1,
        check: 0,
    };
    let mut rest = arguments.flat_map(|argument| match argument.split_once('=') {
        Some((flag, value)) if flag.starts_with("--") => vec![flag.to_string(), value.to_string()],
        _ => vec![argument],
    });
    while let Some(flag) = rest.next() {
        let value = rest.next().ok_or(format!("{flag} needs a value"))?;
        let number = || match value.parse::<usize>() {
            Ok(number) if number > 0 => Ok(number),
            _ => Err(format!("{flag}: '{value}' is not a positive number")),
        };
        match flag.as_str() {
            "--ops" => flags.ops = value,
            "--index" if value == "all" => flags.names = NAMES.map(String::from).to_vec(),
            "--index" => flags.names = value.split(',').map(String::from).collect(),
            "--mode" => {
                flags.mode = match value.as_str() {
                    "seq" => Mode::Seq,
                    "steady" => Mode::Steady,
                    "closed" => Mode::Closed,
                    "mem" => Mode::Memory,
                    "check" => Mode::Check,
                    _ => return Err(format!("no mode '{value}'")),
                }
            }
            "--event_threads" => flags.event_threads = number()?,
            "--query_threads" => flags.query_threads = number()?,
            "--repeat" => flags.repeat = number()?,
            "--check" => flags.check = number()?,
            _ => return Err(format!("unknown flag '{flag}'")),
        }
    }
    if flags.ops.is_empty() || flags.names.is_empty() {
        return Err("--ops and --index are needed".into());
    }
    if let Some(name) = flags.names.iter().find(|n| !NAMES.contains(&n.as_str())) {
        return Err(format!("no structure '{name}'"));
    }
    if flags.mode == Mode::Memory && flags.names.len() > 1 {
        return Err(
            "--mode mem: one structure per process, or they find each other's memory".into(),
        );
    }
    if flags.mode == Mode::Check && flags.check == 0 {
        flags.check = 1000;
    }
    Ok(flags)
}

/// Modes that need one thread only.
fn run<I: Structure>(name: &str, make: impl Fn() -> I, ops: &Arc<Ops>, flags: &Flags) {
    let mut line = match flags.mode {
        Mode::Seq => seq::run(&make, ops, flags.repeat, seq::Part::All),
        Mode::Steady => seq::run(&make, ops, flags.repeat, seq::Part::SecondHalf),
        Mode::Memory => memory::run(&make, ops),
        Mode::Check => json::Object::new().text("mode", "check"),
        Mode::Closed => json::Object::new()
            .text("mode", "closed")
            .text("skipped", "not made for several threads"),
    };
    if flags.check > 0 {
        line = line.append(check::run(&make, ops, flags.check));
    }
    print(name, line, flags);
}

/// All modes.
fn run_shared<I: Structure + Send + Sync>(
    name: &str,
    make: impl Fn() -> I,
    ops: &Arc<Ops>,
    flags: &Flags,
) {
    if flags.mode != Mode::Closed {
        return run(name, make, ops, flags);
    }
    let line = closed::run(
        make,
        ops,
        flags.event_threads,
        flags.query_threads,
        flags.repeat,
    );
    print(name, line, flags);
}

fn print(name: &str, line: json::Object, flags: &Flags) {
    let stem = Path::new(&flags.ops).file_stem().unwrap_or_default();
    let head = json::Object::new()
        .text("ops", &stem.to_string_lossy())
        .text("index", name);
    println!("{}", head.append(line));
}

fn run_all(flags: &Flags) -> Result<(), String> {
    let ops = Arc::new(Ops::load(&flags.ops)?);
    for name in &flags.names {
        match name.as_str() {
            "dynamo_crtc" => run_shared(name, dynamo::Loop::crtc, &ops, flags),
            "dynamo_radix" => run(name, dynamo::Radix::new, &ops, flags),
            "dynamo_positional" => run_shared(name, dynamo::Positional::new, &ops, flags),
            "smg_chain" => run_shared(name, || smg::Chain::<false>::new(ops.workers), &ops, flags),
            "smg_chain_into" => {
                run_shared(name, || smg::Chain::<true>::new(ops.workers), &ops, flags)
            }
            "peers_null" => run_shared(name, || null::Null, &ops, flags),
            "peers_null_loop" => run_shared(name, dynamo::Loop::null, &ops, flags),
            _ => unreachable!("names are checked by parse"),
        }
    }
    Ok(())
}

fn main() -> ExitCode {
    if std::env::args().any(|argument| argument == "--help" || argument == "-h") {
        print!("{USAGE}");
        return ExitCode::SUCCESS;
    }
    let flags = match parse(std::env::args().skip(1)) {
        Ok(flags) => flags,
        Err(reason) => {
            eprintln!("peers: {reason}\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    let thread = std::thread::Builder::new()
        .stack_size(STACK_BYTES)
        .spawn(move || run_all(&flags));
    match thread.expect("a thread").join().expect("panics abort") {
        Ok(()) => ExitCode::SUCCESS,
        Err(reason) => {
            eprintln!("peers: {reason}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse_line(line: &str) -> Result<Flags, String> {
        parse(line.split_whitespace().map(String::from))
    }

    #[test]
    fn flags_come_with_a_blank_or_an_equals_sign() {
        let flags = parse_line("--ops a.ops --index=smg_chain,dynamo_crtc --repeat 3").unwrap();
        assert_eq!(flags.names, ["smg_chain", "dynamo_crtc"]);
        assert_eq!(flags.repeat, 3);
    }

    #[test]
    fn wrong_flags_are_named() {
        assert!(parse_line("--index smg_chain").is_err());
        assert!(
            parse_line("--ops a --index nothing")
                .unwrap_err_text()
                .contains("nothing")
        );
        assert!(
            parse_line("--ops a --index all --mode mem")
                .unwrap_err_text()
                .contains("one")
        );
        assert!(
            parse_line("--ops a --index all --repeat 0")
                .unwrap_err_text()
                .contains("--repeat")
        );
    }

    trait ErrText {
        fn unwrap_err_text(self) -> String;
    }
    impl ErrText for Result<Flags, String> {
        fn unwrap_err_text(self) -> String {
            self.err().expect("an error")
        }
    }
}
