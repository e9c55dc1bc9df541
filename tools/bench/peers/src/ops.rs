//! What has to be done, in which order? A KVOPS001 file in memory: header of 64 bytes, then
//! operations of 32 bytes and a body of u64 words, everything little-endian.

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kind {
    Query,
    Store,
    Remove,
    Clear,
}

/// One operation; `body` is `(local, seq)` pairs for queries and stores, `seq` alone for removals.
pub struct Op<'a> {
    pub kind: Kind,
    pub worker: u32,
    /// Of a store: the sequence hash of the block before the first, if there is one.
    pub parent: Option<u64>,
    body: &'a [u64],
}

impl<'a> Op<'a> {
    pub fn clear(worker: u32) -> Op<'static> {
        Op {
            kind: Kind::Clear,
            worker,
            parent: None,
            body: &[],
        }
    }

    pub fn is_query(&self) -> bool {
        self.kind == Kind::Query
    }

    /// Block ops of this operation: hashes, whether or not a structure looks at them.
    pub fn count(&self) -> u64 {
        match self.kind {
            Kind::Query | Kind::Store => self.body.len() as u64 / 2,
            Kind::Remove => self.body.len() as u64,
            Kind::Clear => 0,
        }
    }

    /// (local hash, sequence hash) of a query's or a store's blocks.
    pub fn blocks(&self) -> impl Iterator<Item = (u64, u64)> + use<'a> {
        self.body.chunks_exact(2).map(|pair| (pair[0], pair[1]))
    }

    pub fn removed(&self) -> &'a [u64] {
        self.body
    }
}

pub struct Ops {
    pub workers: u32,
    words: Vec<u64>,
    /// Where each operation begins in `words`.
    starts: Vec<usize>,
}

const HEADER_WORDS: usize = 8;
const OP_WORDS: usize = 4;

impl Ops {
    pub fn load(path: &str) -> Result<Ops, String> {
        let bytes = std::fs::read(path).map_err(|error| format!("{path}: {error}"))?;
        Ops::parse(&bytes).map_err(|reason| format!("{path}: {reason}"))
    }

    fn parse(bytes: &[u8]) -> Result<Ops, String> {
        if bytes.len() < HEADER_WORDS * 8 || bytes.len() % 8 != 0 || &bytes[..8] != b"KVOPS001" {
            return Err("not a KVOPS001 file".into());
        }
        let word = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("8 bytes"));
        let words: Vec<u64> = bytes.chunks_exact(8).map(word).collect();
        let workers = (words[1] >> 32) as u32;
        let mut starts = vec![];
        let mut at = HEADER_WORDS;
        for number in 0..words[2] {
            let wrong = |reason: &str| format!("operation {number}: {reason}");
            let head = words
                .get(at..at + OP_WORDS)
                .ok_or_else(|| wrong("cut off"))?;
            let count = head[1] as u32 as usize;
            let body = match head[0] as u32 {
                1 | 2 => 2 * count,
                3 => count,
                4 => 0,
                _ => return Err(wrong("unknown kind")),
            };
            if (head[0] >> 32) as u32 >= workers {
                return Err(wrong("no such worker"));
            }
            starts.push(at);
            at += OP_WORDS + body;
            if at > words.len() {
                return Err(wrong("cut off"));
            }
        }
        if at != words.len() {
            return Err("more than the header's number of operations".into());
        }
        Ok(Ops {
            workers,
            words,
            starts,
        })
    }

    pub fn len(&self) -> usize {
        self.starts.len()
    }

    pub fn get(&self, number: usize) -> Op<'_> {
        let at = self.starts[number];
        let end = self
            .starts
            .get(number + 1)
            .copied()
            .unwrap_or(self.words.len());
        let head = &self.words[at..at + OP_WORDS];
        let kind = match head[0] as u32 {
            1 => Kind::Query,
            2 => Kind::Store,
            3 => Kind::Remove,
            _ => Kind::Clear,
        };
        let position = head[1] >> 32;
        Op {
            kind,
            worker: (head[0] >> 32) as u32,
            parent: (kind == Kind::Store && position > 0).then_some(head[3]),
            body: &self.words[at + OP_WORDS..end],
        }
    }

    pub fn iter(&self) -> impl Iterator<Item = Op<'_>> {
        (0..self.len()).map(|number| self.get(number))
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// An ops file of 2 workers from the words of its operations.
    pub fn file(ops: u64, body: &[u64]) -> Vec<u8> {
        let mut words = vec![
            u64::from_le_bytes(*b"KVOPS001"),
            64 | 2 << 32,
            ops,
            0,
            0,
            0,
            0,
            0,
        ];
        words.extend(body);
        words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    fn head(kind: u64, worker: u64, count: u64, position: u64, parent: u64) -> [u64; 4] {
        [kind | worker << 32, count | position << 32, 0, parent]
    }

    /// Worker 1 stores two blocks and one below them, loses the middle one; then both are asked
    /// for.
    pub fn small() -> Ops {
        let mut body = vec![];
        body.extend(head(2, 1, 2, 0, 0));
        body.extend([11, 101, 12, 102]);
        body.extend(head(2, 1, 1, 2, 102));
        body.extend([13, 103]);
        body.extend(head(1, 0, 3, 0, 0));
        body.extend([11, 101, 12, 102, 13, 103]);
        body.extend(head(3, 1, 1, 0, 0));
        body.extend([102]);
        body.extend(head(1, 0, 3, 0, 0));
        body.extend([11, 101, 12, 102, 13, 103]);
        Ops::parse(&file(5, &body)).unwrap()
    }

    #[test]
    fn operations_are_read_as_written() {
        let ops = small();
        assert_eq!((ops.workers, ops.len()), (2, 5));
        let store = ops.get(1);
        assert_eq!(
            (store.kind, store.worker, store.parent),
            (Kind::Store, 1, Some(102))
        );
        assert_eq!(store.blocks().collect::<Vec<_>>(), [(13, 103)]);
        assert_eq!(ops.get(0).parent, None);
        assert_eq!(ops.get(3).removed(), [102]);
        assert_eq!(ops.iter().map(|op| op.count()).sum::<u64>(), 10);
    }

    #[test]
    fn what_is_wrong_is_said() {
        assert!(Ops::parse(b"KVOPS002").is_err());
        assert!(
            Ops::parse(&file(1, &[]))
                .err()
                .unwrap()
                .contains("operation 0: cut off")
        );
        assert!(
            Ops::parse(&file(1, &head(9, 0, 0, 0, 0)))
                .err()
                .unwrap()
                .contains("kind")
        );
        assert!(
            Ops::parse(&file(1, &head(4, 2, 0, 0, 0)))
                .err()
                .unwrap()
                .contains("worker")
        );
        assert!(
            Ops::parse(&file(1, &head(3, 0, 1, 0, 0)))
                .err()
                .unwrap()
                .contains("cut off")
        );
        assert!(Ops::parse(&file(0, &head(4, 0, 0, 0, 0))).is_err());
    }
}
