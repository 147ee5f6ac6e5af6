#!/bin/sh
# A worker that serves nothing: it notes its start and then does what WORKER_DOES says.
echo "$$ $LISTEN_FDS $LISTEN_FDNAMES $*" >> "$WORKER_LOG"
eval "$WORKER_DOES"
