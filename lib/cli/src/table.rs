//! Tables and field lists that fit the terminal. Text from the suite is shown without what a terminal would obey.

/// One column of a table.
#[derive(Debug, Clone, Copy)]
pub struct Column {
    pub title: &'static str,
    /// Whether the column gives way when the table is wider than the terminal.
    pub gives_way: bool,
}

impl Column {
    pub const fn fixed(title: &'static str) -> Self {
        Self { title, gives_way: false }
    }
    pub const fn flexible(title: &'static str) -> Self {
        Self { title, gives_way: true }
    }
}

/// Space between two columns.
const GAP: usize = 2;
/// The narrowest that a column gets by giving way.
const NARROWEST: usize = 8;

/// The rows below their titles, at most `width` characters wide where flexible columns allow.
pub fn table(columns: &[Column], rows: &[Vec<String>], width: usize) -> String {
    let widths = fit(columns, rows, width);
    let titles: Vec<String> = columns.iter().map(|column| column.title.to_owned()).collect();
    std::iter::once(&titles).chain(rows).map(|row| line(row, &widths)).collect()
}

fn line(cells: &[String], widths: &[usize]) -> String {
    let mut text = String::new();
    for (at, (cell, width)) in cells.iter().zip(widths).enumerate() {
        let shown = cut(cell, *width);
        text.push_str(&shown);
        if at + 1 < cells.len() {
            text.extend(std::iter::repeat_n(' ', width.saturating_sub(shown.chars().count()) + GAP));
        }
    }
    text.truncate(text.trim_end().len());
    text + "\n"
}

/// The width of each column: what its cells need, less what the flexible ones give up, the widest first.
fn fit(columns: &[Column], rows: &[Vec<String>], width: usize) -> Vec<usize> {
    let needed = |at: usize| {
        let cells = rows.iter().filter_map(|row| row.get(at)).map(|cell| cell.chars().count());
        cells.chain([columns[at].title.len()]).max().unwrap_or(0)
    };
    let mut widths: Vec<usize> = (0..columns.len()).map(needed).collect();
    let gaps = GAP * columns.len().saturating_sub(1);
    while widths.iter().sum::<usize>() + gaps > width {
        let widest = (0..columns.len())
            .filter(|at| columns[*at].gives_way && widths[*at] > NARROWEST)
            .max_by_key(|at| widths[*at]);
        match widest {
            Some(at) => widths[at] -= 1,
            None => break,
        }
    }
    widths
}

/// At most `width` characters; what was cut off is marked.
pub fn cut(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.to_owned();
    }
    text.chars().take(width.saturating_sub(1)).chain(['…']).collect()
}

/// Names and values, one pair on a line; a value with several lines is indented below its first.
pub fn fields(pairs: &[(&str, String)]) -> String {
    let widest = pairs.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0);
    let indent = format!("\n{}", " ".repeat(widest + GAP));
    pairs
        .iter()
        .map(|(name, value)| format!("{name:<widest$}{}{}\n", " ".repeat(GAP), value.replace('\n', &indent)))
        .collect()
}

/// `text` with control characters replaced, so that no stored text moves a cursor or writes a title; on one line.
pub fn clean(text: &str) -> String {
    text.chars().map(|c| if c.is_control() || is_bidi(c) { '\u{fffd}' } else { c }).collect()
}

/// Characters that change the direction of what follows them.
const fn is_bidi(c: char) -> bool {
    matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(cells: &[&[&str]]) -> Vec<Vec<String>> {
        cells.iter().map(|row| row.iter().map(|cell| (*cell).to_owned()).collect()).collect()
    }

    #[test]
    fn a_table_gives_way_in_its_flexible_columns_alone() {
        let columns = [Column::fixed("ID"), Column::flexible("TITLE"), Column::fixed("AGE")];
        let rows = rows(&[&["wrk_0123456789", "a long title that does not fit", "3m"]]);
        let wide = table(&columns, &rows, usize::MAX);
        assert!(wide.contains("a long title that does not fit"));
        let narrow = table(&columns, &rows, 40);
        assert!(narrow.lines().all(|line| line.chars().count() <= 40), "{narrow}");
        assert!(narrow.contains("wrk_0123456789") && narrow.contains('…'));
        assert!(table(&columns, &rows, 1).contains("wrk_0123456789"), "what does not give way stays whole");
    }

    #[test]
    fn no_stored_text_reaches_the_terminal_as_an_order() {
        assert_eq!(clean("a\u{1b}]0;x\u{7}b\n\u{202e}c"), "a\u{fffd}]0;x\u{fffd}b\u{fffd}\u{fffd}c");
    }

    #[test]
    fn a_value_with_lines_stays_in_its_column() {
        assert_eq!(fields(&[("a", "1\n2".into()), ("long", "3".into())]), "a     1\n      2\nlong  3\n");
    }
}
