//! Thousands of histories of a cluster, each from a seed: nodes that act on the decisions of
//! [`decide`](super::decide), a model of the database's tables, a network, clients, and every fault. What must hold
//! in all of them is [`check`]'s, and each of the [flaws](plan::Flaw) must break it: a checker that never fails proves
//! nothing.
//!
//! One history is one seed: `SIMULATION_SEED=N` runs it alone, and prints what it broke.

#![deny(clippy::disallowed_methods)]

mod check;
mod messages;
mod node;
mod plan;
mod process;
mod tables;
#[cfg(test)]
mod tests;
mod world;

use check::Violation;
use plan::Plan;
use world::World;

/// What became of a history.
struct Report {
    steps: u64,
    /// Of processes that were there, and not well.
    declared_dead: usize,
    executions: usize,
    violations: Vec<Violation>,
}

fn run(plan: Plan, seed: u64) -> Report {
    let mut world = World::new(plan, seed);
    world.run();
    world.checker.finish(&world.tables);
    Report {
        steps: world.steps,
        declared_dead: world.checker.declared_dead,
        executions: world.tables.executions.len(),
        violations: std::mem::take(&mut world.checker.violations),
    }
}
