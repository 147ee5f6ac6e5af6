//! toolbelt
