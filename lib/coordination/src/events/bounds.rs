//! Bounds of a causal chain: how deep it may grow, and how fast.

use crate::error::{Error, Result};

/// The bounds that the configuration sets for a new chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// Greatest depth of an Event; a root has depth 0.
    pub depth_max: i64,
    /// Derived Events of one chain in one minute of boot time.
    pub per_minute: i64,
}

impl Bounds {
    /// What the active configuration sets.
    pub fn of(snapshot: &conduit_config::Snapshot) -> Self {
        let limits = snapshot.config.limits;
        Self { depth_max: i64::from(limits.causal_depth_max), per_minute: i64::from(limits.causal_per_minute) }
    }
}

/// What holds for an Event that is derived from another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Bounded {
    /// Somebody asks for it, and can be told to come back: depth and rate.
    Asked(Bounds),
    /// The host makes it out of an Event that it has accepted: depth alone, which ends every loop. A rate would drop
    /// what the emitter was told is accepted.
    Derived(Bounds),
    /// The host tells what happened.
    Free,
}

/// What is known of a chain: its pinned bounds, and how it grew in the minute it last grew in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Chain {
    pub bounds: Bounds,
    pub minute: i64,
    pub minute_count: i64,
}

impl Chain {
    pub const fn new(bounds: Bounds) -> Self {
        Self { bounds, minute: 0, minute_count: 0 }
    }

    /// The chain after one more Event at `depth` in `minute`. Errors: `causal_depth_exceeded`, `causal_rate_exceeded`.
    pub fn grow(self, depth: i64, minute: i64) -> Result<Self> {
        let Bounds { per_minute, .. } = self.deepen(depth)?.bounds;
        let minute_count = if minute == self.minute { self.minute_count } else { 0 } + 1;
        if minute_count > per_minute {
            return Err(Error::CausalRateExceeded { per_minute });
        }
        Ok(Self { minute, minute_count, ..self })
    }

    /// The chain after one more Event at `depth` that no rate counts. Error: `causal_depth_exceeded`.
    pub fn deepen(self, depth: i64) -> Result<Self> {
        let depth_max = self.bounds.depth_max;
        if depth > depth_max { Err(Error::CausalDepthExceeded { depth_max }) } else { Ok(self) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// T08
    #[test]
    fn a_chain_is_bounded_in_depth_and_in_what_one_minute_adds() {
        let chain = Chain::new(Bounds { depth_max: 2, per_minute: 2 });
        assert!(matches!(chain.grow(3, 7), Err(Error::CausalDepthExceeded { depth_max: 2 })));
        let chain = chain.grow(2, 7).unwrap().grow(1, 7).unwrap();
        assert!(matches!(chain.grow(1, 7), Err(Error::CausalRateExceeded { per_minute: 2 })));
        assert!(chain.grow(1, 8).is_ok());
        assert!(chain.deepen(2).is_ok(), "what the host derives is not counted");
        assert!(matches!(chain.deepen(3), Err(Error::CausalDepthExceeded { depth_max: 2 })));
    }
}
