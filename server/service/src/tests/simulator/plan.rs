//! What a history is like: its size, its flaw, and chance that comes again.

/// Microseconds since the beginning of a history.
pub type Moment = u64;

/// The cluster's lease, in microseconds.
pub const LEASE: Moment = 1_000_000;

/// A protocol that is broken on purpose.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flaw {
    /// All writes succeed.
    NoFence,
    /// A node looks at its lease before it writes, and the database does not.
    FenceByTime,
    /// A claim takes what it counted before it locked its subject.
    ClaimBeforeCount,
    /// A client is answered before its request is stored.
    AckBeforeCommit,
    /// A session is dead when the database's clock says that its beat is old.
    DeathByDatabaseClock,
    /// What had begun on a node that is gone is queued again.
    RequeueOfBegun,
}

/// The size of a history.
#[derive(Debug, Clone, Copy)]
pub struct Plan {
    pub nodes: usize,
    pub slots: u32,
    pub subjects: u32,
    pub limit: usize,
    pub submissions: u64,
    pub faults: u64,
    /// How long clients and faults go on.
    pub duration: Moment,
    /// How long everything may take to end after that.
    pub patience: Moment,
    pub flaw: Option<Flaw>,
}

impl Plan {
    /// The history of a seed: of three nodes mostly, of up to fifty sometimes, and from quiet to terrible.
    pub fn of(seed: u64, flaw: Option<Flaw>) -> Self {
        let mut chance = Chance::new(seed ^ 0x5eed);
        let nodes = match chance.below(10) {
            0 => chance.between(10, 51) as usize,
            1..4 => chance.between(4, 10) as usize,
            _ => 3,
        };
        let duration = chance.between(4, 16) * LEASE;
        let faults = match chance.below(4) {
            0 => chance.below(3),
            1 | 2 => chance.below(nodes as u64 + 4),
            _ => chance.below(3 * nodes as u64 + 8),
        };
        Self {
            nodes,
            slots: chance.between(1, 5) as u32,
            subjects: chance.between(1, 8) as u32,
            limit: chance.between(1, 6) as usize,
            submissions: chance.between(20, 120),
            faults,
            duration,
            patience: 400 * LEASE,
            flaw,
        }
    }
}

/// Chance that comes again with its seed.
#[derive(Debug)]
pub struct Chance(u64);

impl Chance {
    pub const fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x2545_f491_4f6c_dd1d).wrapping_add(1))
    }

    /// `SplitMix64`.
    const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub const fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    pub const fn between(&mut self, first: u64, end: u64) -> u64 {
        first + self.below(end - first)
    }

    pub const fn in_a_thousand(&mut self, chance: u64) -> bool {
        self.below(1000) < chance
    }
}
