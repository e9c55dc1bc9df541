//! The regular expressions that split a text into words, taken apart: what they match, and between
//! which characters no match of theirs ever reaches.
//!
//! Understood are alternatives of sequences of: one character of a class, with `?`, `*`, `+`,
//! `{n,m}` (greedy or possessive); a group of alternatives, optional or not; `(?!x)` with one such
//! class. Anything else (anchors, look-behind, lazy quantifiers, …) is refused, and the caller
//! leaves the text to `tokenizers`. The members of a class are taken from Oniguruma itself,
//! character by character, when a tokenizer is loaded.
//!
//! *No match reaches across* a|b (two neighbouring characters) if no class that can match a may be
//! followed, in any alternative, by a class that matches b. Then matching goes the same way on both
//! sides as in two texts: behind a, no attempt can use b, as none could use the end of a text. Only
//! a look-ahead `x+(?!y)` behind a tells b from the end. Such places count as reached, unless an
//! earlier alternative `x*z` has already taken every run of x that ends in a (`\s*[\r\n]+` before
//! `\s+(?!\S)`). How it works: `Names::parse` turns an expression into items over numbered classes
//! of characters. `Stage::new` turns items into a graph of nodes and computes which classes can
//! follow which. `Classes` maps each character to the set of its classes, one bit each. A text is
//! then a list of masks, and matching (`Stage::run`) compares bits alone.

use crate::fast_hash::FastMap;
use std::sync::{Arc, Mutex};
use tokenizers::utils::SysRegex;

/// A set of classes, one bit for each; of a character: all classes that contain it.
pub type Mask = u64;

/// The bits of a Mask: a tokenizer with more classes is refused.
const CLASSES_MAX: usize = 64;
/// Classes whose members are remembered for models that are loaded later (`members`).
const MEMBERS_MAX: usize = 1024;
/// No upper bound of a quantifier.
const MANY: u32 = u32::MAX;
/// The words that may be written in a group that ignores case. No character folds to two of their
/// letters, so that folding letter by letter is what Oniguruma does.
const FOLDED: [&str; 7] = ["s", "t", "re", "ve", "m", "ll", "d"];

/// Several expressions, each of which splits what the one before left.
pub struct Splitter {
    stages: Vec<Stage>,
    classes: Classes,
}

