//! P9: what idle sandboxes keep resident: each agent, the controller, and the engine's helper
//! processes where it has any.
//!
//! A worker holds them, so that its memory is that of a program that does nothing else.

use futures_util::FutureExt as _;
use futures_util::future::LocalBoxFuture;
use sandbox_api::SandboxSpec;
use sandbox_controller::Sandbox;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::Scenario;
use crate::bench::{Bench, Counts, Work};
use crate::engines::On;
use crate::error::Error;
use crate::interrupt::Interrupt;
use crate::process;
use crate::report::{Row, Target, Unit};

pub const SCENARIO: Scenario = Scenario {
    id: "p9",
    title: "Memory of idle sandboxes",
    counts: Counts { warm_up: 0, samples: 3 },
    measure,
    work: Some(|work, interrupt| hold(work, interrupt).boxed_local()),
};

const FEW: usize = 10;
const MANY: usize = 50;
const MIB: f64 = 1_048_576.0;

#[derive(Debug, Serialize, Deserialize)]
struct Resident {
    /// Bytes resident in the controller's process.
    idle: f64,
    few: f64,
    many: f64,
    /// Of each agent.
    agents: Vec<f64>,
    /// Of each other process that the controller started.
    helpers: Vec<f64>,
    /// What each of those has alone, and its share of what it has with others.
    helper_shares: Vec<f64>,
}

fn measure(bench: &Bench, counts: Counts) -> LocalBoxFuture<'_, Result<Vec<Row>, Error>> {
    async move {
        let mut rows = Vec::new();
        for on in [On::Docker, On::Embedded] {
            if !bench.can_use(on, &mut rows) {
                continue;
            }
            let mut rounds = Vec::new();
            for _ in 0..counts.samples {
                rounds.push(bench.worker::<Resident>(SCENARIO.id, &on).await?);
            }
            let each = |of: fn(&Resident) -> f64| rounds.iter().map(of).collect::<Vec<_>>();
            let all = |of: fn(&Resident) -> &Vec<f64>| {
                rounds.iter().flat_map(|round| of(round).clone()).collect::<Vec<_>>()
            };
            rows.extend([
                bytes(on, "an agent", all(|round| &round.agents))
                    .target(Target::median_at_most(5.0 * MIB)),
                bytes(on, "controller, no sandbox", each(|round| round.idle))
                    .target(Target::median_at_most(20.0 * MIB)),
                bytes(on, "controller, 10 sandboxes", each(|round| round.few)),
                bytes(on, "controller, 50 sandboxes", each(|round| round.many)),
                bytes(on, "controller, each sandbox", each(slope))
                    .target(Target::median_at_most(100.0 * 1024.0)),
            ]);
            let helpers = all(|round| &round.helpers);
            if !helpers.is_empty() {
                let shares = all(|round| &round.helper_shares);
                rows.push(bytes(on, "a helper process", helpers));
                rows.push(bytes(on, "a helper process, its share (Pss)", shares));
            }
        }
        Ok(rows)
    }
    .boxed_local()
}

fn bytes(on: On, what: &str, samples: Vec<f64>) -> Row {
    Row::figure(format!("{on}: {what}"), Unit::Bytes, samples)
}

/// Of the second step: the first sandbox brings what all of them need once.
#[expect(clippy::cast_precision_loss, reason = "they are few")]
fn slope(round: &Resident) -> f64 {
    (round.many - round.few) / (MANY - FEW) as f64
}

async fn hold(work: Work<Value>, interrupt: Interrupt) -> Result<Value, Error> {
    let on: On = serde_json::from_value(work.job).map_err(Error::Worker)?;
    let resident = work
        .engines
        .with_controller(on, async |controller| {
            let mut sandboxes: Vec<Sandbox> = Vec::new();
            let done = async {
                let idle = process::resident()?;
                let mut at = [0.0; 2];
                for (count, place) in [FEW, MANY].into_iter().zip(&mut at) {
                    while sandboxes.len() < count {
                        interrupt.check()?;
                        sandboxes.push(controller.launch(SandboxSpec::new()).await?);
                    }
                    *place = process::resident()?;
                }
                let names =
                    |sandbox: &Sandbox| [sandbox.id(), sandbox.container_id()].map(str::to_owned);
                let ids: Vec<String> = sandboxes.iter().flat_map(names).collect();
                let agents = process::in_containers(&ids);
                let mut helpers = process::descendants();
                helpers.retain(|pid| !agents.contains(pid));
                let resident = |pid| process::resident_of(pid);
                let share = |pid| process::share_of(pid);
                Ok(Resident {
                    idle,
                    few: at[0],
                    many: at[1],
                    helper_shares: helpers.iter().copied().map(share).collect::<Result<_, _>>()?,
                    helpers: helpers.into_iter().map(resident).collect::<Result<_, _>>()?,
                    agents: agents.iter().copied().map(resident).collect::<Result<_, Error>>()?,
                })
            };
            let done = done.await;
            for sandbox in sandboxes {
                sandbox.close().await?;
            }
            done
        })
        .await?;
    serde_json::to_value(resident).map_err(Error::Worker)
}
