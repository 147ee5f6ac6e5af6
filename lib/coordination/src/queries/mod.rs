//! What operators are shown: reads that decide nothing and change nothing.
//!
//! A list goes from the newest to the oldest by a keyset, so that what arrives while someone turns pages never moves
//! a page. A page is bounded in items and in bytes; `get` reads one thing, `None` when there is no such thing.

pub mod artifacts;
pub mod events;
pub mod executions;
pub mod health;
pub mod waits;
pub mod work;

use conduit_api::{ScopeId, WorkId};
use conduit_store::{Read, Row};

use crate::error::Result;

/// Bytes of stored documents that one page shows; the item that crosses the bound is the page's last.
const PAGE_BYTES_MAX: i64 = 8 << 20;

/// Which items a list shows; a part that is absent excludes nothing.
#[derive(Debug, Clone, Copy, Default)]
pub struct Filter<'a> {
    pub scope: Option<&'a ScopeId>,
    pub work: Option<&'a WorkId>,
    pub state: Option<&'a str>,
}

/// Where an item stands in its list: when it came, and its identifier. For Events, the acceptance sequence says all.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Key {
    pub at: i64,
    pub id: String,
}

/// Which page: what is older than `before`, at most `limit` items.
#[derive(Debug, Clone, Copy)]
pub struct Window<'a> {
    pub before: Option<&'a Key>,
    pub limit: usize,
}

/// One page, and the key that the next one starts before.
#[derive(Debug, Clone, PartialEq)]
pub struct Listed<T> {
    pub items: Vec<T>,
    pub next: Option<Key>,
}

/// How one kind of thing is listed. `x` names its row.
#[derive(Debug)]
pub struct List {
    /// What is being done, for a fault's message.
    pub doing: &'static str,
    /// Every column that the item is read from.
    pub columns: &'static str,
    pub table: &'static str,
    /// The column that a filter by Work looks at, and the index of it.
    pub work: (&'static str, &'static str),
    /// Column that orders the list, before the identifier.
    pub at: &'static str,
    /// Bytes that the item holds beyond its fixed columns.
    pub weight: &'static str,
}

impl List {
    /// The page of `window` among what `filter` lets through, each row read by `map`.
    pub fn page<T>(
        &self,
        r: &Read<'_>,
        filter: Filter<'_>,
        window: Window<'_>,
        map: impl Fn(&Row<'_>) -> rusqlite::Result<T>,
    ) -> Result<Listed<T>> {
        let sql = self.sql(filter, window.before.is_some());
        let scope = filter.scope.map(ScopeId::as_str);
        let work = filter.work.map(WorkId::as_str);
        let mut params: Vec<(&str, &dyn rusqlite::ToSql)> = Vec::new();
        for (name, value) in [(":scope", &scope), (":work", &work), (":state", &filter.state)] {
            if value.is_some() {
                params.push((name, value));
            }
        }
        if let Some(key) = window.before {
            params.extend([(":at", &key.at as &dyn rusqlite::ToSql), (":id", &key.id)]);
        }
        // One row more than the page holds says whether there is a next one.
        let limit = i64::try_from(window.limit).unwrap_or(i64::MAX - 1);
        let asked = limit + 1;
        params.extend([(":asked", &asked as &dyn rusqlite::ToSql), (":bytes", &PAGE_BYTES_MAX)]);
        let mut found = 0;
        let mut rows = r.all(self.doing, &sql, params.as_slice(), |row| {
            found = row.get("found")?;
            Ok((map(row)?, Key { at: row.get("key_at")?, id: row.get("id")? }))
        })?;
        rows.truncate(window.limit);
        let more = found > i64::try_from(rows.len()).unwrap_or(i64::MAX);
        let next = rows.last().map(|(_, key)| key.clone()).filter(|_| more);
        Ok(Listed { items: rows.into_iter().map(|(item, _)| item).collect(), next })
    }
    /// The query of a page, which reads the index of the narrowest part of `filter` from the page's key on: the planner,
    /// which has no statistics, would rather read every row of a state than the few of a Work.
    fn sql(&self, filter: Filter<'_>, turned: bool) -> String {
        let Self { columns, table, work: (work, work_index), at, weight, .. } = self;
        let before = format!("(x.{at}, x.id) < (:at, :id)");
        let by_work = format!("x.{work} = :work");
        let conditions: Vec<&str> = [
            filter.scope.map(|_| "x.scope_id = :scope"),
            filter.work.map(|_| by_work.as_str()),
            filter.state.map(|_| "x.state = :state"),
            turned.then_some(before.as_str()),
        ]
        .into_iter()
        .flatten()
        .collect();
        let condition = if conditions.is_empty() { "TRUE".to_owned() } else { conditions.join(" AND ") };
        let index = match (filter.work.is_some(), filter.scope.is_some(), filter.state.is_some()) {
            (true, ..) => format!("INDEXED BY {work_index}"),
            (false, true, true) => format!("INDEXED BY {table}_scope_state"),
            (false, true, false) => format!("INDEXED BY {table}_scope"),
            (false, false, true) => format!("INDEXED BY {table}_state"),
            (false, false, false) if *at == "seq" => String::new(), // the row's own number
            (false, false, false) => format!("INDEXED BY {table}_created"),
        };
        format!(
            "SELECT * FROM (
                SELECT *, count(*) OVER () AS found,
                       sum(weight) OVER (ORDER BY key_at DESC, id DESC ROWS UNBOUNDED PRECEDING) - weight AS weight_before
                  FROM (SELECT {columns}, x.{at} AS key_at, {weight} AS weight FROM {table} x {index}
                         WHERE {condition} ORDER BY x.{at} DESC, x.id DESC LIMIT :asked))
              WHERE weight_before < :bytes ORDER BY key_at DESC, id DESC"
        )
    }
}

