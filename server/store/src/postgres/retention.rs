//! Executions that are not kept any longer: their SQL. Each node expires its own ones, whose files it has, and those
//! that ran nowhere or whose node is forgotten.

use sandbox_api::service::Time;

use super::{PostgresStore, bind, own};
use crate::error::StoreError;
use crate::integer::signed;
use crate::retention::BATCH;
use crate::row::Columns as _;

/// What a node (`$1`) expires.
const MINE: &str = "(node = $1 OR node IS NULL OR NOT EXISTS (SELECT FROM nodes WHERE id = node))";

impl PostgresStore {
    pub fn expire(&self, before: Time, max_bytes: u64) -> Result<Vec<String>, StoreError> {
        let node = self.database.node();
        let due = self.database.query(
            &format!(
                "WITH oldest AS (
                    SELECT seq, ended_at, stored_bytes FROM executions
                    WHERE ended_at IS NOT NULL AND NOT is_expired AND {MINE}
                    ORDER BY ended_at, seq LIMIT $4
                ), kept AS (
                    SELECT (SELECT coalesce(sum(bytes), 0) FROM stored WHERE node IN ($1, ''))
                        - (SELECT coalesce(sum(stored_bytes), 0) FROM executions WHERE is_expired AND {MINE})
                        AS bytes
                )
                SELECT seq FROM (
                    SELECT seq, ended_at, bytes - sum(stored_bytes) OVER (ORDER BY ended_at, seq)
                        + stored_bytes AS kept
                    FROM oldest CROSS JOIN kept
                ) AS each WHERE ended_at < $2 OR kept > $3"
            ),
            &[bind(&node), bind(&before.unix_millis()), bind(&signed(max_bytes)), bind(&BATCH)],
        )?;
        let due = due.iter().map(|row| row.try_get(0)).collect::<Result<Vec<i64>, _>>()?;
        if !due.is_empty() {
            let hide = "UPDATE executions SET is_expired = true WHERE seq = ANY ($1)";
            self.database.change(0, hide, vec![own(due)], |_| Ok(()))?;
        }
        let statement =
            format!("SELECT id FROM executions WHERE is_expired AND {MINE} ORDER BY seq LIMIT $2");
        self.database.all(&statement, &[bind(&node), bind(&BATCH)], |row| Ok(row.try_get(0)?))
    }

    pub fn forget(&self, ids: Vec<String>) -> Result<(), StoreError> {
        let statement = "WITH gone AS (
                DELETE FROM executions WHERE id = ANY ($1) AND is_expired
                RETURNING seq, subject, node, stored_bytes
            ), keys AS (
                DELETE FROM idempotency_keys WHERE execution IN (SELECT seq FROM gone)
            )
            SELECT add_stored(subject, node, 0::smallint, -bytes) FROM (
                SELECT subject, node, sum(stored_bytes)::bigint AS bytes FROM gone
                GROUP BY subject, node ORDER BY subject, node
            ) AS each";
        self.database.change(0, statement, vec![own(ids)], |_| Ok(()))
    }

    pub fn oldest_end(&self) -> Result<Option<Time>, StoreError> {
        let statement = format!(
            "SELECT ended_at FROM executions WHERE ended_at IS NOT NULL AND NOT is_expired AND {MINE}
             ORDER BY ended_at LIMIT 1"
        );
        self.database.first(&statement, &[bind(&self.database.node())], |row| row.time("ended_at"))
    }
}
