//! What may be stored: within the quota of its subject, and where the disk has more left than the reserve,
//! which is for what was accepted before.

use std::sync::Arc;

use sandbox_api::service::Subject;

use crate::core::Core;
use crate::counters::Counting;
use crate::error::ServiceError;
use crate::room::StorageReservation;

impl Core {
    /// Reserves so many bytes more for a subject, if its quota and the disk have them.
    pub async fn make_room(
        self: &Arc<Self>,
        subject: &Subject,
        bytes: u64,
    ) -> Result<StorageReservation, ServiceError> {
        let mut room = self.pending.room(subject);
        self.add_room(&mut room, bytes).await?;
        Ok(room)
    }

    /// Makes it larger. Of those who ask at one time the first get it.
    pub async fn add_room(
        self: &Arc<Self>,
        room: &mut StorageReservation,
        bytes: u64,
    ) -> Result<(), ServiceError> {
        self.check_disk()?;
        let pending = room.add(bytes);
        let Some(quota) = self.quotas().stored else { return Ok(()) };
        let before = self.kept_bytes(room.subject()).await?.saturating_add(pending);
        if before >= quota.as_u64() || before.saturating_add(bytes) > quota.as_u64() {
            Counting::add(&self.counting.refused_quota);
            return Err(ServiceError::quota_exceeded("stored bytes", None));
        }
        Ok(())
    }

    /// Refuses what would be stored where the disk has less left than its reserve, which is for what ends.
    pub fn check_disk(&self) -> Result<(), ServiceError> {
        let space = self.files.free_space();
        let space = space.map_err(ServiceError::files)?;
        match self.config.disk_reserve.shortage(&space) {
            Some(shortage) => Err(ServiceError::disk_full(shortage)),
            None => Ok(()),
        }
    }
}
