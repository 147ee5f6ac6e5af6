//! extension
