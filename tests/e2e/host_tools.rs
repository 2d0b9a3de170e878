//! Tools of the host: what an embedding program offers, and what hostile guests make of calls.
