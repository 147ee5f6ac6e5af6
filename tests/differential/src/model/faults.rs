//! Models with one fault each: the negative controls. One that is never told apart from the real path would say that the
//! comparison cannot see the rule which it forgets.

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    AcceptsSquatting,
    IgnoresDenials,
    ForgetsRevocation,
    ForgetsExpiry,
    ForgetsTheSocket,
    ForgetsNarrowing,
    ForgetsTheAllowlist,
    ForgetsTheCeiling,
    ForgetsTheFence,
    ForgetsTheLeasesEnd,
    ForgetsTheDeclaration,
    DecidesOnce,
    ForgetsRequests,
    ForgetsWhatWasAsked,
    ForgetsDoubts,
    SkipsTheSchema,
    EmitsWhatever,
}

impl Fault {
    pub const ALL: [Self; 17] = [
        Self::AcceptsSquatting,
        Self::IgnoresDenials,
        Self::ForgetsRevocation,
        Self::ForgetsExpiry,
        Self::ForgetsTheSocket,
        Self::ForgetsNarrowing,
        Self::ForgetsTheAllowlist,
        Self::ForgetsTheCeiling,
        Self::ForgetsTheFence,
        Self::ForgetsTheLeasesEnd,
        Self::ForgetsTheDeclaration,
        Self::DecidesOnce,
        Self::ForgetsRequests,
        Self::ForgetsWhatWasAsked,
        Self::ForgetsDoubts,
        Self::SkipsTheSchema,
        Self::EmitsWhatever,
    ];

    /// How it is called in a report.
    pub const fn name(self) -> &'static str {
        match self {
            Self::AcceptsSquatting => "accepts squatting",
            Self::IgnoresDenials => "ignores denials",
            Self::ForgetsRevocation => "forgets revocation",
            Self::ForgetsExpiry => "forgets expiry",
            Self::ForgetsTheSocket => "forgets the socket",
            Self::ForgetsNarrowing => "forgets narrowing",
            Self::ForgetsTheAllowlist => "forgets the allowlist",
            Self::ForgetsTheCeiling => "forgets the ceiling",
            Self::ForgetsTheFence => "forgets the fence",
            Self::ForgetsTheLeasesEnd => "forgets the leases end",
            Self::ForgetsTheDeclaration => "forgets the declaration",
            Self::DecidesOnce => "decides once",
            Self::ForgetsRequests => "forgets requests",
            Self::ForgetsWhatWasAsked => "forgets what was asked",
            Self::ForgetsDoubts => "forgets doubts",
            Self::SkipsTheSchema => "skips the schema",
            Self::EmitsWhatever => "emits whatever",
        }
    }
}