/// Reads a JSON document from a column; one that cannot be read is a fault of the store.
fn document<T: serde::de::DeserializeOwned>(row: &Row<'_>, column: &str) -> rusqlite::Result<T> {
    let text: String = row.get(column)?;
    serde_json::from_str(&text).map_err(|_| rusqlite::Error::InvalidColumnName(column.to_owned()))
}

/// Reads an identifier from a column that may be empty.
fn optional_id<I: std::str::FromStr>(row: &Row<'_>, column: &str) -> rusqlite::Result<Option<I>> {
    row.get::<_, Option<String>>(column)?
        .map(|text| text.parse().map_err(|_| rusqlite::Error::InvalidColumnName(column.to_owned())))
        .transpose()
}

/// Reads an instant from a column that may be empty.
fn optional_at(row: &Row<'_>, column: &str) -> rusqlite::Result<Option<conduit_api::UnixMicros>> {
    Ok(row.get::<_, Option<i64>>(column)?.map(conduit_api::UnixMicros))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::events::bounds::Bounds;
    use crate::events::{self as accepting, NewEvent, source};
    use crate::work::{self as works, NewWork};
    use conduit_api::EventId;
    use conduit_store::{Clock, StateDir, Store, mint};
    use serde_json::{Map, Value};

    const BOUNDS: Bounds = Bounds { depth_max: 100, per_minute: 1000 };

    fn store(base: &tempfile::TempDir) -> Store {
        Store::open(&StateDir::open(&base.path().join("s")).unwrap()).unwrap()
    }

    fn scope(name: &str) -> ScopeId {
        name.parse().unwrap()
    }

    fn emit(store: &mut Store, delivery: &str, text: &str, cause: Option<&EventId>) -> EventId {
        let (scope, data) = (scope("demo"), Map::from_iter([("text".to_owned(), Value::from(text))]));
        let event = NewEvent { cause, ..NewEvent::new(&scope, "demo.x", source::MANUAL, delivery, &data) };
        store.write(|tx| accepting::accept(tx, &event, BOUNDS, Clock.now())).unwrap().id
    }

    fn create(store: &mut Store, scope: &ScopeId, parent: Option<&WorkId>) -> WorkId {
        let data = Map::new();
        let now = Clock.now();
        let new = NewWork {
            id: mint(now),
            scope,
            binding: "b",
            title: None,
            parent,
            keys: &["z".to_owned() + parent.map_or("", WorkId::as_str)],
            data: &data,
            cause: None,
            input: None,
            source: source::MANUAL,
            actor: None,
        };
        store.write(|tx| works::create(tx, &new, BOUNDS, now)).unwrap().work
    }

    /// M09
    #[test]
    fn pages_hold_every_item_once_though_new_ones_arrive_while_they_are_turned() {
        let base = tempfile::tempdir().unwrap();
        let mut store = store(&base);
        let mut expected: Vec<EventId> = (0..7).map(|n| emit(&mut store, &n.to_string(), "", None)).collect();
        expected.reverse();
        let (mut seen, mut key) = (Vec::new(), None);
        loop {
            let window = Window { before: key.as_ref(), limit: 3 };
            let page = store.read(|r| events::list(r, Filter::default(), window)).unwrap();
            seen.extend(page.items.into_iter().map(|event| event.id));
            emit(&mut store, &format!("late{}", seen.len()), "", None);
            key = page.next;
            if key.is_none() {
                break;
            }
        }
        assert_eq!(seen, expected);
    }

    #[test]
    fn a_page_ends_early_when_its_items_are_large() {
        let base = tempfile::tempdir().unwrap();
        let mut store = store(&base);
        let large = "x".repeat(1 << 20);
        for n in 0..12 {
            emit(&mut store, &n.to_string(), &large, None);
        }
        let window = Window { before: None, limit: 50 };
        let page = store.read(|r| events::list(r, Filter::default(), window)).unwrap();
        assert!((1..=9).contains(&page.items.len()), "{}", page.items.len());
        let window = Window { before: page.next.as_ref(), limit: 50 };
        let rest = store.read(|r| events::list(r, Filter::default(), window)).unwrap();
        assert_eq!((page.items.len() + rest.items.len(), rest.next), (12, None));
    }

    #[test]
    fn a_list_shows_what_its_filter_lets_through() {
        let base = tempfile::tempdir().unwrap();
        let mut store = store(&base);
        let (one, two) = (scope("one"), scope("two"));
        let parent = create(&mut store, &one, None);
        let child = create(&mut store, &one, Some(&parent));
        let other = create(&mut store, &two, None);
        store.write(|tx| works::cancel(tx, &other, "operator:local", Clock.now())).unwrap();
        let mut list = |filter| {
            let window = Window { before: None, limit: 50 };
            let page = store.read(|r| work::list(r, filter, window)).unwrap();
            page.items.into_iter().map(|work| work.id).collect::<Vec<_>>()
        };
        let none = Filter::default();
        assert_eq!(list(Filter { scope: Some(&one), ..none }), [child.clone(), parent.clone()]);
        assert_eq!(list(Filter { work: Some(&parent), ..none }), std::slice::from_ref(&child));
        assert_eq!(list(Filter { state: Some("cancelled"), ..none }), std::slice::from_ref(&other));
        assert_eq!(list(Filter { scope: Some(&one), state: Some("cancelled"), ..none }), []);
        let view = store.read(|r| work::get(r, &child)).unwrap().unwrap();
        assert_eq!(view.parent_work_id, Some(parent));
        assert_eq!(view.keys.len(), 1);
        let counts = store.read(health::counts).unwrap();
        assert_eq!((counts.work["ready"].clone(), counts.work["cancelled"].clone()), (2.into(), 1.into()));
        assert_eq!(store.read(|r| health::work_of(r, &two)).unwrap().len(), 1);
    }

    #[test]
    fn the_chain_of_any_of_its_events_is_the_whole_chain_in_order() {
        let base = tempfile::tempdir().unwrap();
        let mut store = store(&base);
        let root = emit(&mut store, "root", "", None);
        emit(&mut store, "stranger", "", None);
        let middle = emit(&mut store, "middle", "", Some(&root));
        let last = emit(&mut store, "last", "", Some(&middle));
        for asked in [&root, &middle, &last] {
            let chain = store.read(|r| events::chain(r, asked)).unwrap().unwrap();
            let ids: Vec<EventId> = chain.events.into_iter().map(|event| event.id).collect();
            assert_eq!(ids, [root.clone(), middle.clone(), last.clone()]);
            assert_eq!((chain.root_id, chain.truncated), (root.clone(), false));
        }
        assert_eq!(store.read(|r| events::chain(r, &EventId::from_parts(1, 1))).unwrap(), None);
    }

    /// M09: pages cost the same at any size only if each seeks in the index of its filter and sorts no more than a page.
    #[test]
    fn every_list_reads_the_index_of_its_filter_and_sorts_only_the_page() {
        let base = tempfile::tempdir().unwrap();
        let mut store = store(&base);
        let (scope, work) = (scope("s"), WorkId::from_parts(1, 1));
        for list in [&work::LIST, &executions::LIST, &waits::LIST, &artifacts::LIST, &events::LIST] {
            let stateless = ["artifact", "event"].contains(&list.table);
            for n in 0..16 {
                let given = |bit: i32| n & bit != 0;
                let filter = Filter {
                    scope: given(1).then_some(&scope),
                    work: given(2).then_some(&work),
                    state: given(4).then_some("running"),
                };
                if given(4) && stateless {
                    continue;
                }
                let names = [":scope", ":work", ":state", ":at", ":id", ":asked", ":bytes"];
                let sql = names.iter().fold(list.sql(filter, given(8)), |sql, name| sql.replace(name, "1"));
                let explain = format!("EXPLAIN QUERY PLAN {sql}");
                let plan =
                    store.read(|r| r.all("explaining", &explain, [], |row| row.get::<_, String>("detail"))).unwrap();
                let inner = plan.iter().find(|step| step.split(' ').nth(1) == Some("x")).unwrap();
                let index = if given(2) {
                    list.work.1.to_owned()
                } else {
                    let part = ["created", "scope", "", "", "state", "scope_state"][n as usize & 5];
                    format!("{}_{part}", list.table)
                };
                if given(1) || given(2) || given(4) {
                    assert!(
                        inner.starts_with("SEARCH") && inner.contains(&format!("INDEX {index} (")),
                        "{filter:?}: {inner}"
                    );
                }
                // What is sorted behind it, for its sums, is one page.
                let at = plan.iter().position(|step| step == inner).unwrap();
                let mut reading = plan[at + 1..].iter().take_while(|step| !step.starts_with("SCAN ("));
                assert!(!reading.any(|step| step.contains("TEMP B-TREE")), "{filter:?}: {plan:?}");
            }
        }
    }
}
