//! Methods of requests that are built member by member.

/// Methods that set a member and return the whole; those of `some` set one that is optional.
macro_rules! setters {
    (
        $name:ident { $($(#[$doc:meta])* $member:ident: $kind:ty,)* }
        some { $($(#[$some_doc:meta])* $some:ident: $some_kind:ty,)* }
    ) => {
        impl $name {
            $(
                $(#[$doc])*
                #[must_use]
                pub fn $member(mut self, $member: $kind) -> Self {
                    self.$member = $member;
                    self
                }
            )*
            $(
                $(#[$some_doc])*
                #[must_use]
                pub fn $some(mut self, $some: $some_kind) -> Self {
                    self.$some = Some($some);
                    self
                }
            )*
        }
    };
}
pub(crate) use setters;
