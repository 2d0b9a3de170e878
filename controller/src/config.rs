//! What a controller is told. Plain data: the library reads no environment, home or terminal, so
//! the caller gathers what those say.

use std::path::PathBuf;

use sandbox_api::Ceiling;
use sandbox_engine::{AgentSource, EngineConfig};
use sandbox_protocol::argv::ConfinementPolicy;

use crate::io_dir::disk::DiskReserve;

/// What a controller is told.
#[derive(Debug, Clone)]
pub struct Config {
    /// Which engine, and where.
    pub engine: EngineConfig,
    /// What a sandbox's limits may be raised to.
    pub ceiling: Ceiling,
    /// This user's folder for locks and caches: the runtime directory's `sandboxctl`. Made if it
    /// is missing; one that is another user's, or has another mode than 0700, is refused. All
    /// controllers of one user share one.
    pub state_dir: PathBuf,
    /// The agent to use.
    pub agent: AgentSource,
    /// What happens where an agent cannot confine itself as it should.
    pub confinement: ConfinementPolicy,
    /// Whether what dead controllers left is removed.
    pub sweep: Sweep,
    /// The file that each operation, run and refusal is written to, a JSON line each: appended to,
    /// or made for its owner alone. A FIFO must have its reader. `None`: nothing is.
    pub audit: Option<PathBuf>,
    /// How much space sandboxes leave free on the file system of their io dir.
    pub disk_reserve: DiskReserve,
}

impl Config {
    /// The defaults, with the state in `state_dir`.
    #[must_use]
    pub fn new(state_dir: impl Into<PathBuf>) -> Self {
        Self {
            engine: EngineConfig::default(),
            ceiling: Ceiling::default(),
            state_dir: state_dir.into(),
            agent: AgentSource::Embedded,
            confinement: ConfinementPolicy::default(),
            sweep: Sweep::Regularly,
            audit: None,
            disk_reserve: DiskReserve::default(),
        }
    }
}

/// Whether a controller removes by itself what dead ones left.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Sweep {
    /// In the background, from the connection on and every 30 s: right for whoever launches
    /// sandboxes.
    #[default]
    Regularly,
    /// It does not: right for whoever only looks.
    Never,
}
