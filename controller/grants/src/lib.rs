//! What a run is given beyond its sandbox, and by whom: tools of the host ([`host_tools`]), what somebody
//! permits while it runs ([`permission`]), and the document that says so to what runs ([`policy`]).
//!
//! All that is asked for here comes from a sandbox, which may be hostile.

#![forbid(unsafe_code)]

pub mod host_tools;
pub mod permission;
pub mod policy;
