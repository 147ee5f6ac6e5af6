//! What operators are shown: reads that decide nothing.
