#!/bin/sh
# Counts the committed files of one directory of a Git repository, and declares what it found.
set -eu

git_() { git -c safe.directory='*' -c core.hooksPath=/dev/null -c core.fsmonitor=false --no-pager -C "$repo" "$@"; }

repo=$(os context /inputs/0/data/repository)
directory=$(os context /inputs/0/data/directory)
counted=$(git_ ls-tree -r -l HEAD -- "$directory/" | awk '$2 == "blob" { files++; bytes += $4 } END { printf "%d %d", files, bytes }')
files=${counted% *}
bytes=${counted#* }
echo "$directory: $files files, $bytes bytes"
os outcome succeeded "{\"files\":$files,\"bytes\":$bytes}" --summary "$directory: $files files, $bytes bytes"