/// One step of the splitting, as the caller found it in a file.
pub enum Step<'a> {
    /// Each match is a piece, and so is the text between two matches.
    Regex(&'a str),
    /// Each match is a piece; the rest is dropped.
    OnlyMatches(&'a str),
    /// Numeric characters, one by one or in runs.
    Digits { one_by_one: bool },
}

/// One expression as a graph. Nodes are numbered by `nodes`; node 0 accepts.
struct Stage {
    nodes: Vec<Node>,
    root: usize,
    /// Classes that a match can begin with.
    first: Mask,
    only_matches: bool,
    /// By the number of a class: those that may match the next character behind one that it
    /// matched.
    follow: Vec<Mask>,
    /// Classes in front of a look-ahead, and those whose characters never are the last of such a
    /// run, as an earlier alternative took them.
    looks: Vec<(Mask, Mask)>,
    /// Characters of the first class and none of the second are part of some match wherever they
    /// stand.
    covered: Vec<(Mask, Mask)>,
}

/// `next` is the node that matches what follows.
enum Node {
    Accept,
    Class { class: Mask, min: u32, max: u32, possessive: bool, next: usize },
    NotAhead { class: Mask, next: usize },
    Branch(Vec<Arm>),
}

struct Arm {
    node: usize,
    /// Classes that the arm can begin with; another character skips it.
    first: Mask,
    /// May match nothing.
    empty: bool,
}

#[derive(Debug, PartialEq)]
enum Item {
    Class { class: Mask, min: u32, max: u32, possessive: bool },
    NotAhead(Mask),
    Group { arms: Vec<Vec<Item>>, optional: bool },
}

impl Splitter {
    /// None: an expression is not understood, or the tokenizer has too many classes.
    pub fn new(steps: &[Step]) -> Option<Self> {
        let mut names = Names::default();
        let mut stages = vec![];
        for step in steps {
            let (arms, only_matches) = match step {
                Step::Regex(source) => (names.parse(source)?, false),
                Step::OnlyMatches(source) => (names.parse(source)?, true),
                Step::Digits { one_by_one } => {
                    let class = names.class(NUMERIC, false)?;
                    let max = if *one_by_one { 1 } else { MANY };
                    (vec![vec![Item::Class { class, min: 1, max, possessive: false }]], false)
                }
            };
            stages.push(Stage::new(arms, only_matches)?);
        }
        Some(Splitter { stages, classes: Classes::new(&names.sources)? })
    }

    /// The classes of a character: two look-ups.
    pub fn mask(&self, c: char) -> Mask {
        self.classes.of(c)
    }

    /// Whether words end between two characters, whatever is before and behind them: no stage has a
    /// match that reaches across, and some stage makes the left one part of a match, so that it is
    /// not joined with the right one as text between matches.
    pub fn parts(&self, before: Mask, after: Mask) -> bool {
        self.stages.iter().all(|stage| !stage.reaches(before, after))
            && self.stages.iter().any(|stage| stage.only_matches || stage.covers(before))
    }

    /// Gives the words among `masks`, those of the characters of a text, as ranges of characters in
    /// order.
    pub fn split(&self, masks: &[Mask], word: &mut impl FnMut(usize, usize)) {
        self.split_at(0, masks, 0, masks.len(), word);
    }

    /// Splits `from..to` by this stage and each piece by the next; behind the last stage a piece is
    /// a word. Leftmost match first, as a regex search; a match of no characters counts as none.
    fn split_at(&self, stage: usize, masks: &[Mask], from: usize, to: usize, word: &mut impl FnMut(usize, usize)) {
        let Some(this) = self.stages.get(stage) else {
            return word(from, to);
        };
        let mut at = from;
        let mut done = from;
        while at < to {
            let end = if masks[at] & this.first == 0 { None } else { this.run(this.root, masks, at, to) };
            match end {
                Some(end) if end > at => {
                    if done < at && !this.only_matches {
                        self.split_at(stage + 1, masks, done, at, word);
                    }
                    self.split_at(stage + 1, masks, at, end, word);
                    at = end;
                    done = end;
                }
                _ => at += 1,
            }
        }
        if done < to && !this.only_matches {
            self.split_at(stage + 1, masks, done, to, word);
        }
    }
}

impl Stage {
    /// 1. Looks at each alternative for what `reaches` and `covers` need: runs in front of a
    ///    look-ahead (`looks`) and alternatives for which one character is enough (`covered`).
    /// 2. Builds the graph from the end (`branch`).
    /// 3. Refuses an expression that matches nothing (an empty match), as its searches differ.
    /// 4. Fills `follow` from the nodes: behind a class come itself, if it repeats, and what its
    ///    next node can begin with.
    ///
    /// None: a look-ahead stands elsewhere than directly behind a run, where it is not known what
    /// it sees.
    fn new(arms: Vec<Vec<Item>>, only_matches: bool) -> Option<Self> {
        let mut stage = Stage {
            nodes: vec![Node::Accept],
            root: 0,
            first: 0,
            only_matches,
            follow: vec![0; CLASSES_MAX],
            looks: vec![],
            covered: vec![],
        };
        let mut earlier: Vec<(Mask, Mask)> = vec![];
        for arm in &arms {
            match arm.as_slice() {
                [Item::Class { class: x, min: 0, max: MANY, possessive: false }, Item::Class { class: z, min: 1, .. }] => {
                    earlier.push((*x, *z));
                }
                [Item::Class { class: x, min: 1, max: MANY, possessive: false }, Item::NotAhead(_)] => {
                    let unseen = earlier.iter().filter(|(run, _)| run == x).map(|(_, z)| z).fold(0, |a, z| a | z);
                    stage.looks.push((*x, unseen));
                }
                arm if has_look(arm) => {
                    // It is not known here what stands in front of it: refused.
                    return None;
                }
                _ => {}
            }
            // One character is enough for an alternative with one item that is not optional, if no
            // possessive item before it keeps what it takes.
            let (mut needed, mut kept, mut is_plain) = (vec![], 0, true);
            for item in arm {
                match item {
                    Item::Class { class, min: 0, possessive, .. } => {
                        kept |= if *possessive && needed.is_empty() { *class } else { 0 };
                    }
                    Item::Class { class, min, .. } => needed.push((*class, *min)),
                    Item::Group { arms, optional: true } if !arms.iter().any(|arm| has_possessive(arm)) => {}
                    _ => is_plain = false,
                }
            }
            if let ([(class, 1)], true) = (needed.as_slice(), is_plain) {
                stage.covered.push((*class, kept));
            }
        }
        stage.root = stage.branch(&arms, 0, false);
        let (first, empty) = stage.first(stage.root);
        if empty {
            return None;
        }
        stage.first = first;
        for node in &stage.nodes {
            if let Node::Class { class, max, next, .. } = node {
                let own = if *max > 1 { *class } else { 0 };
                stage.follow[class.trailing_zeros() as usize] |= own | stage.first(*next).0;
            }
        }
        Some(stage)
    }

    /// Nodes of alternatives in front of `next`; with `optional` one more that goes there at once,
    /// tried last as the quantifiers are greedy.
    fn branch(&mut self, arms: &[Vec<Item>], next: usize, optional: bool) -> usize {
        let mut made = vec![];
        for arm in arms {
            let mut node = next;
            for item in arm.iter().rev() {
                node = match item {
                    Item::Class { class, min, max, possessive } => {
                        self.add(Node::Class { class: *class, min: *min, max: *max, possessive: *possessive, next: node })
                    }
                    Item::NotAhead(class) => self.add(Node::NotAhead { class: *class, next: node }),
                    Item::Group { arms, optional } => self.branch(arms, node, *optional),
                };
            }
            made.push(node);
        }
        if optional {
            made.push(next);
        }
        let arms = made.into_iter().map(|node| {
            let (first, empty) = self.first(node);
            Arm { node, first, empty }
        });
        let arms = arms.collect();
        self.add(Node::Branch(arms))
    }

    fn add(&mut self, node: Node) -> usize {
        self.nodes.push(node);
        self.nodes.len() - 1
    }

    /// The classes of the first character that is matched from `node` on, and whether it may be
    /// none.
    fn first(&self, node: usize) -> (Mask, bool) {
        match &self.nodes[node] {
            Node::Accept => (0, true),
            Node::NotAhead { next, .. } => (self.first(*next).0, true),
            Node::Class { class, min, next, .. } => {
                if *min > 0 {
                    return (*class, false);
                }
                let (rest, empty) = self.first(*next);
                (class | rest, empty)
            }
            Node::Branch(arms) => arms.iter().fold((0, false), |(first, empty), arm| {
                let (more, may) = self.first(arm.node);
                (first | more, empty || may)
            }),
        }
    }

    /// The end of the match that begins at `at`, or None. Backtracks as Oniguruma does: the longest
    /// repetition first, then shorter ones; alternatives in their order. A possessive item, and one
    /// with nothing behind it, has one way only. Characters from `to` on do not exist for it.
    fn run(&self, node: usize, masks: &[Mask], at: usize, to: usize) -> Option<usize> {
        match &self.nodes[node] {
            Node::Accept => Some(at),
            Node::NotAhead { class, next } => {
                if at < to && masks[at] & class != 0 {
                    return None;
                }
                self.run(*next, masks, at, to)
            }
            Node::Branch(arms) => {
                let mask = if at < to { masks[at] } else { 0 };
                arms.iter().filter(|arm| arm.empty || arm.first & mask != 0).find_map(|arm| self.run(arm.node, masks, at, to))
            }
            Node::Class { class, min, max, possessive, next } => {
                let end = to.min(at.saturating_add(*max as usize));
                let mut last = at;
                while last < end && masks[last] & class != 0 {
                    last += 1;
                }
                let least = at + *min as usize;
                if last < least {
                    return None;
                }
                if *possessive || *next == 0 {
                    return self.run(*next, masks, last, to);
                }
                (least..=last).rev().find_map(|end| self.run(*next, masks, end, to))
            }
        }
    }

    /// Whether a character of these classes is part of some match wherever it stands.
    fn covers(&self, c: Mask) -> bool {
        self.covered.iter().any(|(class, kept)| c & class != 0 && c & kept == 0)
    }

    /// Whether some match may have both characters side by side, or a look-ahead behind the left
    /// one may see the right one.
    fn reaches(&self, before: Mask, after: Mask) -> bool {
        if self.looks.iter().any(|(class, unseen)| before & class != 0 && before & unseen == 0) {
            return true;
        }
        let mut left = before;
        while left != 0 {
            if self.follow[left.trailing_zeros() as usize] & after != 0 {
                return true;
            }
            left &= left - 1;
        }
        false
    }
}

fn has_look(items: &[Item]) -> bool {
    items.iter().any(|item| match item {
        Item::NotAhead(_) => true,
        Item::Group { arms, .. } => arms.iter().any(|arm| has_look(arm)),
        Item::Class { .. } => false,
    })
}

fn has_possessive(items: &[Item]) -> bool {
    items.iter().any(|item| match item {
        Item::NotAhead(_) => false,
        Item::Group { arms, .. } => arms.iter().any(|arm| has_possessive(arm)),
        Item::Class { possessive, .. } => *possessive,
    })
}

// ---- Reading an expression ----

/// Not an expression: what char::is_numeric says.
const NUMERIC: &str = "";

/// The classes of all expressions, each with its source.
#[derive(Default)]
struct Names {
    sources: Vec<String>,
    by_source: FastMap<String, usize>,
}

/// A recursive descent over the characters of an expression; None anywhere: not understood.
impl Names {
    /// The bit of a class; classes of equal source share it.
    fn class(&mut self, source: &str, ignore_case: bool) -> Option<Mask> {
        let source = if ignore_case { format!("(?i:{source})") } else { source.to_owned() };
        let next = self.sources.len();
        let index = *self.by_source.entry(source.clone()).or_insert(next);
        if index == next {
            self.sources.push(source);
        }
        (index < CLASSES_MAX).then(|| 1 << index)
    }

    fn parse(&mut self, source: &str) -> Option<Vec<Vec<Item>>> {
        let chars: Vec<char> = source.chars().collect();
        let mut at = 0;
        let arms = self.arms(&chars, &mut at, false)?;
        (at == chars.len()).then_some(arms)
    }

    /// Alternatives up to a closing bracket or the end. In a group that ignores case only the words
    /// of FOLDED are taken, letter by letter, and classes of ASCII letters that stand alone.
    fn arms(&mut self, chars: &[char], at: &mut usize, ignore_case: bool) -> Option<Vec<Vec<Item>>> {
        let mut arms = vec![vec![]];
        let mut word = String::new();
        while *at < chars.len() && chars[*at] != ')' {
            if chars[*at] == '|' {
                *at += 1;
                word.clear();
                arms.push(vec![]);
                continue;
            }
            let from = *at;
            let item = self.item(chars, at, ignore_case)?;
            if ignore_case {
                // Only letters that fold one by one.
                let text: String = chars[from..*at].iter().collect();
                let text = text.trim_start_matches('\'');
                if text.starts_with('[') {
                    let inside = text.trim_start_matches('[').trim_end_matches(']');
                    if !inside.chars().all(|c| c.is_ascii_lowercase()) || !word.is_empty() {
                        return None;
                    }
                    word.push_str(text);
                } else {
                    word.push_str(text);
                    if !word.is_empty() && !FOLDED.iter().any(|known| known.starts_with(word.as_str())) {
                        return None;
                    }
                }
            }
            arms.last_mut()?.push(item);
        }
        Some(arms)
    }

    /// A look-ahead, a group, or a class with its quantifier. Groups take `?` alone. A quantifier
    /// behind a quantifier (lazy, nested) is refused.
    fn item(&mut self, chars: &[char], at: &mut usize, ignore_case: bool) -> Option<Item> {
        let starts = |text: &str| chars[*at..].iter().copied().take(text.len()).eq(text.chars());
        if starts("(?!") {
            *at += 3;
            let class = self.one(chars, at, ignore_case)?;
            return close(chars, at).then_some(Item::NotAhead(class));
        }
        if chars[*at] == '(' {
            if ignore_case {
                return None;
            }
            let inner = if starts("(?i:") {
                *at += 4;
                true
            } else if starts("(?:") {
                *at += 3;
                false
            } else {
                return None;
            };
            let arms = self.arms(chars, at, inner)?;
            if !close(chars, at) || arms.iter().any(Vec::is_empty) {
                return None;
            }
            let optional = chars.get(*at) == Some(&'?');
            *at += usize::from(optional);
            let is_last = !matches!(chars.get(*at), Some('?' | '*' | '+' | '{'));
            return is_last.then_some(Item::Group { arms, optional });
        }
        let class = self.one(chars, at, ignore_case)?;
        let (min, max, counted) = quantifier(chars, at)?;
        let possessive = chars.get(*at) == Some(&'+') && (min, max) != (1, 1) && !counted;
        *at += usize::from(possessive);
        let is_last = !matches!(chars.get(*at), Some('?' | '*' | '+' | '{'));
        is_last.then_some(Item::Class { class, min, max, possessive })
    }

    /// The class of one character: brackets, an escape, or the character itself. Its source is
    /// given to Oniguruma as it is.
    fn one(&mut self, chars: &[char], at: &mut usize, ignore_case: bool) -> Option<Mask> {
        let from = *at;
        match chars.get(from)? {
            '[' => {
                let mut depth = 0;
                while *at < chars.len() {
                    match chars[*at] {
                        '\\' => *at += 1,
                        '[' => depth += 1,
                        ']' => depth -= 1,
                        _ => {}
                    }
                    *at += 1;
                    if depth == 0 {
                        break;
                    }
                }
                if depth != 0 || *at > chars.len() {
                    return None;
                }
            }
            '\\' => {
                let kind = *chars.get(from + 1)?;
                *at += 2;
                if matches!(kind, 'p' | 'P') {
                    if chars.get(*at) != Some(&'{') {
                        return None;
                    }
                    *at += chars[*at..].iter().position(|c| *c == '}')? + 1;
                } else if kind.is_alphanumeric() && !"dDwWsSrntf".contains(kind) {
                    return None;
                }
            }
            '.' | '^' | '$' | '(' | ')' | '?' | '*' | '+' | '{' | '|' => return None,
            _ => *at += 1,
        }
        let source: String = chars[from..*at].iter().collect();
        self.class(&source, ignore_case)
    }
}

fn close(chars: &[char], at: &mut usize) -> bool {
    let closed = chars.get(*at) == Some(&')');
    *at += usize::from(closed);
    closed
}

/// How often an item may match: least, most, and whether braces say so.
fn quantifier(chars: &[char], at: &mut usize) -> Option<(u32, u32, bool)> {
    let found = match chars.get(*at) {
        Some('?') => (0, 1, false),
        Some('*') => (0, MANY, false),
        Some('+') => (1, MANY, false),
        Some('{') => {
            let length = chars[*at..].iter().position(|c| *c == '}')?;
            let inside: String = chars[*at + 1..*at + length].iter().collect();
            *at += length + 1;
            let (min, max) = match inside.split_once(',') {
                None => (inside.parse().ok()?, inside.parse().ok()?),
                Some((min, "")) => (min.parse().ok()?, MANY),
                Some((min, max)) => (min.parse().ok()?, max.parse().ok()?),
            };
            return (min <= max && max > 0).then_some((min, max, true));
        }
        _ => return Some((1, 1, false)),
    };
    *at += 1;
    Some(found)
}

// ---- Characters ----

/// The classes of every character, in pages of 256. Equal pages are stored once: most of Unicode is
/// alike.
struct Classes {
    pages: Vec<[Mask; 256]>,
    page_of: Vec<u16>,
}

impl Classes {
    fn new(sources: &[String]) -> Option<Self> {
        let mut masks = vec![0; char::MAX as usize + 1];
        for (class, source) in sources.iter().enumerate() {
            for (first, last) in members(source)?.iter() {
                masks[*first as usize..=*last as usize].iter_mut().for_each(|mask| *mask |= 1 << class);
            }
        }
        let mut classes = Classes { pages: vec![], page_of: vec![] };
        let mut known: FastMap<[Mask; 256], u16> = FastMap::default();
        for chunk in masks.chunks_exact(256) {
            let page: [Mask; 256] = chunk.try_into().ok()?;
            let next = classes.pages.len() as u16;
            let index = *known.entry(page).or_insert(next);
            if index == next {
                classes.pages.push(page);
            }
            classes.page_of.push(index);
        }
        Some(classes)
    }

    fn of(&self, c: char) -> Mask {
        self.pages[self.page_of[c as usize >> 8] as usize][c as usize & 255]
    }
}

type Ranges = Arc<Vec<(u32, u32)>>;

/// The characters of a class, in ranges. Each class is looked up once per process, since many
/// models have the same.
/// The class is matched against a text of all characters, which costs milliseconds; the lock is
/// held meanwhile.
fn members(source: &str) -> Option<Ranges> {
    static KNOWN: Mutex<Option<FastMap<String, Ranges>>> = Mutex::new(None);
    let mut known = KNOWN.lock().ok()?;
    let known = known.get_or_insert_with(FastMap::default);
    if let Some(ranges) = known.get(source) {
        return Some(ranges.clone());
    }
    let all: String = (0..=u32::from(char::MAX)).filter_map(char::from_u32).collect();
    let mut ranges: Vec<(u32, u32)> = vec![];
    if source == NUMERIC {
        ranges.extend(all.chars().filter(|c| c.is_numeric()).map(|c| (c as u32, c as u32)));
    } else {
        let regex = SysRegex::new(&format!("(?:{source})+")).ok()?;
        for (start, end) in regex.find_iter(&all) {
            // Surrogates, which no text has, may lie between.
            let mut found = all[start..end].chars();
            let first = found.next()? as u32;
            ranges.push((first, found.next_back().map_or(first, |last| last as u32)));
        }
    }
    let ranges = Arc::new(ranges);
    if known.len() < MEMBERS_MAX {
        known.insert(source.to_owned(), ranges.clone());
    }
    Some(ranges)
}
