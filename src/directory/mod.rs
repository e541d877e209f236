//! The in-memory tree directory: name to id to extent; pure.
