//! The workspaces of a server for many subjects.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};

use axum::http::request;
use rmcp::model::{ErrorData, Extensions};
use sandbox_api::service::Subject;
use sandbox_service::Service;

use crate::lock;
use crate::outputs::Outputs;
use crate::settings::Settings;
use crate::workspace::{Workspace, WorkspaceDir};

/// The most subjects with a workspace. Those that are not used make room.
const MAX_WORKSPACES: usize = 1024;

/// The workspaces of a server by their subjects.
pub(crate) struct Workspaces {
    service: Service,
    settings: Arc<Settings>,
    io_dirs: Option<PathBuf>,
    by_subject: Mutex<HashMap<Subject, Arc<Workspace>>>,
    /// Bytes of outputs that they keep.
    kept: Arc<AtomicU64>,
}

impl Workspaces {
    /// Of sandboxes of this service; none is open yet.
    pub fn new(service: Service, settings: Arc<Settings>, io_dirs: Option<PathBuf>) -> Self {
        Self { service, settings, io_dirs, by_subject: Mutex::default(), kept: Arc::default() }
    }

    /// The workspace of a request's subject.
    pub fn of_request(&self, extensions: &Extensions) -> Result<Arc<Workspace>, ErrorData> {
        let subject =
            extensions.get::<request::Parts>().and_then(|parts| parts.extensions.get::<Subject>());
        let subject = subject
            .ok_or_else(|| ErrorData::internal_error("the request was not authenticated", None))?;
        self.of(subject)
    }

    fn of(&self, subject: &Subject) -> Result<Arc<Workspace>, ErrorData> {
        let mut workspaces = lock(&self.by_subject);
        if let Some(workspace) = workspaces.get(subject) {
            return Ok(workspace.clone());
        }
        if !make_room(&mut workspaces, Workspace::is_unused) {
            return Err(ErrorData::internal_error("too many subjects at one time", None));
        }
        let kept = |base: &PathBuf| WorkspaceDir::Kept(base.join(subject.directory_name()));
        let io_dir = self.io_dirs.as_ref().map_or(WorkspaceDir::Off, kept);
        let (service, settings) = (self.service.clone(), self.settings.clone());
        let opened = Workspace::open(service, subject.clone(), settings, io_dir);
        let workspace = opened.map_err(|error| {
            tracing::error!("a workspace cannot be opened: {error}");
            ErrorData::internal_error("the workspace could not be opened", None)
        })?;
        let workspace = Arc::new(workspace.with_outputs(Outputs::new(self.kept.clone())));
        workspaces.insert(subject.clone(), workspace.clone());
        Ok(workspace)
    }

    pub async fn close(&self) {
        let workspaces: Vec<_> = lock(&self.by_subject).drain().map(|(_, it)| it).collect();
        futures_util::future::join_all(workspaces.iter().map(|workspace| workspace.close())).await;
    }
}

/// Whether there is room for the workspace of one more subject. Those that are not used make some.
fn make_room<W>(by_subject: &mut HashMap<Subject, W>, is_unused: impl Fn(&W) -> bool) -> bool {
    if by_subject.len() >= MAX_WORKSPACES {
        by_subject.retain(|_, workspace| !is_unused(workspace));
    }
    by_subject.len() < MAX_WORKSPACES
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workspaces_that_are_not_used_make_room_for_one_more() {
        let is_unused = |workspace: &Arc<()>| Arc::strong_count(workspace) == 1;
        let subject = |number| Subject::new(format!("subject {number}")).unwrap();
        let (mut by_subject, mut in_use) = (HashMap::new(), Vec::new());
        for number in 0..MAX_WORKSPACES {
            assert!(make_room(&mut by_subject, is_unused), "{number}");
            let workspace = Arc::new(());
            in_use.push(workspace.clone());
            by_subject.insert(subject(number), workspace);
        }
        assert!(!make_room(&mut by_subject, is_unused));
        assert_eq!(by_subject.len(), MAX_WORKSPACES);
        in_use.swap_remove(7);
        assert!(make_room(&mut by_subject, is_unused));
        assert_eq!(by_subject.len(), MAX_WORKSPACES - 1);
        assert!(!by_subject.contains_key(&subject(7)));
    }
}
