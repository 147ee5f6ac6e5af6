//! Gathering evidence.
