//! The playbooks that come with the suite (E05, S05).

use conduit_config::Playbook;

/// Name and text of each, as `skills/<name>/SKILL.md` has it.
pub const TEXTS: [(&str, &str); 1] = [("os", include_str!("../playbooks/os.md"))];

/// What each lists. One that could not be read would be left out; a test reads them all.
pub fn bundled() -> Vec<Playbook> {
    TEXTS.iter().filter_map(|(_, text)| Playbook::read(text).ok()).collect()
}
