//! What subjects have used: its SQL.

use sandbox_api::service::{Subject, Time};

use super::{PostgresStore, own};
use crate::error::StoreError;
use crate::integer::signed;
use crate::usage::{MAX, day};

impl PostgresStore {
    pub fn add_usage(
        &self,
        subject: &Subject,
        ended_at: Time,
        used: sandbox_api::Usage,
    ) -> Result<(), StoreError> {
        let writer = self.database.writer_of(subject.as_str());
        let parameters = vec![
            own(subject.as_str().to_owned()),
            own(day(ended_at)),
            own(self.database.node().to_owned()),
            own(writer as i16),
            own(signed(used.cpu_ms.unwrap_or(0))),
            own(signed(used.wall_ms)),
            own(signed(used.written_bytes.unwrap_or(0))),
            own(MAX),
        ];
        let statement = "SELECT add_usage($1, $2, $3, $4, $5, $6, $7, $8)";
        self.database.change(writer, statement, parameters, |_| Ok(()))
    }
}
