//! management
