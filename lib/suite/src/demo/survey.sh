#!/bin/sh
# Counts what is in a Git repository: one child Work for each top-level directory, and in the next segment the sums.
# Runs as an execution of Open Conduit; `os` is on the PATH. Reads committed trees only, so nothing in the repository runs.
set -eu

most=200 # directories that one survey counts: a context shows 256 inputs, and each child's end is one

git_() { git -c safe.directory='*' -c core.hooksPath=/dev/null -c core.fsmonitor=false --no-pager -C "$repo" "$@"; }
json() { printf '"%s"' "$(printf '%s' "$1" | sed 's/\\/\\\\/g; s/"/\\"/g')"; }
sum() { awk '{ total += $1 } END { print total + 0 }'; }

waits=$(os context '/waits/*/id')
if [ -z "$waits" ]; then
    # The first segment: look, hand each directory to a child Work, and wait for all of them.
    repo=$(os context /inputs/0/data/repository)
    # One name a line; what cannot stand in one line, or in JSON as it is, is shown as a question mark.
    directories=$(git_ ls-tree -d -z --name-only HEAD | tr '\001-\037' '?' | tr '\000' '\n' | head -n "$most")
    loose=$(git_ ls-tree -l HEAD | awk '$2 == "blob"' | wc -l)
    os emit demo.survey.looked "{\"files_at_the_top\":$loose}" >/dev/null
    if [ -z "$directories" ]; then
        os outcome succeeded "{\"directories\":0,\"files\":$loose,\"bytes\":$(git_ ls-tree -l HEAD | awk '{ print $4 }' | sum)}"
        exit 0
    fi
    # The working directory is this execution's own run directory.
    printf '%s\n' "$directories" > directories
    set --
    while IFS= read -r directory; do
        title="count $directory"
        [ "${#title}" -le 80 ] || title=count
        child=$(os create-work count "{\"repository\":$(json "$repo"),\"directory\":$(json "$directory")}" --title "$title")
        set -- "$@" --for "core.work.finished,work=$child"
        echo "handed $directory to $child"
    done < directories
    os wait --all --timeout 10m "$@"
    echo "waiting for them all"
    exit 0
fi

# The segment that follows: every child has ended; add up what they declared.
succeeded=$(os context '/waits/0/matches/*/data/outcome/status' | grep -c '^succeeded$' || true)
children=$(os context '/waits/0/matches/*/data/outcome/status' | wc -l)
repo=$(os context /inputs/0/data/repository)
loose=$(git_ ls-tree -l HEAD | awk '$2 == "blob"' | wc -l)
loose_bytes=$(git_ ls-tree -l HEAD | awk '{ print $4 }' | sum)
files=$(os context '/waits/0/matches/*/data/outcome/data/files' | sum)
bytes=$(os context '/waits/0/matches/*/data/outcome/data/bytes' | sum)
echo "files and bytes of each directory:"
os context '/waits/0/matches/*/data/outcome/summary'
if [ "$succeeded" -ne "$children" ]; then
    os outcome failed --summary "only $succeeded of $children directories were counted"
    exit 0
fi
os outcome succeeded "{\"directories\":$children,\"files\":$((files + loose)),\"bytes\":$((bytes + loose_bytes))}" \
    --summary "$((files + loose)) files, $((bytes + loose_bytes)) bytes in $children directories and at the top"
